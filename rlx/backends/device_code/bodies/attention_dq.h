// The gradient of the queries for a tile of 64 queries of one head. For each row it also stores what the kernel of the
// keys' gradients needs: the greatest score, the inverse of the sum of exp(score - greatest), and delta, the sum over
// keys of P dP. It reads the keys twice, 64 at a time: first for these three numbers, then for dq = sum of dS k, with
// dS = P (dP - delta) scale and dP = dy v^T (Dao et al., "FlashAttention", 2022; delta as the sum of P dP needs no
// stored result). Constants: see attention_tiles.h.
#include "attention_tiles.h"

#ifdef ROWS_KNOWN
// The numbers of rows i … i + 3 of a head, 0 beyond its last.
RLX_FN vec4 four_rows(PTR(f32) p, const uint i, const uint sq) {
    return VEC4(i < sq ? LOAD(f32, p, i) : 0.0f, i + 1u < sq ? LOAD(f32, p, i + 1u) : 0.0f,
                i + 2u < sq ? LOAD(f32, p, i + 2u) : 0.0f, i + 3u < sq ? LOAD(f32, p, i + 3u) : 0.0f);
}
#endif

RLX_FN void attention_dq_body(PTR(T) dy, PTR(T) q, PTR(T) k, PTR(T) v, PTR(M) mask, PTR(i32) lengths, PTR(T) dq,
                              PTR(f32) rows, const uint count, const uint heads, const uint kv_heads, const uint sq,
                              const uint sk, const uint d, const uint mb, const uint mh, const uint mq, const uint mk,
                              const uint each, const uint window, const float scale, const float cap) {
    const uint tiles = (sq + TILE - 1u) / TILE;
    const uint bh = GROUP / tiles, q0 = GROUP % tiles * TILE;
    if (bh >= count) return;
    const uint b = bh / heads, h = bh % heads;
    const uint kv = h / (heads / kv_heads);
    PLACE_ROWS
    PTR(T) pd = HEAD(T, dy, Y_BY_TOKEN, b, h, heads, sq, d_row, d);
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
    vec4 top = all4(-INFINITE), total = zero, delta = zero, factor = zero;
    vec4 out_[WIDE], next_a, next_b, next_x[2];  // of four queries, COLUMN(j)
    UNROLL for (uint j = 0u; j < WIDE; j++) out_[j] = zero;
#ifdef ROWS_KNOWN
    top = four_rows(SKIP(f32, rows, bh, sq), i0, sq);
    factor = four_rows(SKIP(f32, SKIP(f32, rows, count, sq), bh, sq), i0, sq);
    delta = four_rows(SKIP(f32, SKIP(f32, rows, 2u * count, sq), bh, sq), i0, sq);
#endif
    for (uint pass = FIRST_PASS; pass < 2u; pass++) {
        PRODUCT_START(pq, q0, sq, q_row, pk, uint(begin), uint(len), k_row, d)
        for (int at = begin; at < end; at += int(TILE)) {
            const uint k0 = uint(at);
            vec4 s[4], dp[4], slope[4];  // by key: four queries
            PRODUCT(s, pq, q0, sq, q_row, pk, k0, uint(len), k_row, d)
            PRODUCT_START(pd, q0, sq, d_row, pv, k0, uint(len), v_row, d)
            PRODUCT(dp, pd, q0, sq, d_row, pv, k0, uint(len), v_row, d)
            PRODUCT_START(pq, q0, sq, q_row, pk, k0 + TILE, uint(len), k_row, d)
            if (pass == 1u) {
                APPLY_START(pk, k0, uint(len), k_row, d)
            }
            vec4 best = all4(-INFINITE);
            UNROLL for (uint j = 0u; j < 4u; j++) {
                const uint key = k0 + TX * 4u + j;
                s[j] = times4(s[j], all4(scale));
                const vec4 bent = bend4(s[j], inverse_cap);
                slope[j] = minus4(all4(1.0f), times4(bent, bent));
                if (CAPPED) s[j] = times4(bent, all4(cap));
                s[j] = VEC4(masked(pm, s[j].x, i0, key, sq, len, reach, mq, mk),
                            masked(pm, s[j].y, i0 + 1u, key, sq, len, reach, mq, mk),
                            masked(pm, s[j].z, i0 + 2u, key, sq, len, reach, mq, mk),
                            masked(pm, s[j].w, i0 + 3u, key, sq, len, reach, mq, mk));
                best = larger4(s[j], best);
            }
            if (pass == 0u) {
                BARRIER;
                pool[TY * 16u + TX] = best;
                BARRIER;
                vec4 next = top;
                for (uint i = 0u; i < 16u; i++) next = larger4(pool[TY * 16u + i], next);
                const vec4 less = exp4(top, next);
                top = next;
                vec4 sum = zero, product = zero;
                UNROLL for (uint j = 0u; j < 4u; j++) {
                    const vec4 e = exp4(s[j], top);
                    sum = plus4(sum, e);
                    product = plus4(product, times4(e, dp[j]));
                }
                BARRIER;
                pool[TY * 16u + TX] = sum;
                pool[256u + TY * 16u + TX] = product;
                BARRIER;
                sum = zero;
                product = zero;
                for (uint i = 0u; i < 16u; i++) {
                    sum = plus4(sum, pool[TY * 16u + i]);
                    product = plus4(product, pool[256u + TY * 16u + i]);
                }
                total = plus4(times4(total, less), sum);
                delta = plus4(times4(delta, less), product);
            } else {
                UNROLL for (uint j = 0u; j < 4u; j++) {
                    vec4 e = times4(times4(exp4(s[j], top), factor), minus4(dp[j], delta));
                    if (CAPPED) e = times4(e, slope[j]);
                    weights[(TX * 4u + j) * 16u + TY] = e;
                }
                APPLY(out_, pk, k0, uint(len), k_row, d)
            }
        }
        if (pass == 0u) {
            factor = VEC4(inverse(total.x), inverse(total.y), inverse(total.z), inverse(total.w));
            delta = times4(delta, factor);
            if (TX == 0u) {
                PTR(f32) tops = SKIP(f32, rows, bh, sq);
                PTR(f32) factors = SKIP(f32, SKIP(f32, rows, count, sq), bh, sq);
                PTR(f32) deltas = SKIP(f32, SKIP(f32, rows, 2u * count, sq), bh, sq);
                UNROLL for (uint i = 0u; i < 4u; i++) {
                    if (i0 + i < sq) {
                        STORE(f32, tops, i0 + i, base_of(i == 0u ? top.x : (i == 1u ? top.y : (i == 2u ? top.z : top.w))));
                        STORE(f32, factors, i0 + i,
                              i == 0u ? factor.x : (i == 1u ? factor.y : (i == 2u ? factor.z : factor.w)));
                        STORE(f32, deltas, i0 + i,
                              i == 0u ? delta.x : (i == 1u ? delta.y : (i == 2u ? delta.z : delta.w)));
                    }
                }
            }
        }
    }
    PTR(T) py = HEAD(T, dq, Q_BY_TOKEN, b, h, heads, sq, q_row, d);
    TILE_STORE(py, out_, i0, sq, q_row, d, all4(scale))
}
