// The gradient dx of softmax over rows of n, from its result y and that one's gradient d.
// Grid: a group of 256 for each 256 / C0 rows; X folds into Y.
// Arguments: d, y, dx (may be d), rows, n.
#include "bodies/body.h"
#include "bodies/softmax_grad.h"

extern "C" __global__ void __launch_bounds__(256)
    softmax_grad(PTR(T) d, PTR(T) y, PTR(T) dx, uint rows, uint n) {
    softmax_grad_body(d, y, dx, rows, n);
}
