// The window of y that begins at `starts` = update; bits are copied in units of U.
// Grid: a thread for each of `total` units of the window; X folds into Y.
// Arguments: update, starts, meta, y, total, axes.
#include "bodies/body.h"
#include "bodies/dynamic_update.h"

extern "C" __global__ void __launch_bounds__(256)
    dynamic_update(PTR(U) update, PTR(i32) starts, PTR(u32) meta, PTR(U) y, uint total, uint axes) {
    dynamic_update_body(update, starts, meta, y, total, axes);
}
