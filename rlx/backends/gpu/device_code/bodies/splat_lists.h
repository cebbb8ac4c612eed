// Each tile's list, from the pairs (tile, j) sorted by tile: the splat at each place, pair j's place, and where the list
// of each tile begins. -1: there is none.
#include "splat.h"

RLX_FN void splat_lists_body(PTR(b8) sorted, PTR(u32) owners, PTR(i32) ids, PTR(i32) ranges, PTR(i32) places,
                             const uint pairs, const uint tiles) {
    const uint p = GROUP * 256u + THREAD;
    if (p < pairs) {
        const uvec2 pair = sorted AT(p);
        const bool real = pair.x < tiles;
        STORE(i32, ids, p, real ? int(owners AT(pair.y)) : -1);
        STORE(i32, places, pair.y, real ? int(p) : -1);
    }
    if (p > tiles) return;
    uint low = 0u, high = pairs;
    while (low < high) {
        const uint middle = low + (high - low) / 2u;
        const uvec2 pair = sorted AT(middle);
        if (pair.x < p) low = middle + 1u;
        else high = middle;
    }
    STORE(i32, ranges, p, int(low));
}
