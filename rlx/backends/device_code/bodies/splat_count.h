// How many tiles the splats cover, in the order of their depths, as running sums within each workgroup of 256 splats:
// `ends`, and the sum of each workgroup in `sums`. `nearest` has a word pair (key, splat) for each splat, nearest
// first. Sums stay at 2^31 - 1 where they would exceed it.
#include "splat.h"

SHARED uint running[512];  // the sums of a step of the scan, and those of the step before

RLX_FN void splat_count_body(PTR(b8) nearest, PTR(i32) rects, PTR(u32) ends, PTR(u32) sums, const uint n,
                             const uint across, const uint down) {
    const uint r = GROUP * 256u + THREAD;
    if (GROUP * 256u >= n) return;
    uint count = 0u;
    if (r < n) {
        const uvec2 pair = nearest AT(r);
        const uint x0 = bounded(LOAD(i32, rects, pair.y * 4u), across);
        const uint y0 = bounded(LOAD(i32, rects, pair.y * 4u + 1u), down);
        const uint x1 = bounded(LOAD(i32, rects, pair.y * 4u + 2u), across);
        const uint y1 = bounded(LOAD(i32, rects, pair.y * 4u + 3u), down);
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
