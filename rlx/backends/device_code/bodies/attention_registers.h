// out = softmax(q k^T * scale + mask) v by matrix instructions, for 16-bit operands: products are exact, sums and
// scores are f32, and the weights are rounded to the storage dtype before they multiply v. On CUDA it is known which
// thread holds which element of a 16 x 16 matrix, so scores, weights and results stay in registers (Dao,
// "FlashAttention-2", 2023). Constants: see attention_matrix.h. Shared memory holds two tiles of keys and values: one
// is multiplied while the other is being loaded.
#define SIDE (2u * TERMS * KEYS * ROW)
UNITS(TERMS * TILE_ROWS * ROW + 2u * SIDE)

RLX_FN void attention_body(PTR(T) q, PTR(T) k, PTR(T) v, PTR(M) mask, PTR(i32) lengths, PTR(O) y, ROW_SUMS
                           const uint count, const uint heads, const uint kv_heads, const uint sq, const uint sk,
                           const uint d, const uint mb, const uint mh, const uint mq, const uint mk, const uint each,
                           const uint window, const uint q_row, const uint k_row, const uint v_row,
                           const float scale, const float cap) {
    PLACE_TILE
    const uint row0 = q0 + WARP * 16u * DEEP + LANE / 4u;  // the first of this lane's two rows of its first matrix
    const uint side0 = TERMS * TILE_ROWS * ROW;

    float out_[DEEP][OUTPUTS], top[DEEP][2], total[DEEP][2];
    START_SUMS
    FETCH_ROWS(pq, 0u, TILE_ROWS, q0, sq, q_row)
    if (begin < end) {
        FETCH_ROWS(pk, side0, KEYS, uint(begin), uint(len), k_row)
        FETCH_ROWS(pv, side0 + TERMS * KEYS * ROW, KEYS, uint(begin), uint(len), v_row)
    }
    // Scores become powers of two: exp2(s * factor - greatest * factor).
    const bool bent = CAPPED || MASK == 2u || !(scale > 0.0f);
    const float factor = bent ? 1.0f : scale * LOG2_E;
    const Sight sight = {pm, sq, mq, mk, len, shift, reach, scale, cap, inverse_cap, bent};
    uint side = side0;
    for (int at = begin; at < end; at += int(KEYS)) {
        const uint k0 = uint(at);
        COPIES_DONE
        BARRIER;  // the tile has been loaded, and all warps have read the other one
        if (at + int(KEYS) < end) {
            const uint other = side0 + SIDE - (side - side0);
            FETCH_ROWS(pk, other, KEYS, k0 + KEYS, uint(len), k_row)
            FETCH_ROWS(pv, other + TERMS * KEYS * ROW, KEYS, k0 + KEYS, uint(len), v_row)
        }
        float s[DEEP][SCORES];
        UNROLL for (uint i = 0u; i < DEEP; i++) {
            UNROLL for (uint n = 0u; n < SCORES; n++) s[i][n] = 0.0f;
        }
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
                        MULTIPLY_INTO(&s[i % DEEP][j * 8u], rows[i], keys)
                    }
                }
            }
        }
        const bool some = bent || MASK != 0u || !ALL_SEEN(k0, int(q0), last);
        const Kept kept = kept_keys(sight, k0);
        UNROLL for (uint i = 0u; i < DEEP; i++) {
            if (some) mask_scores(s[i], sight, kept, row0 + i * 16u, k0);
            weigh(s[i], out_[i], top[i], total[i], factor);
        }
        UNROLL for (uint j = 0u; j < KEYS / 16u; j++) {
            Matrix weights[TERMS * DEEP];
            UNROLL for (uint i = 0u; i < DEEP; i++) {
                const float* c = &s[i][j * 8u];
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
                        MULTIPLY_INTO(&out_[i % DEEP][c * 8u], weights[i], values)
                    }
                }
            }
        }
        side = side0 + SIDE - (side - side0);
    }
    COPIES_DONE
    UNROLL for (uint i = 0u; i < DEEP; i++) put_rows(ph, out_[i], total[i], row0 + i * 16u, sq, y_row, d);
#ifdef SUM_ROWS
    PUT_ROW_SUMS(row0, 16u)
#endif
}
