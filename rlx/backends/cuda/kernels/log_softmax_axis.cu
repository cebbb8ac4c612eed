// log_softmax (C1 = 0) or logsumexp (C1 = 1) over n of x (outer, n, inner).
// Grid: a group for each outer and C0 places of inner; X folds into Y.
// Arguments: x, y, outer, n, inner.
#include "bodies/body.h"
#include "prims.h"
#include "bodies/log_softmax_axis.h"

extern "C" __global__ void __launch_bounds__(256)
    log_softmax_axis(PTR(T) x, PTR(T) y, uint outer, uint n, uint inner) {
    log_softmax_axis_body(x, y, outer, n, inner);
}
