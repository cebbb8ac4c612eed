#version 460
// y[o, index[j], t] joined with updates[o, j, t]: y (outer, n, trail), m updates.
// Grid: a thread for each of `total` = outer * m * trail elements; X folds into Y.
// Arguments: updates, pairs, y, total, m, n, trail.
// variants: T=f32,f64,f16,bf16,i32,i64
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 1u;
layout(constant_id = 1) const uint C1 = 0u;
#include "body.glsl"
#include "body64.glsl"
#include "bodies/scatter_reduce.h"

layout(push_constant, scalar) uniform Args {
    PTR(T) updates;
    PTR(b8) pairs;
    PTR(T) y;
    uint total;
    uint m;
    uint n;
    uint trail;
};

void main() { scatter_reduce_body(updates, pairs, y, total, m, n, trail); }
