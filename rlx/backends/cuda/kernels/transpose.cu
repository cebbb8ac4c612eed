// y[b, r, c] = x[b, c, r]: matrices of `rows` by `cols` in y; x's rows lie `pitch`, its matrices `batch` elements apart.
// Grid: a group for each of `tiles` = matrices * ceil(rows / 32) * ceil(cols / 32); X folds into Y.
// Arguments: x, y, tiles, rows, cols, pitch, batch.
#include "bodies/body.h"
#include "bodies/transpose.h"

extern "C" __global__ void __launch_bounds__(256)
    transpose(PTR(U) x, PTR(U) y, uint tiles, uint rows, uint cols, uint pitch, uint batch) {
    transpose_body(x, y, tiles, rows, cols, pitch, batch);
}
