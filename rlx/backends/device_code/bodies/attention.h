// out = softmax(q k^T * scale + mask) v for a tile of 64 queries of one head. The kernel never holds all scores: it
// reads 64 keys at a time, and scales the sums down whenever a larger score appears (Milakov and Gimelshein, "Online
// normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022). Constants: see attention_tiles.h. A
// row that sees no key is zero. A thread computes the scores of four queries with four keys, and a sixteenth of the
// columns of these queries' results.
#include "attention_tiles.h"

RLX_FN void attention_body(PTR(T) q, PTR(T) k, PTR(T) v, PTR(M) mask, PTR(i32) lengths, PTR(T) y, ROW_SUMS
                           const uint count, const uint heads, const uint kv_heads, const uint sq, const uint sk,
                           const uint d, const uint mb, const uint mh, const uint mq, const uint mk, const uint each,
                           const uint window, const uint q_row, const uint k_row, const uint v_row,
                           const float scale, const float cap) {
    const uint tiles = (sq + TILE - 1u) / TILE;
    const uint bh = GROUP / tiles, q0 = GROUP % tiles * TILE;
    if (bh >= count) return;
    const uint b = bh / heads, h = bh % heads;
    const uint kv = h / (heads / kv_heads), y_row = ROW_STEP(Y_BY_TOKEN, heads, d);
    PTR(T) pq = HEAD(T, q, Q_BY_TOKEN, b, h, heads, sq, q_row, d);
    PTR(T) pk = HEAD(T, k, K_BY_TOKEN, b, kv, kv_heads, sk, k_row, d);
    PTR(T) pv = HEAD(T, v, V_BY_TOKEN, b, kv, kv_heads, sk, v_row, d);
    PTR(M) pm = SKIP(M, SKIP(M, mask, b, mb), h, mh);
    const uint i0 = q0 + TY * 4u;
    const int len = key_count(lengths, b * each, sk), reach = int(window);
    const int begin = first_seen(int(q0), len - int(sq), reach);
    const int end = after_seen(int(q0 + TILE), len - int(sq), reach, len);
    const float inverse_cap = CAPPED ? p_recip_f(cap) : 0.0f;

    const vec4 zero = all4(0.0f);
    vec4 out_[WIDE], next_a, next_b, next_x[2];  // of four queries, COLUMN(j)
    UNROLL for (uint j = 0u; j < WIDE; j++) out_[j] = zero;
    vec4 top = all4(-INFINITE), total = zero;
    PRODUCT_START(pq, q0, sq, q_row, pk, uint(begin), uint(len), k_row, d)
    for (int at = begin; at < end; at += int(TILE)) {
        const uint k0 = uint(at);
        vec4 s[4];  // s[key]: four queries
        PRODUCT(s, pq, q0, sq, q_row, pk, k0, uint(len), k_row, d)
        APPLY_START(pv, k0, uint(len), v_row, d)
        vec4 best = all4(-INFINITE);
        UNROLL for (uint j = 0u; j < 4u; j++) {
            const uint key = k0 + TX * 4u + j;
            s[j] = times4(s[j], all4(scale));
            if (CAPPED) s[j] = times4(bend4(s[j], inverse_cap), all4(cap));
            s[j] = VEC4(masked(pm, s[j].x, i0, key, sq, len, reach, mq, mk),
                        masked(pm, s[j].y, i0 + 1u, key, sq, len, reach, mq, mk),
                        masked(pm, s[j].z, i0 + 2u, key, sq, len, reach, mq, mk),
                        masked(pm, s[j].w, i0 + 3u, key, sq, len, reach, mq, mk));
            best = larger4(s[j], best);
        }
        BARRIER;
        pool[TY * 16u + TX] = best;
        BARRIER;
        vec4 next = top;
        for (uint i = 0u; i < 16u; i++) next = larger4(pool[TY * 16u + i], next);
        const vec4 less = exp4(top, next);
        top = next;
        vec4 sum = zero;
        UNROLL for (uint j = 0u; j < 4u; j++) {
            const vec4 e = exp4(s[j], top);
            weights[(TX * 4u + j) * 16u + TY] = e;
            sum = plus4(sum, e);
        }
        pool[256u + TY * 16u + TX] = sum;
        BARRIER;
        sum = zero;
        for (uint i = 0u; i < 16u; i++) sum = plus4(sum, pool[256u + TY * 16u + i]);
        total = plus4(times4(total, less), sum);
        UNROLL for (uint j = 0u; j < WIDE; j++) out_[j] = times4(out_[j], less);
        PRODUCT_START(pq, q0, sq, q_row, pk, k0 + TILE, uint(len), k_row, d)
        APPLY(out_, pv, k0, uint(len), v_row, d)
    }
    const vec4 factor = VEC4(inverse(total.x), inverse(total.y), inverse(total.z), inverse(total.w));
#ifdef SUM_ROWS
    if (TX == 0u) {
        PUT_ROW_SUM(i0, base_of(top.x), p_log_f(total.x));
        PUT_ROW_SUM(i0 + 1u, base_of(top.y), p_log_f(total.y));
        PUT_ROW_SUM(i0 + 2u, base_of(top.z), p_log_f(total.z));
        PUT_ROW_SUM(i0 + 3u, base_of(top.w), p_log_f(total.w));
    }
#endif
    PTR(T) py = HEAD(T, y, Y_BY_TOKEN, b, h, heads, sq, y_row, d);
    TILE_STORE(py, out_, i0, sq, y_row, d, factor)
}
