// The tiles that each splat covers, in the order of the depths, added up within each workgroup of 256: `ends`, and the
// sum of each workgroup in `sums`. `nearest` holds pairs (key, splat). Sums stay at 2^31 - 1 where they would exceed it.
#include "splat.h"

SHARED uint running[512];

RLX_FN void splat_count_body(PTR(b8) nearest, PTR(i32) rects, PTR(u32) ends, PTR(u32) sums, const uint n,
                             const uint across, const uint down) {
    const uint r = GROUP * 256u + THREAD;
    if (GROUP * 256u >= n) return;
    uint count = 0u;
    if (r < n) {
        const uvec2 pair = nearest AT(r);
        const uint x0 = bounded(LOAD(i32, rects, pair.y * 4u), across), y0 = bounded(LOAD(i32, rects, pair.y * 4u + 1u), down);
        const uint x1 = bounded(LOAD(i32, rects, pair.y * 4u + 2u), across), y1 = bounded(LOAD(i32, rects, pair.y * 4u + 3u), down);
        if (x1 > x0 && y1 > y0) count = (x1 - x0) * (y1 - y0);
    }
    uint from = 0u;
    running[THREAD] = count;
    for (uint step = 1u; step < 256u; step *= 2u) {
        BARRIER;
        const uint before = THREAD >= step ? running[from + THREAD - step] : 0u;
        running[256u - from + THREAD] = plus(running[from + THREAD], before);
        from = 256u - from;
    }
    if (r < n) ends AT(r) = running[from + THREAD];
    if (THREAD == 255u) sums AT(GROUP) = running[from + THREAD];
}
