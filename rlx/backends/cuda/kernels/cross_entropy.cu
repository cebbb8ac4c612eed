// Softmax cross-entropy of rows of n logits with a label each.
// Grid: a group of 256 for each 256 / C0 rows; X folds into Y.
// Arguments: x, label (rows), loss (rows), rows, n, ignored.
#include "bodies/body.h"
#include "prims.h"
#include "bodies/cross_entropy.h"

extern "C" __global__ void __launch_bounds__(256)
    cross_entropy(PTR(T) x, PTR(i32) label, PTR(f32) loss, uint rows, uint n, int ignored) {
    cross_entropy_body(x, label, loss, rows, n, ignored);
}
