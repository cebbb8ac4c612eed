// The gradient of the queries for a tile of 64 queries of one head, by matrix instructions: attention_dq.h says what is
// computed, attention_slopes_opaque.h how. The keys are read twice, first for the numbers of each row.
#include "attention_slopes_opaque.h"
// The queries first, then the upstream gradients; then a tile of keys, one of values, and the scores.
#define AFTER (2u * TILE + TILE_ROWS * PITCH)
UNITS(AFTER > TILE_ROWS * ROW ? AFTER : TILE_ROWS * ROW)

RLX_FN void attention_dq_mma_body(PTR(T) dy, PTR(T) q, PTR(T) k, PTR(T) v, PTR(M) mask, PTR(i32) lengths, PTR(O) dq,
                                  PTR(f32) rows, const uint count, const uint heads, const uint kv_heads,
                                  const uint sq, const uint sk, const uint d, const uint mb, const uint mh,
                                  const uint mq, const uint mk, const uint each, const uint window, const float scale,
                                  const float cap) {
    PLACE_QUERIES
    const uint work = 2u * TILE + WARP * 16u * PITCH, side = LANE / 16u, mine = work + LANE % 16u * PITCH;
    const uint row = q0 + WARP * 16u + LANE % 16u;
    MATRIX_A queries[WIDE], upstream[WIDE];
    LOAD_ROWS(queries, pq, q0, sq, q_row)
    LOAD_ROWS(upstream, pd, q0, sq, d_row)
    SUMS out_[WIDE];
    UNROLL for (uint c = 0u; c < WIDE; c++) {
        SUMS_ZERO(out_[c])
    }
    uvec4 next_k[HELD], next_v[HELD];
    FETCH_HELD(next_k, pk, uint(begin), uint(len), k_row)
    FETCH_HELD(next_v, pv, uint(begin), uint(len), v_row)
    float top = -INFINITE, total = 0.0f, delta = 0.0f, most = 0.0f;  // at first of this lane's keys alone
#ifdef ROWS_KNOWN
    top = row < sq ? LOAD(f32, PLANE(rows, 0u), row) : 0.0f;
    total = row < sq ? LOAD(f32, PLANE(rows, 1u), row) : 0.0f;
    delta = row < sq ? LOAD(f32, PLANE(rows, 2u), row) : 0.0f;
    most = scale;
#endif
    for (uint pass = FIRST_PASS; pass < 2u; pass++) {
        for (int at = begin; at < end; at += int(KEYS)) {
            const uint k0 = uint(at);
            PLACE_HELD(next_k, 0u)
            PLACE_HELD(next_v, TILE)
            BARRIER;
            const uint next = at + int(KEYS) < end ? k0 + KEYS : uint(begin);
            if (next > k0 || pass == 0u) {
                FETCH_HELD(next_k, pk, next, uint(len), k_row)
                FETCH_HELD(next_v, pv, next, uint(len), v_row)
            }
            const bool some = MASK != 0u || !ALL_SEEN(k0, int(q0), last);
            UNROLL for (uint j = 0u; j < KEYS / 16u; j++) {
                STORE_SCORES(queries, upstream, j)
                float x[8], dp[8];
                LOAD_EIGHT(x, mine + side * 2u)
                LOAD_EIGHT(dp, mine + 4u + side * 2u)
                WARP_MEET;  // all lanes have read their scores, which weights and the next scores overwrite
                float best = top;
                UNROLL for (uint n = 0u; n < 8u; n++) {
                    if (CAPPED && pass != 0u) dp[n] = (dp[n] - delta) * slope_of(x[n], scale, inverse_cap);
                    x[n] *= scale;
                    if (CAPPED) x[n] = BEND(x[n]);
                    if (some) x[n] = masked(pm, x[n], row, k0 + j * 16u + side * 8u + n, sq, len, reach, mq, mk);
                    best = larger(x[n], best);
                }
                if (pass == 0u) {
                    const float base = base_of(best) * LOG2_E;
                    const float less = top == -INFINITE ? 0.0f : EXP2(top * LOG2_E - base);
                    top = best;
                    total *= less;
                    delta *= less;
                    UNROLL for (uint n = 0u; n < 8u; n++) {
                        const float weight = EXP2(x[n] * LOG2_E - base);
                        total += weight;
                        delta = FMA(weight, dp[n], delta);
                        if (LIFTED) most = larger(x[n] == -INFINITE ? 0.0f : p_abs_f(dp[n]), most);
                    }
                } else {
                    UNROLL for (uint n = 0u; n < 8u; n++) {
                        const float weight = EXP2(LESS(x[n], LOG2_E, top)) * total;
                        x[n] = weight * (CAPPED ? dp[n] : dp[n] - delta);
                    }
                    STORE_EIGHT(mine + side, x)
                    WARP_MEET;
                    ADD_WEIGHTED(out_, work, 0u, j)
                    WARP_MEET;
                }
            }
            BARRIER;  // all warps have read the tile
        }
        if (pass != 0u) break;
        const float best = larger(SHUFFLE(top, 16u), top), greatest = larger(SHUFFLE(most, 16u), most);
        const float base = base_of(best) * LOG2_E, less = top == -INFINITE ? 0.0f : EXP2(top * LOG2_E - base);
        const float sum = total * less, part = delta * less;
        const float share = inverse(sum + SHUFFLE(sum, 16u)), product = part + SHUFFLE(part, 16u);
        const float power = LIFTED ? power_for(greatest) : 1.0f;
        top = base;
        total = share * power;
        delta = product * share;
        most = scale * inverse_power(power);
        if (side == 0u && row < sq) {
            STORE(f32, PLANE(rows, 0u), row, base);
            STORE(f32, PLANE(rows, 1u), row, share);
            STORE(f32, PLANE(rows, 2u), row, delta);
            if (LIFTED) STORE(f32, PLANE(rows, 3u), row, greatest);
        }
    }
    PUT_SUMS(to_q, out_, most, row, sq, q_row)
}
