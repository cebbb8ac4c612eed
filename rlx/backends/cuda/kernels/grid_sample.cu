// y = x read at the places that grid names, between its elements too.
// Grid: a thread for each place of eight channels, in groups of 256; X folds into Y.
// Arguments: x, grid (f32), meta (bodies/grid_sample.h), y, total.
#include "bodies/body.h"
#include "bodies/grid_sample.h"

extern "C" __global__ void __launch_bounds__(256)
    grid_sample(PTR(T) x, PTR(f32) grid, PTR(u32) meta, PTR(T) y, uint total) {
    grid_sample_body(x, grid, meta, y, total);
}
