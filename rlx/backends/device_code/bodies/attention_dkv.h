// The gradients of keys and values for a tile of 64 keys of one key head. The kernel goes over the query heads that
// share it, in order, and over their queries, 64 at a time: dv = sum of P dy and dk = sum of dS q, with P and dS as in
// attention_dq.h, whose `rows` this kernel reads. It needs no atomics, since each key belongs to one workgroup.
// Constants: see attention_tiles.h. A thread computes the scores of four keys with four queries, and a sixteenth of the
// columns of these keys' results.
#include "attention_tiles.h"

RLX_FN void attention_dkv_body(PTR(T) dy, PTR(T) q, PTR(T) k, PTR(T) v, PTR(M) mask, PTR(i32) lengths, PTR(f32) rows,
                               PTR(T) dk, PTR(T) dv, const uint count, const uint heads, const uint kv_heads,
                               const uint sq, const uint sk, const uint d, const uint mb, const uint mh, const uint mq,
                               const uint mk, const uint each, const uint window, const float scale, const float cap) {
    const uint tiles = (sk + TILE - 1u) / TILE;
    const uint kv = GROUP / tiles, k0 = GROUP % tiles * TILE;
    const uint group = heads / kv_heads;
    if (kv * group >= count) return;
    const uint b = kv / kv_heads;
    PLACE_ROWS
    PTR(T) pk = HEAD(T, k, K_BY_TOKEN, b, kv % kv_heads, kv_heads, sk, k_row, d);
    PTR(T) pv = HEAD(T, v, V_BY_TOKEN, b, kv % kv_heads, kv_heads, sk, v_row, d);
    const uint j0 = k0 + TY * 4u;
    const int len = key_count(lengths, b * each, sk), reach = int(window), shift = len - int(sq);
    // The range of queries that see some of these keys.
    int begin = 0, end = int(sq);
    if (CAUSAL) begin = larger_i(begin, int(k0) - shift);
    if (WINDOWED) {
        begin = larger_i(begin, int(k0) - shift - reach);
        end = lesser_i(end, int(k0 + TILE) - shift + reach);
    }
    if (int(k0) >= len) end = begin;
    const float inverse_cap = CAPPED ? p_recip_f(cap) : 0.0f;

    const vec4 zero = all4(0.0f);
    vec4 of_k[WIDE], of_v[WIDE], next_a, next_b, next_x[2];  // of four keys, COLUMN(j)
    UNROLL for (uint j = 0u; j < WIDE; j++) {
        of_k[j] = zero;
        of_v[j] = zero;
    }
    for (uint g = 0u; g < group; g++) {
        const uint h = kv % kv_heads * group + g, bh = b * heads + h;
        PTR(T) pd = HEAD(T, dy, Y_BY_TOKEN, b, h, heads, sq, d_row, d);
        PTR(T) pq = HEAD(T, q, Q_BY_TOKEN, b, h, heads, sq, q_row, d);
        PTR(M) pm = SKIP(M, SKIP(M, mask, b, mb), h, mh);
        PTR(f32) tops = SKIP(f32, rows, bh, sq);
        PTR(f32) factors = SKIP(f32, SKIP(f32, rows, count, sq), bh, sq);
        PTR(f32) deltas = SKIP(f32, SKIP(f32, rows, 2u * count, sq), bh, sq);
        PRODUCT_START(pk, k0, uint(len), k_row, pq, uint(begin), sq, q_row, d)
        for (int at = begin; at < end; at += int(TILE)) {
            const uint q0 = uint(at);
            vec4 s[4], dp[4];  // by query: four keys
            PRODUCT(s, pk, k0, uint(len), k_row, pq, q0, sq, q_row, d)
            PRODUCT_START(pv, k0, uint(len), v_row, pd, q0, sq, d_row, d)
            PRODUCT(dp, pv, k0, uint(len), v_row, pd, q0, sq, d_row, d)
            APPLY_START(pd, q0, sq, d_row, d)
            UNROLL for (uint j = 0u; j < 4u; j++) {
                const uint i = q0 + TX * 4u + j;
                const bool there = i < sq;
                const float top = there ? LOAD(f32, tops, i) : 0.0f, factor = there ? LOAD(f32, factors, i) : 0.0f;
                const float delta = there ? LOAD(f32, deltas, i) : 0.0f;
                s[j] = times4(s[j], all4(scale));
                const vec4 bent = bend4(s[j], inverse_cap);
                if (CAPPED) s[j] = times4(bent, all4(cap));
                s[j] = VEC4(masked(pm, s[j].x, i, j0, sq, len, reach, mq, mk),
                            masked(pm, s[j].y, i, j0 + 1u, sq, len, reach, mq, mk),
                            masked(pm, s[j].z, i, j0 + 2u, sq, len, reach, mq, mk),
                            masked(pm, s[j].w, i, j0 + 3u, sq, len, reach, mq, mk));
                s[j] = times4(exp4(s[j], all4(top)), all4(factor));
                weights[(TX * 4u + j) * 16u + TY] = s[j];
                dp[j] = times4(s[j], minus4(dp[j], all4(delta)));
                if (CAPPED) dp[j] = times4(dp[j], minus4(all4(1.0f), times4(bent, bent)));
            }
            APPLY(of_v, pd, q0, sq, d_row, d)
            APPLY_START(pq, q0, sq, q_row, d)
            BARRIER;
            UNROLL for (uint j = 0u; j < 4u; j++) weights[(TX * 4u + j) * 16u + TY] = dp[j];
            PRODUCT_START(pk, k0, uint(len), k_row, pq, q0 + TILE, sq, q_row, d)
            APPLY(of_k, pq, q0, sq, q_row, d)
        }
    }
    PTR(T) made_k = HEAD(T, dk, K_BY_TOKEN, b, kv % kv_heads, kv_heads, sk, k_row, d);
    PTR(T) made_v = HEAD(T, dv, V_BY_TOKEN, b, kv % kv_heads, kv_heads, sk, v_row, d);
    TILE_STORE(made_k, of_k, j0, sk, k_row, d, all4(scale))
    TILE_STORE(made_v, of_v, j0, sk, v_row, d, all4(1.0f))
}
