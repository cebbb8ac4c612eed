// Lines of n elements along the middle of x (outer, n, inner), cut into blocks of SPAN (a power of two), each block
// sorted in shared memory by a bitonic network. GIVEN bit 0: elements go to y, the first `keep` of a line; bit 1: their
// places to `index`, as i64; bit 2: the pairs to `pairs`, line after line. A group takes max(1, 512 / SPAN) blocks.
#define GIVES(bit) ((GIVEN & bit) != 0u)
#include "order.h"

#define WORK (SPAN < 512u ? 512u : SPAN)
SHARED PAIR work[SPAN < 512u ? 512u : SPAN];

RLX_FN void sort_rows_body(PTR(U) x, PAIRS pairs, PTR(U) y, PTR(b8) index, const uint lines, const uint n,
                           const uint inner, const uint keep, const uint blocks) {
    const uint first = GROUP * (WORK / SPAN);  // of the group's blocks, counted over all lines
    for (uint e = THREAD; e < WORK; e += 256u) {
        const uint item = first + e / SPAN;
        const uint line = item / blocks, place = item % blocks * SPAN + e % SPAN;
        PAIR mine = NO_PAIR;
        if (line < lines && place < n) {
            PTR(U) p = SKIP(U, x, line / inner, n * inner);
            mine = PAIR_AT(p, place * inner + line % inner, place);
        }
        work[e] = mine;
    }
    for (uint size = 2u; size <= SPAN; size *= 2u) {
        for (uint step = size / 2u; step > 0u; step /= 2u) {
            BARRIER;
            for (uint c = THREAD; c < WORK / 2u; c += 256u) {
                const uint low = c / step * (2u * step) + c % step;
                const PAIR a = work[low], b = work[low + step];
                if (before(b, a) == ((low & size) == 0u || size == SPAN)) {
                    work[low] = b;
                    work[low + step] = a;
                }
            }
        }
    }
    BARRIER;
    for (uint e = THREAD; e < WORK; e += 256u) {
        const uint item = first + e / SPAN;
        const uint line = item / blocks, place = item % blocks * SPAN + e % SPAN;
        if (line >= lines || place >= n) continue;
        if (GIVES(4u)) {
            PAIRS p = SKIP_PAIRS(pairs, line, n);
            p AT(place) = work[e];
        }
        if (place >= keep) continue;
        const uint from = index_in(work[e]), at = place * inner + line % inner;
        if (GIVES(1u)) {
            PTR(U) p = SKIP(U, x, line / inner, n * inner);
            PTR(U) q = SKIP(U, y, line / inner, keep * inner);
            q AT(at) = p AT(from * inner + line % inner);
        }
        if (GIVES(2u)) {
            PTR(b8) q = SKIP(b8, index, line / inner, keep * inner);
            q AT(at) = UVEC2(from, 0u);
        }
    }
}
