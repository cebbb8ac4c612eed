// The gradients of attention whose scores stay in registers: products of tiles, and how results are stored. A lane holds
// what attention_softmax.h says. CUDA only.
#include "attention_slopes.h"
#include "attention_softmax.h"

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
