// Each splat's gradient: the sum of the rows (pairs, 9) at the places of its span, nine threads a splat. Places outside
// the lists have no row.
#include "splat.h"

RLX_FN void splat_sum_body(PTR(T) rows, PTR(i32) ranges, PTR(i32) places, PTR(i32) spans, PTR(T) y, const uint n,
                           const uint pairs, const uint tiles) {
    const uint splat = GROUP * 28u + THREAD / FIELDS, f = THREAD % FIELDS;
    if (THREAD >= 252u || splat >= n) return;
    const uint low = bounded(LOAD(i32, ranges, 0u), pairs), high = bounded(LOAD(i32, ranges, tiles), pairs);
    const uint start = bounded(LOAD(i32, spans, splat * 2u), pairs);
    const uint count = bounded(LOAD(i32, spans, splat * 2u + 1u), pairs - start);
    VAL(T) total = 0.0f;
    for (uint j = start; j < start + count; j++) {
        const int place = LOAD(i32, places, j);
        if (place < 0 || UINT(place) < low || UINT(place) >= high) continue;
        PTR(T) row = SKIP(T, rows, UINT(place), FIELDS);
        total += LOAD(T, row, f);
    }
    PTR(T) to = SKIP(T, y, splat, FIELDS);
    STORE(T, to, f, total);
}
