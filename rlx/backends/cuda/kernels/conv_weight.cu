// y = gradient of a convolution's weights, of its input x and the gradient d of its result.
// Grid: a group of 256 for each tile of C0 rows x C1 columns of each group and split; X folds into Y.
// Arguments: x, d, meta (bodies/conv_weight.h), y, batch, groups, rows, columns, chunk, splits.
#include "bodies/body.h"
#include "bodies/conv_weight.h"

extern "C" __global__ void __launch_bounds__(256)
    conv_weight(PTR(TI) x, PTR(TI) d, PTR(u32) meta, PTR(TO) y, uint batch, uint groups, uint rows,
                uint columns, uint chunk, uint splits) {
    conv_weight_body(x, d, meta, y, batch, groups, rows, columns, chunk, splits);
}
