// The products of attention's gradients whose scores stay in registers, by the four warps together: wgmma.h. WIDE is 4
// or 8, KEYS 64, and DEEP the number of sets of 64 rows of a workgroup.
#include "attention_slopes.h"
#include "attention_slopes_sums.h"
#include "attention_panels.h"
#include "wgmma.h"
#define AREA(rows) ((rows) * 2u * WIDE)
#define AREAS(n) PANELS_IN_UNITS(n)
#define FETCH_TILE(P, base, rows, first, limit, pitch) FETCH_PANELS(P, base, rows, first, limit, pitch)
#define TILE_LOADED COPIES_DONE COPIES_SEEN
#define FIRST_ROW (WARP * 16u + LANE / 4u)
#define NEXT_ROW 64u
#define WG_SCORES RLX_WG_CALL(rows, 64, MATRIX)
#if WIDE == 8
#define WG_SUMS RLX_WG_CALL(columns, 128, MATRIX)
#else
#define WG_SUMS RLX_WG_CALL(columns, 64, MATRIX)
#endif

// s = the products of the workgroup's rows of the tile at units[base …] with the KEYS rows at units[other …].
#define ROWS_BY_ROWS(s, base, other)                                                                      \
    WG_READY                                                                                              \
    UNROLL for (uint i = 0u; i < DEEP; i++) {                                                             \
        UNROLL for (uint c = 0u; c < WIDE; c++) {                                                         \
            const uint panel = c / 4u, unit = c % 4u * 2u;                                                \
            WG_SCORES(s[i], WG_MATRIX((base) + (panel * TILE_ROWS + i * 64u) * 8u + unit, 1u),            \
                      WG_MATRIX((other) + panel * KEYS * 8u + unit, 1u), c);                              \
        }                                                                                                 \
    }                                                                                                     \
    WG_SENT
// out += the products of s, rounded to MATRIX, with the KEYS rows at units[other …].
#define ADD_WEIGHTED(out, s, other)                                                       \
    UNROLL for (uint i = 0u; i < DEEP; i++) {                                             \
        Matrix left[KEYS / 16u];                                                          \
        UNROLL for (uint n = 0u; n < KEYS / 4u; n++)                                      \
            left[n / 4u].r[n % 4u] = two_halves(s[i][n * 2u], s[i][n * 2u + 1u]);         \
        WG_READY                                                                          \
        UNROLL for (uint j = 0u; j < KEYS / 16u; j++)                                     \
            WG_SUMS(out[i], left[j].r, WG_MATRIX((other) + j * 128u, KEYS * 8u));         \
        WG_SENT                                                                           \
    }
// Waits for the n sums of a thread in each set of `sums`; `later` sets of products may still be on their way.
#define READY(sums, n, later)                                                             \
    {                                                                                     \
        WG_WAIT(later)                                                                    \
        UNROLL for (uint i = 0u; i < DEEP; i++) { HOLD(sums[i], n) }                      \
    }
