// y[o, j, t] = x[o, index[o, j, t], t]: x (outer, axis, trail), m places; bits are copied in units of U.
// Grid: a thread for each of `total` = outer * m * trail elements; X folds into Y.
// Arguments: x, index, y, total, m, axis, trail.
#include "bodies/body.h"
#include "bodies/gather_elements.h"

extern "C" __global__ void __launch_bounds__(256)
    gather_elements(PTR(U) x, PTR(i32) index, PTR(U) y, uint total, uint m, uint axis, uint trail) {
    gather_elements_body(x, index, y, total, m, axis, trail);
}
