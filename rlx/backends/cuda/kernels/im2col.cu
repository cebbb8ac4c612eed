// y (lines, taps, positions) = the elements of x under every position of a window; moves bits.
// Grid: a thread for each unit of y, in groups of 256; X folds into Y.
// Arguments: x, meta (bodies/im2col.h), y, total, units.
#include "bodies/body.h"
#define NOTHING_b1 0
#define NOTHING_b2 0
#define NOTHING_b4 0u
#define NOTHING(U) RLX_JOIN(NOTHING_, U)
#include "bodies/im2col.h"

extern "C" __global__ void __launch_bounds__(256)
    im2col(PTR(U) x, PTR(u32) meta, PTR(U) y, uint total, uint units) {
    im2col_body(x, meta, y, total, units);
}
