// Layer norm over the middle axis of x (outer, n, inner).
// Grid: a group of 256 for each C0 places of inner, for each of outer; X folds into Y.
// Arguments: x, gamma (n), beta (n), y (may be x), outer, n, inner, eps.
#include "bodies/body.h"
#include "prims.h"
#include "bodies/norm_axis.h"

extern "C" __global__ void __launch_bounds__(256)
    norm_axis(PTR(T) x, PTR(W) gamma, PTR(W) beta, PTR(T) y, uint outer, uint n, uint inner, float eps) {
    norm_axis_body(x, gamma, beta, y, outer, n, inner, eps);
}
