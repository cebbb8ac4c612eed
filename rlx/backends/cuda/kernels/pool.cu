// y = the largest element or the mean of each window of x, or index = the place of the largest.
// Grid: a thread for each window, in groups of 256; X folds into Y.
// Arguments: x, meta (bodies/pool.h), y, index, total.
#include "bodies/body.h"
#include "bodies/body64.h"
#include "bodies/pool.h"

extern "C" __global__ void __launch_bounds__(256)
    pool(PTR(T) x, PTR(u32) meta, PTR(T) y, PTR(u32) index, uint total) {
    pool_body(x, meta, y, index, total);
}
