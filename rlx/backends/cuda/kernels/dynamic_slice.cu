// y = the window of x that begins at `starts`; bits are copied in units of U.
// Grid: a thread for each of `total` units of the window; X folds into Y.
// Arguments: x, starts, meta, y, total, axes.
#include "bodies/body.h"
#include "bodies/dynamic_slice.h"

extern "C" __global__ void __launch_bounds__(256)
    dynamic_slice(PTR(U) x, PTR(i32) starts, PTR(u32) meta, PTR(U) y, uint total, uint axes) {
    dynamic_slice_body(x, starts, meta, y, total, axes);
}
