// C (batch, m, n) = op(A) op(B) + bias in integers or f64, batch = d0 * d1 * d2 matrices of strides a0 a1 a2, b0 b1 b2.
// Grid: a group of 256 for each tile of 16 x 16 of each matrix; X folds into Y.
// Arguments: a, b, bias (n), c, m, n, k, batch, d1, d2, a0, a1, a2, b0, b1, b2 (strides in elements).
#include "bodies/body.h"
#include "bodies/body64.h"
#include "bodies/matmul_int.h"

extern "C" __global__ void __launch_bounds__(256)
    matmul_int(PTR(T) a, PTR(T) b, PTR(T) bias, PTR(T) c, uint m, uint n, uint k, uint batch, uint d1,
               uint d2, uint a0, uint a1, uint a2, uint b0, uint b1, uint b2) {
    matmul_int_body(a, b, bias, c, m, n, k, batch, d1, d2, a0, a1, a2, b0, b1, b2);
}
