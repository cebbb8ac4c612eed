// Group norm: y = (x - mean) / sqrt(var + eps) * gamma + beta over rows of x (rows, n), a row a group of channels.
// Grid: a group of 256 for each 256 / C0 rows; X folds into Y.
// Arguments: x, gamma, beta, y (may be x), rows, n, groups, per, inner, eps.
#include "bodies/body.h"
#include "prims.h"
#include "bodies/group_norm.h"

extern "C" __global__ void __launch_bounds__(256)
    group_norm(PTR(T) x, PTR(W) gamma, PTR(W) beta, PTR(T) y, uint rows, uint n, uint groups, uint per,
               uint inner, float eps) {
    group_norm_body(x, gamma, beta, y, rows, n, groups, per, inner, eps);
}
