// The gradient dx of softmax over the middle axis of (outer, n, inner), from its result y and that one's gradient d.
// Grid: a group of 256 for each C0 places of inner, for each of outer; X folds into Y.
// Arguments: d, y, dx (may be d), outer, n, inner.
#include "bodies/body.h"
#include "bodies/softmax_grad_axis.h"

extern "C" __global__ void __launch_bounds__(256)
    softmax_grad_axis(PTR(T) d, PTR(T) y, PTR(T) dx, uint outer, uint n, uint inner) {
    softmax_grad_axis_body(d, y, dx, outer, n, inner);
}
