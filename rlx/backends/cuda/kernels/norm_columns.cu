// Parts of a norm's dgamma and, when C2 = 1, dbeta: sums over chunks of n of d, x (outer, n, inner).
// Grid: a group of 256 for each C0 places of inner, for each 256 / (C0 C1) of outer * splits; X folds into Y.
// Arguments: d, x, stats, dgamma, dbeta, outer, n, inner, chunk, splits, channels, length.
#include "bodies/body.h"
#include "bodies/norm_columns.h"

extern "C" __global__ void __launch_bounds__(256)
    norm_columns(PTR(T) d, PTR(T) x, PTR(f32) stats, PTR(f32) dgamma, PTR(f32) dbeta, uint outer, uint n,
                 uint inner, uint chunk, uint splits, uint channels, uint length) {
    norm_columns_body(d, x, stats, dgamma, dbeta, outer, n, inner, chunk, splits, channels, length);
}
