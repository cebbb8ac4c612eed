#version 460
// y[o, index[j], t] = updates[o, j, t]: y (outer, n, trail), m updates; bits are copied in units of U.
// Grid: a thread for each of `total` = outer * m * trail units; X folds into Y.
// Arguments: updates, pairs, y, total, m, n, trail.
// variants: U=b1,b2,b4,b8,b16
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 1u;
#include "body.glsl"
#include "bodies/scatter_set.h"

layout(push_constant, scalar) uniform Args {
    PTR(U) updates;
    PTR(b8) pairs;
    PTR(U) y;
    uint total;
    uint m;
    uint n;
    uint trail;
};

void main() { scatter_set_body(updates, pairs, y, total, m, n, trail); }
