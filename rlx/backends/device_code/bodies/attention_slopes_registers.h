// The products of attention's gradients whose scores stay in registers, by each warp for itself.
#include "attention_slopes.h"
#include "attention_slopes_sums.h"
#define AREA(rows) ((rows) * ROW)
#define AREAS(n) UNITS(n)
#define FETCH_TILE(P, base, rows, first, limit, pitch) FETCH_ROWS(P, base, rows, first, limit, pitch)
#define TILE_LOADED COPIES_DONE
// The first of a lane's two rows of its first matrix, and the rows from there to the next matrix.
#define FIRST_ROW (WARP * 16u * DEEP + LANE / 4u)
#define NEXT_ROW 16u
#define READY(sums, n, later) {}  // one statement, as by wgmma

// s = the products of this warp's rows of the tile at units[base …] with the KEYS rows at units[other …].
#define ROWS_BY_ROWS(s, base, other)                                                      \
    UNROLL for (uint i = 0u; i < DEEP; i++) {                                             \
        UNROLL for (uint n = 0u; n < SCORES; n++) s[i][n] = 0.0f;                         \
    }                                                                                     \
    UNROLL for (uint c = 0u; c < WIDE; c++) {                                             \
        Matrix left[DEEP];                                                                \
        UNROLL for (uint i = 0u; i < DEEP; i++) {                                         \
            LOAD_A(left[i], (base) + (WARP * DEEP + i) * 16u * ROW + c * 2u, ROW, false)  \
        }                                                                                 \
        UNROLL for (uint j = 0u; j < KEYS / 16u; j++) {                                   \
            Matrix right;                                                                 \
            LOAD_B(right, (other) + j * 16u * ROW + c * 2u, ROW, true)                    \
            UNROLL for (uint i = 0u; i < DEEP; i++) {                                     \
                MULTIPLY_INTO(&s[i][j * 8u], left[i], right)                              \
            }                                                                             \
        }                                                                                 \
    }
// out += the products of s, rounded to MATRIX, with the KEYS rows at units[other …].
#define ADD_WEIGHTED(out, s, other)                                                           \
    UNROLL for (uint j = 0u; j < KEYS / 16u; j++) {                                           \
        Matrix left[DEEP];                                                                    \
        UNROLL for (uint i = 0u; i < DEEP; i++) {                                             \
            UNROLL for (uint e = 0u; e < 4u; e++)                                             \
                left[i].r[e] = two_halves(s[i][j * 8u + e * 2u], s[i][j * 8u + e * 2u + 1u]); \
        }                                                                                     \
        UNROLL for (uint c = 0u; c < WIDE; c++) {                                             \
            Matrix right;                                                                     \
            LOAD_B(right, (other) + j * 16u * ROW + c * 2u, ROW, false)                       \
            UNROLL for (uint i = 0u; i < DEEP; i++) {                                         \
                MULTIPLY_INTO(&out[i][c * 8u], left[i], right)                                \
            }                                                                                 \
        }                                                                                     \
    }
