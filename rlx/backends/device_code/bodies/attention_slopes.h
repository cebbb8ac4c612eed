// What the gradients of attention by matrix instructions share: attention_matrix.h, products of tiles whose results stay
// in registers, and the numbers of a row. DEEP: the matrices of 16 rows that a warp has; KEYS: the rows of the other
// operand, at a time. A lane holds what attention_softmax.h says, whose scores these are. CUDA only.
// Of each query, `rows` has the greatest score as a power of two, the inverse of the sum of weights beside it, delta, which
// is the sum over keys of P dP, and the greatest |dP|: four planes of (count, sq). P = exp2(score - the first) times the
// second, and dS = P (dP - delta) times the slope of the soft cap. Scores are rounded before the greatest is taken off,
// so that its own weight is 1 however large it is.
// A half of 5 bits of exponent holds few of the magnitudes that P and dS have. So it holds 2^15 P, at most 2^15, and
// dS times the power of two by which |dP| of all rows stays below 2^14.
#define TERMS 1u
#include "attention_matrix.h"
#include "attention_softmax.h"
#define LIFT_f16 32768.0f
#define LIFT_bf16 1.0f
#define LIFT RLX_JOIN(LIFT_, MATRIX)
#define LIFTED (LIFT > 1.0f)
#define PLANE(rows, n) SKIP(f32, SKIP(f32, rows, (n) * count, sq), bh, sq)

// The power of two that brings numbers up to `most` below 2^14, and its inverse; neither is zero or infinite.
RLX_FN float power_for(const float most) {
    const uint e = RLX_BITS(most) >> 23 & 255u;
    return RLX_FLOAT((e < 14u ? 253u : 267u - e) << 23);
}
RLX_FN float inverse_power(const float power) { return RLX_FLOAT(0x7f000000u - RLX_BITS(power)); }

// s = the products of this warp's rows of the tile at units[base …] with the KEYS rows at units[other …].
#define ROWS_BY_ROWS(s, base, other)                                                                      \
    UNROLL for (uint i = 0u; i < DEEP; i++) {                                                             \
        UNROLL for (uint n = 0u; n < SCORES; n++) s[i][n] = 0.0f;                                         \
    }                                                                                                     \
    UNROLL for (uint c = 0u; c < WIDE; c++) {                                                             \
        Matrix left[DEEP];                                                                                \
        UNROLL for (uint i = 0u; i < DEEP; i++) {                                                         \
            LOAD_A(left[i], (base) + (WARP * DEEP + i) * 16u * ROW + c * 2u, ROW, false)                  \
        }                                                                                                 \
        UNROLL for (uint j = 0u; j < KEYS / 16u; j++) {                                                   \
            Matrix right;                                                                                 \
            LOAD_B(right, (other) + j * 16u * ROW + c * 2u, ROW, true)                                    \
            UNROLL for (uint i = 0u; i < DEEP; i++) {                                                     \
                MULTIPLY_INTO(&s[i][j * 8u], left[i], right)                                              \
            }                                                                                             \
        }                                                                                                 \
    }
// out += the products of s, rounded to MATRIX, with the KEYS rows at units[other …].
#define ADD_WEIGHTED(out, s, other)                                                                       \
    UNROLL for (uint j = 0u; j < KEYS / 16u; j++) {                                                       \
        Matrix left[DEEP];                                                                                \
        UNROLL for (uint i = 0u; i < DEEP; i++) {                                                         \
            UNROLL for (uint e = 0u; e < 4u; e++)                                                         \
                left[i].r[e] = two_halves(s[i][j * 8u + e * 2u], s[i][j * 8u + e * 2u + 1u]);             \
        }                                                                                                 \
        UNROLL for (uint c = 0u; c < WIDE; c++) {                                                         \
            Matrix right;                                                                                 \
            LOAD_B(right, (other) + j * 16u * ROW + c * 2u, ROW, false)                                   \
            UNROLL for (uint i = 0u; i < DEEP; i++) {                                                     \
                MULTIPLY_INTO(&out[i][c * 8u], left[i], right)                                            \
            }                                                                                             \
        }                                                                                                 \
    }

// The slope of the soft cap where a product is x: 1 - tanh^2 = 4 r (1 - r) with r = 1 / (exp(2 x scale / cap) + 1).
RLX_FN float slope_of(const float x, const float scale, const float inverse_cap) {
    const float r = QUICK_RECIP(EXP2(x * scale * (2.0f * LOG2_E) * inverse_cap) + 1.0f);
    return 4.0f * r * (1.0f - r);
}

// Writes rows `row` and row + 8 of a head's sums, each times `factor`, unless they lie beyond `limit`.
RLX_FN void put_sums(PTR(O) head, const float* out, const float* factor, const uint row, const uint limit, const uint d) {
    UNROLL for (uint half = 0u; half < 2u; half++) {
        if (row + half * 8u < limit) {
            PTR(O) p = SKIP(O, head, row + half * 8u, d);
            UNROLL for (uint n = 0u; n < OUTPUTS / 2u; n += 2u) {
                const uint column = COLUMN(n);
                const float a = out[ELEMENT(n, half)] * factor[half], b = out[ELEMENT(n + 1u, half)] * factor[half];
                if (ALIGNED) {  // and d a multiple of eight
                    if (n / 2u * 8u < d) STORE_TWO(p, column, a, b);
                } else {
                    if (column < d) STORE(O, p, column, a);
                    if (column + 1u < d) STORE(O, p, column + 1u, b);
                }
            }
        }
    }
}
