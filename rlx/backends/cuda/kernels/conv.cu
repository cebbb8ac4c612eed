// y = act(product of weights w and columns read out of x + bias): convolution, transposed convolution, its gradient to x.
// Grid: a group of 256 for each tile of C0 rows x C1 columns of each group, phase and split; X folds into Y.
// Arguments: x, w, bias (f32), taps, places, meta (bodies/conv.h), y, batch, groups, rows, phases, columns, chunk, splits.
#include "bodies/body.h"
#include "bodies/conv.h"

extern "C" __global__ void __launch_bounds__(256)
    conv(PTR(TA) x, PTR(TB) w, PTR(f32) bias, PTR(b16) taps, PTR(u32) places, PTR(u32) meta, PTR(TA) y,
         uint batch, uint groups, uint rows, uint phases, uint columns, uint chunk, uint splits) {
    conv_body(x, w, bias, taps, places, meta, y, batch, groups, rows, phases, columns, chunk, splits);
}
