// Softmax over the middle axis of x (outer, n, inner).
// Grid: a group of 256 for each C0 places of inner, for each of outer; X folds into Y.
// Arguments: x, y (may be x), outer, n, inner.
#include "bodies/body.h"
#include "prims.h"
#include "bodies/softmax_axis.h"

extern "C" __global__ void __launch_bounds__(256)
    softmax_axis(PTR(T) x, PTR(T) y, uint outer, uint n, uint inner) {
    softmax_axis_body(x, y, outer, n, inner);
}
