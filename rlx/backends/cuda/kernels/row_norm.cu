// Layer norm (C3 = 0) or RMS norm (C3 = 1) over the last axis of x (rows, n), with beta when C4 = 1.
// Grid: a group of 256 for each 256 / C0 rows; X folds into Y.
// Arguments: x, gamma (n), beta (n), y (may be x), rows, n, eps.
#include "bodies/body.h"
#include "prims.h"
#include "bodies/row_norm.h"

extern "C" __global__ void __launch_bounds__(256)
    row_norm(PTR(T) x, PTR(W) gamma, PTR(W) beta, PTR(T) y, uint rows, uint n, float eps) {
    row_norm_body(x, gamma, beta, y, rows, n, eps);
}
