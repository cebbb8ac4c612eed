// y (m, n) = x times the transposed packed rows of q, for few rows of x, ROWS of them a group: see packed.h. ACROSS
// threads share a row of q, up to 32, and add up every so many chunks of it; X_QUADS: x may be read four at a time. An
// element of q is a float in a register, which every row of x multiplies. GROUPED: see packed_experts.h.
#define TABLED
#include "packed.h"
#include "packed_elements.h"
#include "packed_experts.h"
#include "quads.h"
#define MANY_1 1u
#define MANY_4 4u
#define MANY_16 16u
#define MANY RLX_JOIN(MANY_, ROWS)
#define COLUMNS (256u / ACROSS)

RLX_FN float plus(const float a, const float b) { return a + b; }
LANES_OP(lane_sum, ACROSS, plus)
RLX_QUAD(quad_x, T, X_QUADS)

// Adds four elements of a row of q, from e on, times those of each row of x. What a row that is not there adds up is
// not stored.
#define TIMES_ROWS(g, e)                                                                  \
    UNROLL for (uint r = 0u; r < MANY; r++) {                                             \
        const vec4 a = quad_x(px, r < share.rows ? r : 0u, e, share.rows, k, k);          \
        acc[r] = FMA(a.x, g.x, acc[r]);                                                   \
        acc[r] = FMA(a.y, g.y, acc[r]);                                                   \
        acc[r] = FMA(a.z, g.z, acc[r]);                                                   \
        acc[r] = FMA(a.w, g.w, acc[r]);                                                   \
    }

RLX_FN void packed_rows_body(PTR(T) x, PTR(u32) q, PTR(u32) book, PTR(i32) sizes, PTR(T) y, const uint m,
                             const uint n, const uint blocks, const uint pitch, const uint experts) {
    const uint k = blocks * BLOCK, tiles = (n + COLUMNS - 1u) / COLUMNS;
    const uint column = GROUP % tiles * COLUMNS + THREAD / ACROSS, lane = THREAD % ACROSS;
    const Share share = share_of(sizes, GROUP / tiles, m, MANY, experts);
    if (share.rows == 0u) return;
    if (IS_TABLE) {
        fill_table();
        BARRIER;
    }
    PTR(T) px = SKIP(T, x, share.first, k);
    PTR(T) py = SKIP(T, y, share.first, n);
    float acc[MANY];
    UNROLL for (uint r = 0u; r < MANY; r++) acc[r] = 0.0f;
    if (column < n && share.expert < max_experts(experts)) {
        Row from = row_of(q, share.expert * n + column, pitch);
        const Planes at = planes_of(blocks);
        for (uint c = lane; c < blocks * UNITS; c += ACROSS) {
            const uint b = c / UNITS, u = c % UNITS;
            if (IN_CHUNKS) {
                const Chunk chunk = chunk_of(from, at, b, u);
                for (uint run = 0u; run < RUNS; run++) {
                    const Scale scale = scale_of(from, at, b, u, run);
                    const uint e = element_of(b, u, run);
                    UNROLL for (uint w = 0u; w < 4u; w++) {
                        const vec4 v = values_of(quad_of(chunk, u, run, w), scale.zero);
                        const vec4 g = VEC4(weight_of(scale, v.x), weight_of(scale, v.y), weight_of(scale, v.z),
                                            weight_of(scale, v.w));
                        TIMES_ROWS(g, e + 4u * w)
                    }
                }
            } else {
                for (uint e = u * 8u; e < u * 8u + 8u; e += 4u) {
                    const vec4 g = VEC4(element(from, at, book, b, e), element(from, at, book, b, e + 1u),
                                        element(from, at, book, b, e + 2u), element(from, at, book, b, e + 3u));
                    TIMES_ROWS(g, b * BLOCK + e)
                }
            }
        }
    }
    UNROLL for (uint r = 0u; r < MANY; r++) {
        const float sum = lane_sum(acc[r]);
        if (column < n && r < share.rows && lane == r % ACROSS) STORE(T, py, r * n + column, sum);
    }
}
