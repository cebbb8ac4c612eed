// out = softmax(q k^T * scale + mask) v by matrix instructions, for 16-bit operands, on devices that do not say which
// thread of a subgroup holds which element of a matrix. Scores therefore go through shared memory, where two lanes
// share a row, and come back as weights; a factor of a whole row is spread into a matrix and multiplied. Constants: see
// attention_matrix.h. Queries stay in registers. Shared memory holds one tile of keys or of values, while registers
// already hold the next one.

// Units of a row: scores, later weights, and beside them a factor that was spread; odd, so that rows begin in different
// banks.
#define WEIGHTS (TERMS * KEYS / 8u)
#define PITCH (WEIGHTS + 4u > KEYS / 4u ? WEIGHTS + 5u : KEYS / 4u + 1u)
#define HELD ((KEYS * 2u * WIDE + 127u) / 128u)
// The queries first; then a tile of keys or values, and the scores.
#define AFTER (TERMS * KEYS * ROW + TILE_ROWS * PITCH)
UNITS(AFTER > TERMS * TILE_ROWS * ROW ? AFTER : TERMS * TILE_ROWS * ROW)

#define FETCH_HELD(P, first, limit, pitch)                                               \
    UNROLL for (uint f = 0u; f < HELD; f++) {                                            \
        const uint g = f * 128u + THREAD, r = g / (2u * WIDE), c = g % (2u * WIDE);      \
        held[f].one = UVEC4(0u, 0u, 0u, 0u);                                           \
        held[f].two = held[f].one;                                                  \
        if (r < KEYS && (first) + r < (limit) && c * 8u < d)                             \
            held[f] = eight_of(P, ((first) + r) * (pitch) + c * 8u, c * 8u, d);          \
    }
#define PLACE_HELD                                                                       \
    UNROLL for (uint f = 0u; f < HELD; f++) {                                            \
        const uint g = f * 128u + THREAD, to = g / (2u * WIDE) * ROW + g % (2u * WIDE);  \
        if (g < KEYS * 2u * WIDE) {                                                      \
            units[to] = held[f].one;                                                   \
            if (TERMS == 2u) units[to + KEYS * ROW] = held[f].two;                    \
        }                                                                                \
    }
// Stores a number of each row, which both its lanes hold, as 16 equal columns beside the weights of the warp's matrix
// i.
#define SPREAD(sums, i, x)                                                               \
    {                                                                                    \
        const uint bits = RLX_BITS(x), at0 = work + (i) * 16u * PITCH + WEIGHTS;         \
        const uint own = at0 + LANE % 16u * PITCH + side * 2u;                           \
        units[own] = UVEC4(bits, bits, bits, bits);                                      \
        units[own + 1u] = UVEC4(bits, bits, bits, bits);                                 \
        WARP_MEET;                                                                       \
        LOAD_SUMS(sums, at0, PITCH)                                                      \
    }

RLX_FN void attention_body(PTR(T) q, PTR(T) k, PTR(T) v, PTR(M) mask, PTR(i32) lengths, PTR(O) y, ROW_SUMS
                           const uint count, const uint heads, const uint kv_heads, const uint sq, const uint sk,
                           const uint d, const uint mb, const uint mh, const uint mq, const uint mk, const uint each,
                           const uint window, const uint q_row, const uint k_row, const uint v_row,
                           const float scale, const float cap) {
    PLACE_TILE
    const uint work = TERMS * KEYS * ROW + WARP * 16u * DEEP * PITCH;
    const uint side = LANE / 16u;
    const uint row0 = q0 + WARP * 16u * DEEP + LANE % 16u;  // the row of this lane in the warp's first matrix

    FETCH_ROWS(pq, 0u, TILE_ROWS, q0, sq, q_row)
    COPIES_DONE
    BARRIER;
    MATRIX_A rows[TERMS * DEEP * WIDE];
    SUMS out_[DEEP * WIDE];
    float top[DEEP], total[DEEP];
    UNROLL for (uint i = 0u; i < DEEP; i++) {
        top[i] = -INFINITE;
        total[i] = 0.0f;
        UNROLL for (uint c = 0u; c < WIDE; c++) {
            UNROLL for (uint t = 0u; t < TERMS; t++) {
                LOAD_A(rows[(t * DEEP + i) * WIDE + c], (t * TILE_ROWS + (WARP * DEEP + i) * 16u) * ROW + c * 2u, ROW, false)
            }
            SUMS_ZERO(out_[i * WIDE + c])
        }
    }
    Terms held[HELD];
    FETCH_HELD(pk, uint(begin), uint(len), k_row)
    BARRIER;
    for (int at = begin; at < end; at += int(KEYS)) {
        const uint k0 = uint(at);
        PLACE_HELD
        BARRIER;
        FETCH_HELD(pv, k0, uint(len), v_row)
        UNROLL for (uint j = 0u; j < KEYS / 16u; j++) {
            SUMS s[DEEP];
            UNROLL for (uint i = 0u; i < DEEP; i++) {
                SUMS_ZERO(s[i])
            }
            UNROLL for (uint c = 0u; c < WIDE; c++) {
                UNROLL for (uint t = 0u; t < TERMS; t++) {
                    MATRIX_B keys;
                    LOAD_B(keys, (t * KEYS + j * 16u) * ROW + c * 2u, ROW, true)
                    UNROLL for (uint i = 0u; i < (TERMS - t) * DEEP; i++) {
                        MULTIPLY(s[i % DEEP], rows[i * WIDE + c], keys)
                    }
                }
            }
            UNROLL for (uint i = 0u; i < DEEP; i++) {
                STORE_SUMS(s[i], work + i * 16u * PITCH + j * 4u, PITCH)
            }
        }
        BARRIER;  // all scores are stored, and all warps have read the keys
        PLACE_HELD
        const bool some = MASK != 0u || !ALL_SEEN(k0, int(q0), last);
        UNROLL for (uint i = 0u; i < DEEP; i++) {
            const uint mine = work + (i * 16u + LANE % 16u) * PITCH, row = row0 + i * 16u;
            vec4 x[KEYS / 8u];
            float best = top[i];
            UNROLL for (uint n = 0u; n < KEYS / 8u; n++) {
                const uvec4 w = units[mine + side * (KEYS / 8u) + n];
                const uint key = k0 + (side * (KEYS / 8u) + n) * 4u;
                vec4 z = VEC4(RLX_FLOAT(w.x) * scale, RLX_FLOAT(w.y) * scale, RLX_FLOAT(w.z) * scale,
                              RLX_FLOAT(w.w) * scale);
                if (CAPPED) z = VEC4(BEND(z.x), BEND(z.y), BEND(z.z), BEND(z.w));
                if (some)
                    z = VEC4(masked(pm, z.x, row, key, sq, len, reach, mq, mk),
                             masked(pm, z.y, row, key + 1u, sq, len, reach, mq, mk),
                             masked(pm, z.z, row, key + 2u, sq, len, reach, mq, mk),
                             masked(pm, z.w, row, key + 3u, sq, len, reach, mq, mk));
                x[n] = z;
                best = larger(z.w, larger(z.z, larger(z.y, larger(z.x, best))));
            }
            best = larger(SHUFFLE(best, 16u), best);
            const float base = base_of(best) * LOG2_E;
            const float less = top[i] == -INFINITE ? 0.0f : EXP2(top[i] * LOG2_E - base);
            top[i] = best;
            float sum = 0.0f;
            WARP_MEET;  // all lanes have read their scores, which the weights overwrite
            UNROLL for (uint n = 0u; n < KEYS / 16u; n++) {
                const vec4 a = x[n * 2u], b = x[n * 2u + 1u];
                const vec4 p = VEC4(EXP2(FMA(a.x, LOG2_E, -base)), EXP2(FMA(a.y, LOG2_E, -base)),
                                    EXP2(FMA(a.z, LOG2_E, -base)), EXP2(FMA(a.w, LOG2_E, -base)));
                const vec4 r = VEC4(EXP2(FMA(b.x, LOG2_E, -base)), EXP2(FMA(b.y, LOG2_E, -base)),
                                    EXP2(FMA(b.z, LOG2_E, -base)), EXP2(FMA(b.w, LOG2_E, -base)));
                sum += p.x + p.y + p.z + p.w + (r.x + r.y + r.z + r.w);
                const uvec4 w =
                    UVEC4(two_halves(p.x, p.y), two_halves(p.z, p.w), two_halves(r.x, r.y), two_halves(r.z, r.w));
                units[mine + side * (KEYS / 16u) + n] = w;
                if (TERMS == 2u)
                    units[mine + KEYS / 8u + side * (KEYS / 16u) + n] =
                        UVEC4(two_rests(w.x, p.x, p.y), two_rests(w.y, p.z, p.w), two_rests(w.z, r.x, r.y),
                              two_rests(w.w, r.z, r.w));
            }
            total[i] = FMA(total[i], less, sum);
            SUMS spread;
            SPREAD(spread, i, less)
            UNROLL for (uint c = 0u; c < WIDE; c++) {
                SUMS_TIMES(out_[i * WIDE + c], spread)
            }
        }
        BARRIER;  // values and weights are stored
        FETCH_HELD(pk, k0 + KEYS, uint(len), k_row)
        UNROLL for (uint j = 0u; j < KEYS / 16u; j++) {
            MATRIX_A weights[TERMS * DEEP];
            UNROLL for (uint i = 0u; i < TERMS * DEEP; i++) {
                LOAD_A(weights[i], work + i % DEEP * 16u * PITCH + i / DEEP * (KEYS / 8u) + j * 2u, PITCH, false)
            }
            UNROLL for (uint c = 0u; c < WIDE; c++) {
                UNROLL for (uint t = 0u; t < TERMS; t++) {
                    MATRIX_B values;
                    LOAD_B(values, (t * KEYS + j * 16u) * ROW + c * 2u, ROW, false)
                    UNROLL for (uint i = 0u; i < (TERMS - t) * DEEP; i++) {
                        MULTIPLY(out_[i % DEEP * WIDE + c], weights[i], values)
                    }
                }
            }
        }
        BARRIER;  // all warps have read the values
    }

    UNROLL for (uint i = 0u; i < DEEP; i++) {
        float whole = total[i];
        whole += SHUFFLE(whole, 16u);
#ifdef SUM_ROWS
        if (side == 0u) PUT_ROW_SUM(row0 + i * 16u, base_of(top[i]) * LOG2_E, p_log2_f(whole));
#endif
        SUMS share;
        SPREAD(share, i, inverse(whole))
        const uint mine = work + (i * 16u + LANE % 16u) * PITCH, row = row0 + i * 16u;
        PTR(O) py = SKIP(O, ph, row < sq ? row : 0u, y_row);
        UNROLL for (uint c = 0u; c < WIDE; c++) {
            SUMS_TIMES(out_[i * WIDE + c], share)
            WARP_MEET;
            STORE_SUMS(out_[i * WIDE + c], work + i * 16u * PITCH, PITCH)
            WARP_MEET;
            UNROLL for (uint n = 0u; n < 2u; n++) {
                const uvec4 w = units[mine + side * 2u + n];
                const vec4 z = VEC4(RLX_FLOAT(w.x), RLX_FLOAT(w.y), RLX_FLOAT(w.z), RLX_FLOAT(w.w));
                const uint column = c * 16u + side * 8u + n * 4u;
                if (row < sq && ALIGNED && column < d) {
                    STORE4(O, py, column / 4u, z);
                } else if (row < sq) {
                    if (column < d) STORE(O, py, column, z.x);
                    if (column + 1u < d) STORE(O, py, column + 1u, z.y);
                    if (column + 2u < d) STORE(O, py, column + 2u, z.z);
                    if (column + 3u < d) STORE(O, py, column + 3u, z.w);
                }
            }
        }
    }
}
