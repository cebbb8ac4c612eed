// y = gradient of a convolution's weights, of its input x and the gradient d of its result, for small groups.
// Grid: a group of 256 for each element of y; X folds into Y.
// Arguments: x, d, meta (bodies/conv_weight.h), y, batch, groups, rows, columns.
#include "bodies/body.h"
#include "bodies/body64.h"
#include "bodies/conv_weight_direct.h"

extern "C" __global__ void __launch_bounds__(256)
    conv_weight_direct(PTR(T) x, PTR(T) d, PTR(u32) meta, PTR(T) y, uint batch, uint groups, uint rows,
                       uint columns) {
    conv_weight_direct_body(x, d, meta, y, batch, groups, rows, columns);
}
