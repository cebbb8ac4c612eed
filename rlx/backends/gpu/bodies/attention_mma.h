// out = softmax(q k^T * scale + mask) v by matrix instructions, for heads of halves: products exact, sums and scores in
// f32, the weights rounded to the storage dtype before they multiply v. For CUDA: scores, weights and results stay in
// registers, as the instructions spread 16 x 16 matrices over a warp (Dao, "FlashAttention-2", 2023).
// Constants: see attention_matrix.h. Two tiles of keys and values lie in shared memory: one is worked on while the
// other is on its way.
#define SIDE (2u * TERMS * KEYS * ROW)
UNITS(TERMS * TILE_ROWS * ROW + 2u * SIDE)

RLX_FN void attention_body(PTR(T) q, PTR(T) k, PTR(T) v, PTR(M) mask, PTR(i32) lengths, PTR(O) y, const uint count,
                           const uint heads, const uint kv_heads, const uint sq, const uint sk, const uint d,
                           const uint mb, const uint mh, const uint mq, const uint mk, const uint each,
                           const uint window, const uint q_row, const uint k_row, const uint v_row,
                           const float scale, const float cap) {
    PLACE_TILE
    const uint row0 = q0 + WARP * 16u * DEEP + LANE / 4u;  // of this lane's two rows of the warp's first matrix
    const uint side0 = TERMS * TILE_ROWS * ROW;

    Sums out_[DEEP * WIDE];
    float top[DEEP * 2u], total[DEEP * 2u];
    UNROLL for (uint i = 0u; i < DEEP * WIDE; i++) SUMS_ZERO(out_[i])
    UNROLL for (uint i = 0u; i < DEEP * 2u; i++) {
        top[i] = -INFINITE;
        total[i] = 0.0f;
    }
    FETCH_ROWS(pq, 0u, TILE_ROWS, q0, sq, q_row)
    if (begin < end) {
        FETCH_ROWS(pk, side0, KEYS, uint(begin), uint(len), k_row)
        FETCH_ROWS(pv, side0 + TERMS * KEYS * ROW, KEYS, uint(begin), uint(len), v_row)
    }
    // Scores become powers of two: exp2(s * factor - greatest * factor).
    const bool bent = CAPPED || MASK == 2u || !(scale > 0.0f);
    const float factor = bent ? 1.0f : scale * LOG2_E;
    uint side = side0;
    for (int at = begin; at < end; at += int(KEYS)) {
        const uint k0 = uint(at);
        COPIES_DONE
        BARRIER;  // the tile is here, and nobody reads the other any more
        if (at + int(KEYS) < end) {
            const uint other = side0 + SIDE - (side - side0);
            FETCH_ROWS(pk, other, KEYS, k0 + KEYS, uint(len), k_row)
            FETCH_ROWS(pv, other + TERMS * KEYS * ROW, KEYS, k0 + KEYS, uint(len), v_row)
        }
        Sums s[DEEP * (KEYS / 16u)];
        UNROLL for (uint i = 0u; i < DEEP * (KEYS / 16u); i++) SUMS_ZERO(s[i])
        UNROLL for (uint c = 0u; c < WIDE; c++) {
            Matrix rows[TERMS * DEEP];
            UNROLL for (uint t = 0u; t < TERMS; t++) {
                UNROLL for (uint i = 0u; i < DEEP; i++)
                    LOAD_A(rows[t * DEEP + i], t * TILE_ROWS * ROW + (WARP * DEEP + i) * 16u * ROW + c * 2u, ROW, false)
            }
            UNROLL for (uint j = 0u; j < KEYS / 16u; j++) {
                UNROLL for (uint t = 0u; t < TERMS; t++) {
                    Matrix keys;
                    LOAD_B(keys, side + (t * KEYS + j * 16u) * ROW + c * 2u, ROW, true)
                    UNROLL for (uint i = 0u; i < (TERMS - t) * DEEP; i++) {
                        MULTIPLY(s[i % DEEP * (KEYS / 16u) + j], rows[i], keys)
                    }
                }
            }
        }
        if (bent || MASK != 0u || !ALL_SEEN(k0)) {
            UNROLL for (uint i = 0u; i < DEEP; i++) {
                UNROLL for (uint j = 0u; j < KEYS / 16u; j++) {
                    UNROLL for (uint e = 0u; e < 8u; e++) {
                        float x = s[i * (KEYS / 16u) + j].c[e];
                        if (bent) {
                            x = x * scale;
                            if (CAPPED) x = BEND(x);
                        }
                        x = masked(pm, x, row0 + i * 16u + e / 2u % 2u * 8u,
                                   k0 + j * 16u + e / 4u * 8u + LANE % 4u * 2u + e % 2u, sq, len, reach, mq, mk);
                        s[i * (KEYS / 16u) + j].c[e] = bent ? x * LOG2_E : x;
                    }
                }
            }
        }
        UNROLL for (uint i = 0u; i < DEEP; i++) {
            UNROLL for (uint half = 0u; half < 2u; half++) {
                const float before = top[i * 2u + half];
                float best = before;
                UNROLL for (uint j = 0u; j < KEYS / 16u; j++) {
                    const float* c = s[i * (KEYS / 16u) + j].c;
                    best = larger(c[half * 2u], best);
                    best = larger(c[half * 2u + 1u], best);
                    best = larger(c[half * 2u + 4u], best);
                    best = larger(c[half * 2u + 5u], best);
                }
                best = larger(SHUFFLE(best, 1u), best);
                best = larger(SHUFFLE(best, 2u), best);
                if ((best - before) * factor <= SLACK) best = before;
                const float base = base_of(best) * factor;
                if (best != before) {
                    const float less = before == -INFINITE ? 0.0f : EXP2(before * factor - base);
                    top[i * 2u + half] = best;
                    total[i * 2u + half] *= less;
                    UNROLL for (uint j = 0u; j < WIDE; j++) {
                        float* c = out_[i * WIDE + j].c;
                        c[half * 2u] *= less;
                        c[half * 2u + 1u] *= less;
                        c[half * 2u + 4u] *= less;
                        c[half * 2u + 5u] *= less;
                    }
                }
                float sum = 0.0f;
                UNROLL for (uint j = 0u; j < KEYS / 16u; j++) {
                    float* c = s[i * (KEYS / 16u) + j].c;
                    UNROLL for (uint e = 0u; e < 4u; e++) {
                        const uint n = half * 2u + e / 2u * 4u + e % 2u;
                        c[n] = EXP2(FMA(c[n], factor, -base));
                        sum += c[n];
                    }
                }
                total[i * 2u + half] += sum;
            }
        }
        UNROLL for (uint j = 0u; j < KEYS / 16u; j++) {
            Matrix weights[TERMS * DEEP];
            UNROLL for (uint i = 0u; i < DEEP; i++) {
                const float* c = s[i * (KEYS / 16u) + j].c;
                UNROLL for (uint e = 0u; e < 4u; e++) {
                    weights[i].r[e] = two_halves(c[e * 2u], c[e * 2u + 1u]);
                    if (TERMS == 2u)
                        weights[(TERMS - 1u) * DEEP + i].r[e] =
                            two_rests(weights[i].r[e], c[e * 2u], c[e * 2u + 1u]);
                }
            }
            UNROLL for (uint c = 0u; c < WIDE; c++) {
                UNROLL for (uint t = 0u; t < TERMS; t++) {
                    Matrix values;
                    LOAD_B(values, side + ((TERMS + t) * KEYS + j * 16u) * ROW + c * 2u, ROW, false)
                    UNROLL for (uint i = 0u; i < (TERMS - t) * DEEP; i++) {
                        MULTIPLY(out_[i % DEEP * WIDE + c], weights[i], values)
                    }
                }
            }
        }
        side = side0 + SIDE - (side - side0);
    }
    COPIES_DONE

    UNROLL for (uint i = 0u; i < DEEP; i++) {
        UNROLL for (uint half = 0u; half < 2u; half++) {
            float whole = total[i * 2u + half];
            whole += SHUFFLE(whole, 1u);
            whole += SHUFFLE(whole, 2u);
            const float share = inverse(whole);
            const uint row = row0 + i * 16u + half * 8u;
            if (row < sq) {
                PTR(O) py = SKIP(O, ph, row, y_row);
                UNROLL for (uint c = 0u; c < WIDE; c++) {
                    UNROLL for (uint e = 0u; e < 2u; e++) {
                        const uint column = c * 16u + e * 8u + LANE % 4u * 2u;
                        const float a = out_[i * WIDE + c].c[half * 2u + e * 4u] * share;
                        const float b = out_[i * WIDE + c].c[half * 2u + e * 4u + 1u] * share;
                        if (ALIGNED && column < d) {
                            STORE_TWO(py, column, a, b);
                        } else {
                            if (column < d) STORE(O, py, column, a);
                            if (column + 1u < d) STORE(O, py, column + 1u, b);
                        }
                    }
                }
            }
        }
    }
}
