// Softmax over the last axis of x (rows, n).
// Grid: a group of 256 for each 256 / C0 rows; X folds into Y.
// Arguments: x, y (may be x), rows, n.
#include "bodies/body.h"
#include "prims.h"
#include "bodies/softmax.h"

extern "C" __global__ void __launch_bounds__(256) softmax(PTR(T) x, PTR(T) y, uint rows, uint n) {
    softmax_body(x, y, rows, n);
}
