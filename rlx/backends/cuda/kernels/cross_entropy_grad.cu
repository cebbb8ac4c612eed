// The gradient dx of softmax cross-entropy of rows of n logits, from that of the losses.
// Grid: a group of 256 for each 256 / C0 rows; X folds into Y.
// Arguments: d (rows), x, label (rows), dx (may be x), rows, n, ignored.
#include "bodies/body.h"
#include "prims.h"
#include "bodies/cross_entropy_grad.h"

extern "C" __global__ void __launch_bounds__(256)
    cross_entropy_grad(PTR(f32) d, PTR(T) x, PTR(i32) label, PTR(T) dx, uint rows, uint n, int ignored) {
    cross_entropy_grad_body(d, x, label, dx, rows, n, ignored);
}
