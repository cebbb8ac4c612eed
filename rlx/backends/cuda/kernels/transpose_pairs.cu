// y[b, r, c] = x[b, c, r] of two-byte elements, in words of two: 2 `rows` by 2 `cols` in y; x's rows lie `pitch` words apart.
// Grid: a group for each of `tiles` = matrices * ceil(rows / 32) * ceil(cols / 32); X folds into Y.
// Arguments: x, y, tiles, rows, cols, pitch, batch (words from one matrix of x to the next).
#include "bodies/body.h"
#include "bodies/transpose_pairs.h"

extern "C" __global__ void __launch_bounds__(256)
    transpose_pairs(PTR(b4) x, PTR(b4) y, uint tiles, uint rows, uint cols, uint pitch, uint batch) {
    transpose_pairs_body(x, y, tiles, rows, cols, pitch, batch);
}
