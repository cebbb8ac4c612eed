// C (rows, n) = rows of A times their expert's matrix of B, or C (experts, k, n) = sums over each expert's rows, in f64.
// Grid: a group of 256 for each tile, for tiles of experts that are not full too; X folds into Y.
// Arguments: a, b, sizes (experts), c, rows, n, k, experts.
#include "bodies/body.h"
#include "bodies/body64.h"
#include "bodies/matmul_grouped64.h"

extern "C" __global__ void __launch_bounds__(256)
    matmul_grouped64(PTR(TA) a, PTR(TB) b, PTR(i32) sizes, PTR(TA) c, uint rows, uint n, uint k, uint experts) {
    grouped_body(a, b, sizes, c, rows, n, k, experts);
}
