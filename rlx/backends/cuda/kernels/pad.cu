// y = x with its axes padded; bits are copied in units of U.
// Grid: a group for each 1024 of `total` units of y; X folds into Y.
// Arguments: x, meta, y, total, v0, v1, v2, v3 (the value).
#include "bodies/body.h"
#include "bodies/pad.h"

extern "C" __global__ void __launch_bounds__(256)
    pad(PTR(U) x, PTR(u32) meta, PTR(U) y, uint total, uint v0, uint v1, uint v2, uint v3) {
    pad_body(x, meta, y, total, v0, v1, v2, v3);
}
