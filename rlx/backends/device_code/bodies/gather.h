// y[o, j, t] = x[o, index[j], t], copying bits: U is the unit of t (b1 … b16 bytes), I the dtype of the indices.
#include "indices.h"

RLX_FN void gather_body(PTR(U) x, PTR(i32) index, PTR(U) y, const uint total, const uint m, const uint axis,
                        const uint trail) {
    const uint id = GROUP * 256u + THREAD;
    if (id >= total) return;
    const uint t = id % trail, line = id / trail;
    const uint j = line % m, o = line / m;
    PTR(U) p = SKIP(U, x, o * axis + RLX_JOIN(LOAD_INDEX_, I)(index, j, axis), trail);
    PTR(U) q = SKIP(U, y, line, trail);
    q AT(t) = p AT(t);
}
