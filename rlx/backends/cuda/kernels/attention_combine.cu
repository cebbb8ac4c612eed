// The parts that attention_decode leaves, (splits, rows, 2) figures and (splits, rows, d) sums, added up in order.
// Grid: a group of 256 for each 256 columns of each row; X folds into Y.
// Arguments: parts, y, rows, d, splits.
#include "bodies/body.h"
#include "prims.h"
#include "bodies/attention_combine.h"

extern "C" __global__ void __launch_bounds__(256)
    attention_combine(PTR(f32) parts, PTR(T) y, uint rows, uint d, uint splits) {
    attention_combine_body(parts, y, rows, d, splits);
}
