// y[b, r, c] = x[b, c, r], sixteen bytes at a time: `rows` by `cols` elements in y; x's rows lie `pitch` of sixteen bytes apart.
// Grid: a group for each of `tiles` = matrices * ceil(rows / 64) * ceil(cols / (256 / element bytes)); X folds into Y.
// Arguments: x, y, tiles, rows, cols, pitch, batch (sixteen bytes from one matrix of x to the next).
#include "bodies/body.h"
#include "bodies/transpose_wide.h"

extern "C" __global__ void __launch_bounds__(256)
    transpose_wide(PTR(b16) x, PTR(b16) y, uint tiles, uint rows, uint cols, uint pitch, uint batch) {
    transpose_wide_body(x, y, tiles, rows, cols, pitch, batch);
}
