// Sum, product, maximum or minimum over n of x (outer, n, inner), in `splits` parts of `chunk`.
// Grid: a group for each 256 / (C0*C1) of (outer, split) and C0 places (pairs, C3 = 2) of inner; X folds into Y.
// Arguments: x, y (outer, splits, inner), outer, n, inner, chunk, splits, divisor.
#include "bodies/body.h"
#include "bodies/body64.h"
#include "prims.h"
#include "bodies/reduce.h"

extern "C" __global__ void __launch_bounds__(256) reduce(PTR(TI) x, PTR(TO) y, uint outer, uint n, uint inner, uint chunk,
                                                         uint splits, float divisor) {
    reduce_body(x, y, outer, n, inner, chunk, splits, divisor);
}
