// Running sums or products along n of x (outer, n, inner), in `splits` parts of `chunk`.
// Grid: a group for each 256 / (C0*C1) pairs (outer, part) and C0 places of inner; X folds into Y.
// Arguments: x, offsets (outer, splits, inner), y, outer, n, inner, chunk, splits.
#include "bodies/body.h"
#include "bodies/body64.h"
#include "bodies/scan.h"

extern "C" __global__ void __launch_bounds__(256)
    scan(PTR(TI) x, PTR(TP) offsets, PTR(TO) y, uint outer, uint n, uint inner, uint chunk, uint splits) {
    scan_body(x, offsets, y, outer, n, inner, chunk, splits);
}
