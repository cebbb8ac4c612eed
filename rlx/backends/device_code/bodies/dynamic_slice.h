// y = the window of x that begins at `starts`, copying bits in units of U.
#include "window.h"

RLX_FN void dynamic_slice_body(PTR(U) x, PTR(i32) starts, PTR(u32) meta, PTR(U) y, const uint total, const uint axes) {
    const uint id = GROUP * 256u + THREAD;
    if (id >= total) return;
    y AT(id) = x AT(around(id, starts, meta, axes));
}
