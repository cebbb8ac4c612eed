// y[o, j, t] = x[o, index[o, j, t], t], copying bits: U is the unit of an element, I the dtype of the indices.
#include "indices.h"

RLX_FN void gather_elements_body(PTR(U) x, PTR(i32) index, PTR(U) y, const uint total, const uint m, const uint axis,
                                 const uint trail) {
    const uint id = GROUP * 256u + THREAD;
    if (id >= total) return;
    const uint t = id % trail, o = id / trail / m;
    PTR(U) p = SKIP(U, x, o * axis + RLX_JOIN(LOAD_INDEX_, I)(index, id, axis), trail);
    y AT(id) = p AT(t);
}
