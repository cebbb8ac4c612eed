// Rotary position embedding of x (outer, seq, inner, d) by tables of `pairs` angles a position.
// Grid: a thread for each of `total` = outer * seq * inner * units; X folds into Y.
// Arguments: x, cosine, sine, position, y (may be x), total, seq, inner, d, pairs, per, rows, offset, members.
#include "bodies/body.h"
#include "bodies/rope.h"

extern "C" __global__ void __launch_bounds__(256)
    rope(PTR(T) x, PTR(f32) cosine, PTR(f32) sine, PTR(i32) position, PTR(T) y, uint total, uint seq,
         uint inner, uint d, uint pairs, uint per, uint rows, uint offset, uint members) {
    rope_body(x, cosine, sine, position, y, total, seq, inner, d, pairs, per, rows, offset, members);
}
