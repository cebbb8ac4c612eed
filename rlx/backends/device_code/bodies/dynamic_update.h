// The window of y that begins at `starts` = update, copying bits in units of U.
#include "window.h"

RLX_FN void dynamic_update_body(PTR(U) update, PTR(i32) starts, PTR(u32) meta, PTR(U) y, const uint total,
                                const uint axes) {
    const uint id = GROUP * 256u + THREAD;
    if (id >= total) return;
    y AT(around(id, starts, meta, axes)) = update AT(id);
}
