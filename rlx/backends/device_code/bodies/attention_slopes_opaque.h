// The gradients of attention whose scores go through shared memory: a warp stores its scores with the KEYS rows of a tile
// and dP in its rows of `work`, where two lanes share a row, and loads weights from there. The warp's own 16 rows of
// both operands stay in registers, and so do the next KEYS rows of the others while these are multiplied. DEEP is 1.
#include "attention_slopes.h"
// Units of a row: scores and dP, later their weights; odd, so that rows begin in different banks. A lane has half a row.
#define OF_DP (KEYS / 4u)
#define PITCH (2u * OF_DP + 1u)
#define MINE (KEYS / 2u)
#define TILE (KEYS * ROW)
#define HELD ((KEYS * 2u * WIDE + 127u) / 128u)
#define FETCH_HELD(to, P, first, limit)                                                   \
    UNROLL for (uint f = 0u; f < HELD; f++) {                                             \
        const uint g = f * 128u + THREAD, r = g / (2u * WIDE), c = g % (2u * WIDE);       \
        to[f] = UVEC4(0u, 0u, 0u, 0u);                                                    \
        if (r < KEYS && (first) + r < (limit) && c * 8u < d)                              \
            to[f] = eight_of(P, ((first) + r) * d + c * 8u, c * 8u, d).one;               \
    }
#define PLACE_HELD(from, base)                                                                       \
    UNROLL for (uint f = 0u; f < HELD; f++) {                                                        \
        const uint g = f * 128u + THREAD;                                                            \
        if (g < KEYS * 2u * WIDE) units[(base) + g / (2u * WIDE) * ROW + g % (2u * WIDE)] = from[f]; \
    }
// The rows of this warp of P, from row `first` of the tile on, as matrices.
#define LOAD_ROWS(matrices, P, first, limit)                                              \
    {                                                                                     \
        FETCH_ROWS(P, 0u, TILE_ROWS, first, limit, d)                                     \
        COPIES_DONE                                                                       \
        BARRIER;                                                                          \
        UNROLL for (uint c = 0u; c < WIDE; c++) {                                         \
            LOAD_A(matrices[c], WARP * 16u * ROW + c * 2u, ROW, false)                    \
        }                                                                                 \
        BARRIER;                                                                          \
    }

// `work` gets scores and dP of this warp's rows with the tiles at units[0] and units[TILE]; x and dp this lane's part.
#define FETCH_SCORES(x, dp, left, right)                                                  \
    UNROLL for (uint j = 0u; j < KEYS / 16u; j++) {                                       \
        SUMS of_x, of_dp;                                                                 \
        SUMS_ZERO(of_x)                                                                   \
        SUMS_ZERO(of_dp)                                                                  \
        UNROLL for (uint c = 0u; c < WIDE; c++) {                                         \
            MATRIX_B one, two;                                                            \
            LOAD_B(one, j * 16u * ROW + c * 2u, ROW, true)                                \
            LOAD_B(two, TILE + j * 16u * ROW + c * 2u, ROW, true)                         \
            MULTIPLY(of_x, left[c], one)                                                  \
            MULTIPLY(of_dp, right[c], two)                                                \
        }                                                                                 \
        STORE_SUMS(of_x, work + j * 4u, PITCH)                                            \
        STORE_SUMS(of_dp, work + OF_DP + j * 4u, PITCH)                                   \
    }                                                                                     \
    WARP_MEET;                                                                            \
    LOAD_MINE(x, mine + side * (KEYS / 8u))                                               \
    LOAD_MINE(dp, mine + OF_DP + side * (KEYS / 8u))                                      \
    WARP_MEET;
#define LOAD_MINE(numbers, at)                                                            \
    UNROLL for (uint n = 0u; n < MINE; n += 4u) {                                         \
        const uvec4 w = units[(at) + n / 4u];                                             \
        numbers[n] = RLX_FLOAT(w.x);                                                      \
        numbers[n + 1u] = RLX_FLOAT(w.y);                                                 \
        numbers[n + 2u] = RLX_FLOAT(w.z);                                                 \
        numbers[n + 3u] = RLX_FLOAT(w.w);                                                 \
    }
#define STORE_MINE(at, numbers)                                                           \
    UNROLL for (uint n = 0u; n < MINE; n += 8u)                                           \
        units[(at) + side * (KEYS / 16u) + n / 8u] =                                      \
            UVEC4(two_halves(numbers[n], numbers[n + 1u]), two_halves(numbers[n + 2u], numbers[n + 3u]), \
                  two_halves(numbers[n + 4u], numbers[n + 5u]), two_halves(numbers[n + 6u], numbers[n + 7u]));
// sums += the weights of this warp, from unit `at` on, with the rows of the tile at units[base].
#define ADD_WEIGHTED(sums, at, base)                                                      \
    UNROLL for (uint j = 0u; j < KEYS / 16u; j++) {                                       \
        MATRIX_A weights;                                                                 \
        LOAD_A(weights, (at) + j * 2u, PITCH, false)                                      \
        UNROLL for (uint c = 0u; c < WIDE; c++) {                                         \
            MATRIX_B other;                                                               \
            LOAD_B(other, (base) + j * 16u * ROW + c * 2u, ROW, false)                    \
            MULTIPLY(sums[c], weights, other)                                             \
        }                                                                                 \
    }
// Writes this warp's rows of sums, each times `factor`, unless they lie beyond `limit`; `row` is this lane's.
#define PUT_SUMS(head, sums, factor, row, limit)                                          \
    UNROLL for (uint c = 0u; c < WIDE; c++) {                                             \
        WARP_MEET;                                                                        \
        STORE_SUMS(sums[c], work, PITCH)                                                  \
        WARP_MEET;                                                                        \
        PTR(O) to = SKIP(O, head, (row) < (limit) ? (row) : 0u, d);                       \
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
