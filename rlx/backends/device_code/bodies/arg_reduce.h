// y[o, i] = the place along n of the element of x (outer, n, inner) whose pair comes first; of `splits` parts of
// `chunk` each, the pairs instead, which a second launch reads (FLAGS bit 0). ACROSS threads lie along inner, ALONG
// along n, the rest of the 256 along (o, part). FLAGS bit 1: of equal elements the last counts.
#define FROM_PARTS ((FLAGS & 1u) != 0u)
#define LAST ((FLAGS & 2u) != 0u)
#include "order.h"

SHARED PAIR best[256];

RLX_FN void arg_reduce_body(PTR(U) x, PAIRS parts, PAIRS made, PTR(b8) y, const uint outer, const uint n,
                            const uint inner, const uint chunk, const uint splits) {
    const uint across = THREAD % ACROSS, along = THREAD / ACROSS % ALONG;
    const uint items = 256u / (ACROSS * ALONG);
    const uint blocks = (inner + ACROSS - 1u) / ACROSS;
    const uint item = GROUP / blocks * items + THREAD / (ACROSS * ALONG);  // over (o, part)
    const uint i = GROUP % blocks * ACROSS + across;
    const bool live = item < outer * splits && i < inner;
    const uint o = item / splits, s = item % splits;
    PAIR mine = NO_PAIR;
    if (live) {
        const uint rest = n - s * chunk;
        const uint len = rest < chunk ? rest : chunk;
        if (FROM_PARTS) {
            PAIRS p = SKIP_PAIRS(parts, o, n * inner);
            for (uint j = along; j < len; j += ALONG) {
                const PAIR other = p AT(j * inner + i);
                if (before(other, mine)) mine = other;
            }
        } else {
            PTR(U) p = SKIP(U, SKIP(U, x, o, n * inner), s * chunk, inner);
            for (uint j = along; j < len; j += ALONG) {
                const uint place = s * chunk + j;
                const PAIR other = PAIR_AT(p, j * inner + i, LAST ? ~place : place);
                if (before(other, mine)) mine = other;
            }
        }
    }
    best[THREAD] = mine;
    for (uint half_way = ALONG / 2u; half_way > 0u; half_way /= 2u) {
        BARRIER;
        if (along < half_way && before(best[THREAD + half_way * ACROSS], best[THREAD])) {
            best[THREAD] = best[THREAD + half_way * ACROSS];
        }
    }
    if (!live || along != 0u) return;
    if (splits > 1u) {
        made AT(item * inner + i) = best[THREAD];
    } else {
        const uint found = index_in(best[THREAD]);
        y AT(item * inner + i) = UVEC2(LAST ? ~found : found, 0u);
    }
}
