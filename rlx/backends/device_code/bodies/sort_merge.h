// Sorted runs of `run` pairs of each line of n, merged two by two: a pair's new place is its own in its run plus the
// number of pairs of the other run that come before it. GIVEN: 0 gives pairs in `pairs`; else bit 0 the elements, the
// first `keep` of a line, in y and bit 1 their places, as i64, in `index`.
#define KEY_KIND 0u
#define KEY_FLIP 0u
#define GIVES(bit) ((GIVEN & bit) != 0u)
#include "order.h"

RLX_FN void sort_merge_body(PTR(U) x, PAIRS source, PAIRS pairs, PTR(U) y, PTR(b8) index, const uint lines,
                            const uint n, const uint inner, const uint keep, const uint run) {
    const uint blocks = (n + 255u) / 256u;
    const uint line = GROUP / blocks, place = GROUP % blocks * 256u + THREAD;
    if (line >= lines || place >= n) return;
    PAIRS p = SKIP_PAIRS(source, line, n);
    const PAIR mine = p AT(place);
    const uint own = place / run, start = own / 2u * 2u * run;
    uint low = (own ^ 1u) * run, high = low + run;  // the other run, of which the last may be short or missing
    low = low < n ? low : n;
    high = high < n ? high : n;
    const uint other = low;
    while (low < high) {
        const uint middle = low + (high - low) / 2u;
        if (before(p AT(middle), mine)) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    const uint to = start + (place - own * run) + (low - other);
    if (GIVEN == 0u) {
        PAIRS q = SKIP_PAIRS(pairs, line, n);
        q AT(to) = mine;
    }
    if (to >= keep) return;
    const uint from = index_in(mine), at = to * inner + line % inner;
    if (GIVES(1u)) {
        PTR(U) a = SKIP(U, x, line / inner, n * inner);
        PTR(U) b = SKIP(U, y, line / inner, keep * inner);
        b AT(at) = a AT(from * inner + line % inner);
    }
    if (GIVES(2u)) {
        PTR(b8) b = SKIP(b8, index, line / inner, keep * inner);
        b AT(at) = UVEC2(from, 0u);
    }
}
