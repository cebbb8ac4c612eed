// Each splat's gradient: the sum of the rows (pairs, 9) at the places of its span, nine threads a splat. Places outside
// the lists have no row.
#include "splat.h"

RLX_FN void splat_sum_body(PTR(f32) rows, PTR(i32) ranges, PTR(i32) places, PTR(i32) spans, PTR(f32) y, const uint n,
                           const uint pairs, const uint tiles) {
    const uint splat = GROUP * 28u + THREAD / FIELDS, f = THREAD % FIELDS;
    if (THREAD >= 252u || splat >= n) return;
    const uint low = bounded(LOAD(i32, ranges, 0u), pairs), high = bounded(LOAD(i32, ranges, tiles), pairs);
    const uint start = bounded(LOAD(i32, spans, splat * 2u), pairs);
    const uint count = bounded(LOAD(i32, spans, splat * 2u + 1u), pairs - start);
    float total = 0.0f;
    for (uint j = start; j < start + count; j++) {
        const int place = LOAD(i32, places, j);
        if (place < 0 || UINT(place) < low || UINT(place) >= high) continue;
        PTR(f32) row = SKIP(f32, rows, UINT(place), FIELDS);
        total += LOAD(f32, row, f);
    }
    PTR(f32) to = SKIP(f32, y, splat, FIELDS);
    STORE(f32, to, f, total);
}
