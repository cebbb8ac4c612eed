// dx of a norm over rows of x (rows, n), and each row's mean and 1 / deviation; RMS norm when C3 = 1.
// Grid: a group of 256 for each 256 / C0 rows; X folds into Y.
// Arguments: d, x, gamma, dx, stats (rows, 2), rows, n, groups, per, inner, eps.
#include "bodies/body.h"
#include "prims.h"
#include "bodies/norm_grad.h"

extern "C" __global__ void __launch_bounds__(256)
    norm_grad(PTR(T) d, PTR(T) x, PTR(W) gamma, PTR(T) dx, PTR(f32) stats, uint rows, uint n, uint groups,
              uint per, uint inner, float eps) {
    norm_grad_body(d, x, gamma, dx, stats, rows, n, groups, per, inner, eps);
}
