// The k first in order of each of `lines` rows of n floats, C2 times sixteen bytes of a row a thread.
// Grid: a group for each row; X folds into Y.
// Arguments: x, y (lines, k), index (lines, k), lines, n, k.
#include "bodies/body.h"
#include "bodies/top_k_rows.h"

extern "C" __global__ void __launch_bounds__(256)
    top_k_rows(PTR(U) x, PTR(U) y, PTR(b8) index, uint lines, uint n, uint k) {
    top_k_rows_body(x, y, index, lines, n, k);
}
