#version 460
// The place along n of the first element in order of x (outer, n, inner), in `splits` parts of `chunk`.
// Grid: a group for each 256 / (C0*C1) pairs (outer, part) and C0 places of inner; X folds into Y.
// Arguments: x, parts and made (outer, splits, inner), y, outer, n, inner, chunk, splits.
// variants: U=b1,b2,b4,b8
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 1u;
layout(constant_id = 1) const uint C1 = 256u;
layout(constant_id = 2) const uint C2 = 4u;
layout(constant_id = 3) const uint C3 = 0u;
layout(constant_id = 4) const uint C4 = 0u;
#include "body.glsl"
#include "bodies/arg_reduce.h"

layout(push_constant, scalar) uniform Args {
    PTR(U) x;
    PTR(PU) parts;
    PTR(PU) made;
    PTR(b8) y;
    uint outer;
    uint n;
    uint inner;
    uint chunk;
    uint splits;
};

void main() { arg_reduce_body(x, parts, made, y, outer, n, inner, chunk, splits); }
