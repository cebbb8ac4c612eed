// The pairs of a splat and a tile, numbered in the order of the depths: (tile, j) in `made` and pair j's splat in
// `owners`; and each splat's first pair and their number in `spans`. A thread makes pair j, whose splat it finds by
// bisection in what splat_count and splat_scan made, so that a large splat keeps no thread for long.
#define KEY_KIND 0u
#define KEY_FLIP 0u
#define U b4
#include "order.h"
#include "splat.h"

RLX_FN void splat_pairs_body(PTR(b8) nearest, PTR(i32) rects, PTR(u32) ends, PTR(u32) starts, PTR(u32) total,
                             PTR(b8) made, PTR(u32) owners, PTR(i32) spans, const uint n, const uint pairs,
                             const uint across, const uint down) {
    const uint j = GROUP * 256u + THREAD;
    if (j < n) {
        const uvec2 pair = nearest AT(j);
        const uint start = starts AT(j / 256u);
        const uint first = least(plus(start, j % 256u > 0u ? ends AT(j - 1u) : 0u), pairs);
        STORE(i32, spans, pair.y * 2u, int(first));
        STORE(i32, spans, pair.y * 2u + 1u, int(least(plus(start, ends AT(j)), pairs) - first));
    }
    if (j >= pairs || j >= total AT(0)) return;
    uint low = 0u, high = (n + 255u) / 256u;  // the last block that begins at j or before it
    while (high - low > 1u) {
        const uint middle = low + (high - low) / 2u;
        if (starts AT(middle) <= j) low = middle;
        else high = middle;
    }
    const uint block = low * 256u, at = j - starts AT(low);
    low = block;
    high = least(block + 256u, n) - 1u;  // the first splat that ends behind `at`
    while (low < high) {
        const uint middle = low + (high - low) / 2u;
        if (ends AT(middle) > at) high = middle;
        else low = middle + 1u;
    }
    const uvec2 pair = nearest AT(low);
    const uint own = at - (low > block ? ends AT(low - 1u) : 0u);
    const uint x0 = bounded(LOAD(i32, rects, pair.y * 4u), across);
    const uint y0 = bounded(LOAD(i32, rects, pair.y * 4u + 1u), down);
    const uint wide = bounded(LOAD(i32, rects, pair.y * 4u + 2u), across) - x0;
    made AT(j) = UVEC2((y0 + own / wide) * across + x0 + own % wide, j);
    owners AT(j) = pair.y;
}
