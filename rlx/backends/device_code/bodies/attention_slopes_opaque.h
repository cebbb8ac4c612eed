// The gradients of attention whose scores go through shared memory, 16 columns at a time: a warp stores a matrix of
// scores and one of dP in its rows of `work`, where two lanes share a row, and loads weights from there. The warp's own
// 16 rows of both operands stay in registers, and so do the next KEYS rows of the others while these are multiplied.
// DEEP is 1.
#include "attention_slopes.h"
// Units of a row: 16 scores and 16 of dP, later their weights; odd, so that rows begin in different banks.
#define PITCH 9u
#define TILE (KEYS * ROW)
#define HELD ((KEYS * 2u * WIDE + 127u) / 128u)
#define FETCH_HELD(to, P, first, limit, pitch)                                            \
    UNROLL for (uint f = 0u; f < HELD; f++) {                                             \
        const uint g = f * 128u + THREAD, r = g / (2u * WIDE), c = g % (2u * WIDE);       \
        to[f] = UVEC4(0u, 0u, 0u, 0u);                                                    \
        if (r < KEYS && (first) + r < (limit) && c * 8u < d)                              \
            to[f] = eight_of(P, ((first) + r) * (pitch) + c * 8u, c * 8u, d).one;         \
    }
#define PLACE_HELD(from, base)                                                                       \
    UNROLL for (uint f = 0u; f < HELD; f++) {                                                        \
        const uint g = f * 128u + THREAD;                                                            \
        if (g < KEYS * 2u * WIDE) units[(base) + g / (2u * WIDE) * ROW + g % (2u * WIDE)] = from[f]; \
    }
// The rows of this warp of P, from row `first` of the tile on, as matrices.
#define LOAD_ROWS(matrices, P, first, limit, pitch)                                       \
    {                                                                                     \
        FETCH_ROWS(P, 0u, TILE_ROWS, first, limit, pitch)                                 \
        COPIES_DONE                                                                       \
        BARRIER;                                                                          \
        UNROLL for (uint c = 0u; c < WIDE; c++) {                                         \
            LOAD_A(matrices[c], WARP * 16u * ROW + c * 2u, ROW, false)                    \
        }                                                                                 \
        BARRIER;                                                                          \
    }

// `work` gets scores and dP of this warp's rows with 16 rows of the tiles at units[0] and units[TILE].
#define STORE_SCORES(left, right, j)                                                      \
    {                                                                                     \
        SUMS s, dp;                                                                       \
        SUMS_ZERO(s)                                                                      \
        SUMS_ZERO(dp)                                                                     \
        UNROLL for (uint c = 0u; c < WIDE; c++) {                                         \
            MATRIX_B one, two;                                                            \
            LOAD_B(one, (j) * 16u * ROW + c * 2u, ROW, true)                              \
            LOAD_B(two, TILE + (j) * 16u * ROW + c * 2u, ROW, true)                       \
            MULTIPLY(s, left[c], one)                                                     \
            MULTIPLY(dp, right[c], two)                                                   \
        }                                                                                 \
        STORE_SUMS(s, work, PITCH)                                                        \
        STORE_SUMS(dp, work + 4u, PITCH)                                                  \
        WARP_MEET;                                                                        \
    }
// Eight floats of this lane's row, from unit `at` on.
#define LOAD_EIGHT(eight, at)                                                             \
    UNROLL for (uint n = 0u; n < 2u; n++) {                                               \
        const uvec4 w = units[(at) + n];                                                  \
        eight[n * 4u] = RLX_FLOAT(w.x);                                                   \
        eight[n * 4u + 1u] = RLX_FLOAT(w.y);                                              \
        eight[n * 4u + 2u] = RLX_FLOAT(w.z);                                              \
        eight[n * 4u + 3u] = RLX_FLOAT(w.w);                                              \
    }
#define STORE_EIGHT(at, eight)                                                            \
    units[at] = UVEC4(two_halves(eight[0], eight[1]), two_halves(eight[2], eight[3]),     \
                      two_halves(eight[4], eight[5]), two_halves(eight[6], eight[7]));
// sums += the weights of this warp, from unit `at` on, with 16 rows of the tile at units[base].
#define ADD_WEIGHTED(sums, at, base, j)                                                   \
    {                                                                                     \
        MATRIX_A weights;                                                                 \
        LOAD_A(weights, at, PITCH, false)                                                 \
        UNROLL for (uint c = 0u; c < WIDE; c++) {                                         \
            MATRIX_B other;                                                               \
            LOAD_B(other, (base) + (j) * 16u * ROW + c * 2u, ROW, false)                  \
            MULTIPLY(sums[c], weights, other)                                             \
        }                                                                                 \
    }
// Writes this warp's rows of sums, each times `factor`, unless they lie beyond `limit`; `row` is this lane's.
#define PUT_SUMS(head, sums, factor, row, limit, pitch)                                   \
    UNROLL for (uint c = 0u; c < WIDE; c++) {                                             \
        WARP_MEET;                                                                        \
        STORE_SUMS(sums[c], work, PITCH)                                                  \
        WARP_MEET;                                                                        \
        PTR(O) to = SKIP(O, head, (row) < (limit) ? (row) : 0u, pitch);                   \
        UNROLL for (uint n = 0u; n < 2u; n++) {                                           \
            const uvec4 w = units[mine + side * 2u + n];                                  \
            const vec4 z = VEC4(RLX_FLOAT(w.x) * (factor), RLX_FLOAT(w.y) * (factor),     \
                                RLX_FLOAT(w.z) * (factor), RLX_FLOAT(w.w) * (factor));    \
            const uint column = c * 16u + side * 8u + n * 4u;                             \
            if ((row) < (limit) && ALIGNED && column < d) {                               \
                STORE4(O, to, column / 4u, z);                                            \
            } else if ((row) < (limit)) {                                                 \
                if (column < d) STORE(O, to, column, z.x);                                \
                if (column + 1u < d) STORE(O, to, column + 1u, z.y);                      \
                if (column + 2u < d) STORE(O, to, column + 2u, z.z);                      \
                if (column + 3u < d) STORE(O, to, column + 3u, z.w);                      \
            }                                                                             \
        }                                                                                 \
    }
