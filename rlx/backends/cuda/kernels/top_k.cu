// The k first in order of each part of `chunk` elements of the lines along n of x (outer, n, inner).
// Grid: a group for each part of each of `lines` lines; X folds into Y.
// Arguments: x, list (lines, listed), made (lines, splits, k), y and index (outer, k, inner), lines, n, listed, inner, k, chunk, splits.
#include "bodies/body.h"
#include "bodies/top_k.h"

extern "C" __global__ void __launch_bounds__(256)
    top_k(PTR(U) x, PTR(u32) list, PTR(u32) made, PTR(U) y, PTR(b8) index, uint lines, uint n, uint listed,
          uint inner, uint k, uint chunk, uint splits) {
    top_k_body(x, list, made, y, index, lines, n, listed, inner, k, chunk, splits);
}
