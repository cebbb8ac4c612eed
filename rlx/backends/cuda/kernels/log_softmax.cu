// log_softmax (C3 = 0) or logsumexp (C3 = 1) over the last axis of x (rows, n).
// Grid: a group of 256 for each 256 / C0 rows; X folds into Y.
// Arguments: x, y, rows, n.
#include "bodies/body.h"
#include "prims.h"
#include "bodies/log_softmax.h"

extern "C" __global__ void __launch_bounds__(256)
    log_softmax(PTR(T) x, PTR(T) y, uint rows, uint n) {
    log_softmax_body(x, y, rows, n);
}
