// The gradient of the queries for a tile of queries of one head, by matrix instructions: attention_dq.h says what is
// computed, attention_slopes.h how. The keys are read twice, first for the numbers of each row. Shared memory holds the
// tile's queries and upstream gradients, and two tiles of keys and values: one is multiplied while the other is being
// loaded (Dao, "FlashAttention-2", 2023).
#define SIDE (2u * AREA(KEYS))
AREAS(2u * AREA(TILE_ROWS) + 2u * SIDE)

// Turns scores into weights, beside the greatest that this lane has met in each of its rows, and adds them up.
RLX_FN void weigh_keys(float* s, float* top, float* total, float* delta, const float factor) {
    UNROLL for (uint half = 0u; half < 2u; half++) {
        float best = top[half];
        UNROLL for (uint n = 0u; n < SCORES / 2u; n++) best = GREATER(s[ELEMENT(n, half)], best);
        const float base = base_of(best) * factor;
        const float less = top[half] == -INFINITE ? 0.0f : EXP2(top[half] * factor - base);
        top[half] = best;
        total[half] *= less;
        delta[half] *= less;
        UNROLL for (uint n = 0u; n < SCORES / 2u; n++) {
            s[ELEMENT(n, half)] = EXP2(s[ELEMENT(n, half)] * factor - base);
            total[half] += s[ELEMENT(n, half)];
        }
    }
}

RLX_FN void attention_dq_mma_body(PTR(T) dy, PTR(T) q, PTR(T) k, PTR(T) v, PTR(M) mask, PTR(i32) lengths, PTR(O) dq,
                                  PTR(f32) rows, const uint count, const uint heads, const uint kv_heads,
                                  const uint sq, const uint sk, const uint d, const uint mb, const uint mh,
                                  const uint mq, const uint mk, const uint each, const uint window, const float scale,
                                  const float cap) {
    PLACE_QUERIES
    const uint row0 = q0 + FIRST_ROW, upstream = AREA(TILE_ROWS), side0 = 2u * AREA(TILE_ROWS);
    FETCH_TILE(pq, 0u, TILE_ROWS, q0, sq, q_row)
    FETCH_TILE(pd, upstream, TILE_ROWS, q0, sq, d_row)
    if (begin < end) {
        FETCH_TILE(pk, side0, KEYS, uint(begin), uint(len), k_row)
        FETCH_TILE(pv, side0 + AREA(KEYS), KEYS, uint(begin), uint(len), v_row)
    }

    float out_[DEEP][OUTPUTS], top[DEEP][2], total[DEEP][2], delta[DEEP][2], most[DEEP][2];
    START_SUMS
    UNROLL for (uint i = 0u; i < DEEP; i++) {
        UNROLL for (uint half = 0u; half < 2u; half++) {
            delta[i][half] = 0.0f;
            most[i][half] = 0.0f;
        }
    }
    // Scores become powers of two: exp2(s * factor - top). In the second pass `total` is the inverse of the row's sum
    // times the power of two for dS, and delta is times `total`.
    const bool bent = CAPPED || MASK == 2u || !(scale > 0.0f);
    const float factor = bent ? 1.0f : scale * LOG2_E;
    const Sight sight = {pm, sq, mq, mk, len, shift, reach, scale, cap, inverse_cap, bent};
#ifdef ROWS_KNOWN
    UNROLL for (uint i = 0u; i < DEEP; i++) {
        UNROLL for (uint half = 0u; half < 2u; half++) {
            const uint row = row0 + i * NEXT_ROW + half * 8u;
            top[i][half] = row < sq ? LOAD(f32, PLANE(rows, 0u), row) : 0.0f;
            total[i][half] = row < sq ? LOAD(f32, PLANE(rows, 1u), row) : 0.0f;
            delta[i][half] = row < sq ? LOAD(f32, PLANE(rows, 2u), row) * total[i][half] : 0.0f;
            most[i][half] = scale;
        }
    }
#endif
    uint side = side0;
    for (uint pass = FIRST_PASS; pass < 2u; pass++) {
        for (int at = begin; at < end; at += int(KEYS)) {
            const uint k0 = uint(at);
            TILE_LOADED
            BARRIER;  // the tile has been loaded, and all warps have read the other one
            const bool more = at + int(KEYS) < end;
            if (more || pass == 0u) {
                const uint other = side0 + SIDE - (side - side0), next = more ? k0 + KEYS : uint(begin);
                FETCH_TILE(pk, other, KEYS, next, uint(len), k_row)
                FETCH_TILE(pv, other + AREA(KEYS), KEYS, next, uint(len), v_row)
            }
            float s[DEEP][SCORES], dp[DEEP][SCORES];
            ROWS_BY_ROWS(s, 0u, side)
            ROWS_BY_ROWS(dp, upstream, side + AREA(KEYS))
            const bool some = bent || MASK != 0u || !ALL_SEEN(k0, int(q0), last);
            const Kept kept = kept_keys(sight, k0);
            READY(s, SCORES, CAPPED ? 0u : 1u)
            if (CAPPED) READY(dp, SCORES, 0u)
            UNROLL for (uint i = 0u; i < DEEP; i++) {
                if (CAPPED && pass != 0u) {  // before the masks change what the slope is of
                    UNROLL for (uint n = 0u; n < SCORES; n++)
                        dp[i][n] = FMA(dp[i][n], total[i][n / 2u % 2u], -delta[i][n / 2u % 2u]) *
                                   slope_of(s[i][n], scale, inverse_cap);
                }
                if (some) mask_scores(s[i], sight, kept, row0 + i * NEXT_ROW, k0);
                if (pass == 0u) {
                    weigh_keys(s[i], top[i], total[i], delta[i], factor);
                } else {
                    UNROLL for (uint n = 0u; n < SCORES; n++)
                        s[i][n] = EXP2(LESS(s[i][n], factor, top[i][n / 2u % 2u]));
                }
            }
            if (!CAPPED) READY(dp, SCORES, 0u)
            UNROLL for (uint i = 0u; i < DEEP; i++) {
                UNROLL for (uint n = 0u; n < SCORES; n++) {
                    const uint half = n / 2u % 2u;
                    if (pass != 0u) {
                        s[i][n] *= CAPPED ? dp[i][n] : FMA(dp[i][n], total[i][half], -delta[i][half]);
                    } else {
                        delta[i][half] = FMA(s[i][n], dp[i][n], delta[i][half]);
                        if (LIFTED) most[i][half] = GREATER(s[i][n] == 0.0f ? 0.0f : p_abs_f(dp[i][n]), most[i][half]);
                    }
                }
            }
            if (pass != 0u) {
                ADD_WEIGHTED(out_, s, side)
                READY(out_, OUTPUTS, 0u)
            }
            side = side0 + SIDE - (side - side0);
        }
        if (pass != 0u) break;
        UNROLL for (uint i = 0u; i < DEEP; i++) {
            UNROLL for (uint half = 0u; half < 2u; half++) {
                float best = top[i][half], greatest = most[i][half];
                UNROLL for (uint step = 1u; step < 4u; step *= 2u) {
                    best = GREATER(SHUFFLE(best, step), best);
                    greatest = GREATER(SHUFFLE(greatest, step), greatest);
                }
                const float base = base_of(best) * factor;
                const float less = top[i][half] == -INFINITE ? 0.0f : EXP2(top[i][half] * factor - base);
                float whole = total[i][half] * less, product = delta[i][half] * less;
                UNROLL for (uint step = 1u; step < 4u; step *= 2u) {
                    whole += SHUFFLE(whole, step);
                    product += SHUFFLE(product, step);
                }
                const float share = inverse(whole);
                const uint row = row0 + i * NEXT_ROW + half * 8u;
                if (LANE % 4u == 0u && row < sq) {
                    STORE(f32, PLANE(rows, 0u), row, base);
                    STORE(f32, PLANE(rows, 1u), row, share);
                    STORE(f32, PLANE(rows, 2u), row, product * share);
                    if (LIFTED) STORE(f32, PLANE(rows, 3u), row, greatest);
                }
                const float power = LIFTED ? power_for(greatest) : 1.0f;
                top[i][half] = base;
                total[i][half] = share * power;
                delta[i][half] = product * share * total[i][half];
                most[i][half] = scale * inverse_power(power);
            }
        }
    }
    COPIES_DONE
    UNROLL for (uint i = 0u; i < DEEP; i++) put_sums(to_q, out_[i], most[i], row0 + i * NEXT_ROW, sq, q_row, d);
}
