// The place along n of the first element in order of x (outer, n, inner), in `splits` parts of `chunk`.
// Grid: a group for each 256 / (C0*C1) pairs (outer, part) and C0 places of inner; X folds into Y.
// Arguments: x, parts and made (outer, splits, inner), y, outer, n, inner, chunk, splits.
#include "bodies/body.h"
#include "bodies/arg_reduce.h"

extern "C" __global__ void __launch_bounds__(256)
    arg_reduce(PTR(U) x, PTR(PU) parts, PTR(PU) made, PTR(b8) y, uint outer, uint n, uint inner, uint chunk, uint
               splits) {
    arg_reduce_body(x, parts, made, y, outer, n, inner, chunk, splits);
}
