// s = x + residual and y = its layer norm (C3 = 0) or RMS norm (C3 = 1) over rows of n, with beta when C4 = 1, s when C5 = 1.
// Grid: a group of 256 for each 256 / C0 rows; X folds into Y.
// Arguments: x, residual, gamma (n), beta (n), s, y (may be x or residual), rows, n, eps.
#include "bodies/body.h"
#include "prims.h"
#include "bodies/add_norm.h"

extern "C" __global__ void __launch_bounds__(256)
    add_norm(PTR(T) x, PTR(T) residual, PTR(W) gamma, PTR(W) beta, PTR(T) s, PTR(T) y, uint rows, uint n,
             float eps) {
    add_norm_body(x, residual, gamma, beta, s, y, rows, n, eps);
}
