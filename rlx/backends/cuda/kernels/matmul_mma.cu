// C (batch, m, n) = activation(op(A) op(B) + bias), batch = d0 * d1 * d2 matrices of strides a0 a1 a2, b0 b1 b2.
// Grid: a group of 256 for each tile of each matrix, for each of `parts` parts of the sum; X folds into Y.
// Arguments: a, b, bias (n, f32), c (parts of it one after the other), m, n, k, batch, parts, d1, d2, a0, a1, a2, b0, b1, b2 (in elements), bias_step (in words of 4 bytes).
#include "bodies/body.h"
#include "prims.h"
#include "bodies/mma.h"
#include "bodies/matmul_mma.h"

extern "C" __global__ void __launch_bounds__(256)
    matmul_mma(PTR(TA) a, PTR(TB) b, PTR(f32) bias, PTR(TA) c, uint m, uint n, uint k, uint batch, uint parts,
               uint d1, uint d2, uint a0, uint a1, uint a2, uint b0, uint b1, uint b2, uint bias_step) {
    matmul_body(a, b, bias, c, m, n, k, batch, parts, d1, d2, a0, a1, a2, b0, b1, b2, bias_step);
}
