// Sorted runs of `run` pairs of `lines` lines of n, merged two by two; the last time into elements and places.
// Grid: a group for each 256 places of a line; X folds into Y.
// Arguments: x, source and pairs (lines, n), y and index (outer, keep, inner), lines, n, inner, keep, run.
#include "bodies/body.h"
#include "bodies/sort_merge.h"

extern "C" __global__ void __launch_bounds__(256)
    sort_merge(PTR(U) x, PTR(PU) source, PTR(PU) pairs, PTR(U) y, PTR(b8) index, uint lines, uint n, uint inner,
               uint keep, uint run) {
    sort_merge_body(x, source, pairs, y, index, lines, n, inner, keep, run);
}
