// Blocks of C0 elements of the lines along n of x (outer, n, inner), `lines` = outer * inner, each sorted.
// Grid: a group for each C0 < 512 ? 512 / C0 : 1 of the lines * blocks; X folds into Y.
// Arguments: x, pairs (lines, n), y and index (outer, keep, inner), lines, n, inner, keep, blocks.
#include "bodies/body.h"
#include "bodies/sort_rows.h"

extern "C" __global__ void __launch_bounds__(256)
    sort_rows(PTR(U) x, PTR(PU) pairs, PTR(U) y, PTR(b8) index, uint lines, uint n, uint inner, uint keep, uint
              blocks) {
    sort_rows_body(x, pairs, y, index, lines, n, inner, keep, blocks);
}
