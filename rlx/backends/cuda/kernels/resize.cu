// y = x resized along up to three axes: weighted sums of the neighbours that the tables name.
// Grid: a thread for each element of y, in groups of 256; X folds into Y.
// Arguments: x, index, weight, meta (bodies/resize.h), y, total.
#include "bodies/body.h"
#include "bodies/body64.h"
#include "bodies/resize.h"

extern "C" __global__ void __launch_bounds__(256)
    resize(PTR(TI) x, PTR(u32) index, PTR(TW) weight, PTR(u32) meta, PTR(TO) y, uint total) {
    resize_body(x, index, weight, meta, y, total);
}
