// y = act(weights w times what they lie on in x + bias), a thread for each element: convolutions of few rows a group.
// Grid: a thread for each row, phase and column of each group, in groups of 256; X folds into Y.
// Arguments: x, w, bias (f32), taps, places, meta (bodies/conv.h), y, batch, groups, rows, phases, columns.
#include "bodies/body.h"
#include "bodies/body64.h"
#include "bodies/conv_direct.h"

extern "C" __global__ void __launch_bounds__(256)
    conv_direct(PTR(TA) x, PTR(TB) w, PTR(f32) bias, PTR(b16) taps, PTR(u32) places, PTR(u32) meta, PTR(TA) y,
                uint batch, uint groups, uint rows, uint phases, uint columns) {
    conv_direct_body(x, w, bias, taps, places, meta, y, batch, groups, rows, phases, columns);
}
