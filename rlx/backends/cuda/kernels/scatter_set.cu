// y[o, index[j], t] = updates[o, j, t]: y (outer, n, trail), m updates; bits are copied in units of U.
// Grid: a thread for each of `total` = outer * m * trail units; X folds into Y.
// Arguments: updates, pairs, y, total, m, n, trail.
#include "bodies/body.h"
#include "bodies/scatter_set.h"

extern "C" __global__ void __launch_bounds__(256)
    scatter_set(PTR(U) updates, PTR(b8) pairs, PTR(U) y, uint total, uint m, uint n, uint trail) {
    scatter_set_body(updates, pairs, y, total, m, n, trail);
}
