// y[o, index[j], t] joined with updates[o, j, t]: y (outer, n, trail), m updates.
// Grid: a thread for each of `total` = outer * m * trail elements; X folds into Y.
// Arguments: updates, pairs, y, total, m, n, trail.
#include "bodies/body.h"
#include "bodies/body64.h"
#include "bodies/scatter_reduce.h"

extern "C" __global__ void __launch_bounds__(256)
    scatter_reduce(PTR(T) updates, PTR(b8) pairs, PTR(T) y, uint total, uint m, uint n, uint trail) {
    scatter_reduce_body(updates, pairs, y, total, m, n, trail);
}
