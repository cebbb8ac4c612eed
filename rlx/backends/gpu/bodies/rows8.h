// Rows of rows.h, STEP quads of a thread at a time: j and the next one where C2 = 2, else j alone (a and b being the same).
#include "rows.h"
#include "eights.h"
#define STEP (EIGHTS ? 2u : 1u)

// A place beyond the row is read at its start instead, and dropped: no load waits for a branch.
#define RLX_GET2(NAME, GET, S)                                                                                      \
    RLX_FN void NAME(PTR(S) p, const uint j, const uint n, const float beyond, RLX_OUT(vec4) a, RLX_OUT(vec4) b) { \
        if (EIGHTS) {                                                                                               \
            const bool inside = place(j, 0u) < n;                                                                   \
            LOAD8(S, p, inside ? place(j, 0u) / 8u : 0u, a, b);                                                     \
            if (!inside) a = b = VEC4(beyond, beyond, beyond, beyond);                                              \
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
