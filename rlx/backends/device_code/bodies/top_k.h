// The first k pairs of each part of `chunk` elements of the lines along the middle of x (outer, n, inner), in order. A
// group reads its part once and keeps what comes before the k-th best so far, in a shared buffer of SPAN pairs that it
// sorts when it might overflow: k ≤ SPAN / 2. With splits = 1 the elements go to y and their places, as i64, to
// `index`; else the places go to `made` (line, part, k), and a second launch reads only those (LISTED: n of them, in
// `list`). The buffer fills in any order, but pairs are distinct, so that what is kept and its order are always the
// same.
#include "order.h"

SHARED PAIR work[SPAN];
SHARED uint held;

// Sorts the first `count` pairs, the places after them being empty.
RLX_FN void sort_held(const uint count) {
    uint span = 2u;
    while (span < count) span *= 2u;
    for (uint e = THREAD; e < span; e += 256u) {
        if (e >= count) work[e] = NO_PAIR;
    }
    for (uint size = 2u; size <= span; size *= 2u) {
        for (uint step = size / 2u; step > 0u; step /= 2u) {
            BARRIER;
            for (uint c = THREAD; c < span / 2u; c += 256u) {
                const uint low = c / step * (2u * step) + c % step;
                const PAIR a = work[low], b = work[low + step];
                if (before(b, a) == ((low & size) == 0u || size == span)) {
                    work[low] = b;
                    work[low + step] = a;
                }
            }
        }
    }
    BARRIER;
}

RLX_FN void top_k_body(PTR(U) x, PTR(u32) list, PTR(u32) made, PTR(U) y, PTR(b8) index, const uint lines, const uint n,
                       const uint listed, const uint inner, const uint k, const uint chunk, const uint splits) {
    const uint line = GROUP / splits, part = GROUP % splits;
    if (line >= lines) return;
    PTR(U) p = SKIP(U, x, line / inner, n * inner);
    PTR(u32) places = SKIP(u32, list, line, listed);
    const uint count = LISTED ? listed : n;
    const uint end = (part + 1u) * chunk < count ? (part + 1u) * chunk : count;
    const uint tile = SPAN / 2u;
    PAIR worst = NO_PAIR;
    if (THREAD == 0u) held = 0u;
    BARRIER;
    for (uint start = part * chunk; start < end; start += tile) {
        uint have = held;
        BARRIER;
        if (have + tile > SPAN) {
            sort_held(have);
            worst = work[k - 1u];
            have = k;
            BARRIER;
            if (THREAD == 0u) held = k;
            BARRIER;
        }
        for (uint j = start + THREAD; j < start + tile; j += 256u) {
            if (j >= end) continue;
            const uint place = LISTED ? LOAD(u32, places, j) : j;
            if (place == BEYOND) continue;
            const PAIR mine = PAIR_AT(p, place * inner + line % inner, place);
            if (before(mine, worst)) work[ATOMIC_ADD(held, 1u)] = mine;
        }
        BARRIER;
    }
    const uint have = held;
    BARRIER;
    sort_held(have);
    for (uint e = THREAD; e < k; e += 256u) {
        const uint from = e < have ? index_in(work[e]) : BEYOND;
        if (splits > 1u) {
            PTR(u32) q = SKIP(u32, made, line, splits * k);
            q AT(part * k + e) = from;
        } else {
            const uint at = e * inner + line % inner;
            PTR(U) q = SKIP(U, y, line / inner, k * inner);
            q AT(at) = p AT(from * inner + line % inner);
            PTR(b8) r = SKIP(b8, index, line / inner, k * inner);
            r AT(at) = UVEC2(from, 0u);
        }
    }
}
