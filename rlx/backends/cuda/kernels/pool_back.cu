// y = the gradient of max pooling: d, added up where index says that a window's largest element lies.
// Grid: a thread for each element of y, in groups of 256; X folds into Y.
// Arguments: d, index, meta (bodies/pool.h), y, total.
#include "bodies/body.h"
#include "bodies/body64.h"
#include "bodies/pool_back.h"

extern "C" __global__ void __launch_bounds__(256)
    pool_back(PTR(T) d, PTR(u32) index, PTR(u32) meta, PTR(T) y, uint total) {
    pool_back_body(d, index, meta, y, total);
}
