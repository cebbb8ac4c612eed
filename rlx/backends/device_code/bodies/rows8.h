// Rows of rows.h, STEP quads of a thread at a time: j and the next one where VECTORS = 2, else j alone (a and b being
// the same).
#include "rows.h"
#include "eights.h"
#define STEP (EIGHTS ? 2u : 1u)

// Eight places beyond the row are read at its start instead: no load waits for a branch. Sums leave them out by
// `counted`.
#define RLX_GET2(NAME, GET, S)                                                                                      \
    RLX_FN void NAME(PTR(S) p, const uint j, const uint n, const float beyond, RLX_OUT(vec4) a, RLX_OUT(vec4) b) { \
        if (EIGHTS) {                                                                                               \
            LOAD8(S, p, place(j, 0u) < n ? place(j, 0u) / 8u : 0u, a, b);                                           \
        } else {                                                                                                    \
            a = b = GET(p, j, n, beyond);                                                                           \
        }                                                                                                           \
    }
RLX_GET2(get2, get, T)

RLX_FN void put2(PTR(T) p, const uint j, const uint n, const vec4 a, const vec4 b) {
    if (EIGHTS) {
        if (place(j, 0u) < n) STORE8(T, p, place(j, 0u) / 8u, a, b);
    } else {
        put(p, j, n, a);
    }
}

// A sum over quad j, or 0 where it lies beyond the row.
RLX_FN float counted(const float sum, const uint j, const uint n) {
    if (!EIGHTS) return sum;
    return place(j, 0u) < n ? sum : 0.0f;
}
