// Each tile's list, from the pairs (tile, j) sorted by tile, total[0] of them but at most `pairs`: the splat at each
// place of the lists, pair j's place, and where the list of each tile begins, which a thread for each tile finds by
// bisection. -1: there is none.
#include "splat.h"

RLX_FN void splat_lists_body(PTR(b8) sorted, PTR(u32) owners, PTR(u32) total, PTR(i32) ids, PTR(i32) ranges,
                             PTR(i32) places, const uint pairs, const uint tiles) {
    const uint p = GROUP * 256u + THREAD, kept = least(total AT(0), pairs);
    if (p < kept) {
        const uvec2 pair = sorted AT(p);
        STORE(i32, ids, p, int(owners AT(pair.y)));
        STORE(i32, places, pair.y, int(p));
    } else if (p < pairs) {
        STORE(i32, ids, p, -1);
        STORE(i32, places, p, -1);
    }
    if (p > tiles) return;
    uint low = 0u, high = kept;
    while (low < high) {
        const uint middle = low + (high - low) / 2u;
        const uvec2 pair = sorted AT(middle);
        if (pair.x < p) low = middle + 1u;
        else high = middle;
    }
    STORE(i32, ranges, p, int(low));
}
