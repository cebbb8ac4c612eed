#version 460
// Softmax over the middle axis of x (outer, n, inner).
// Grid: a group of 256 for each C0 places of inner, for each of outer; X folds into Y.
// Arguments: x, y (may be x), outer, n, inner.
// variants: T=f32,f16,bf16
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 32u;
#include "body.glsl"
#include "prims.h"
#include "bodies/softmax_axis.h"

layout(push_constant, scalar) uniform Args {
    PTR(T) x;
    PTR(T) y;
    uint outer;
    uint n;
    uint inner;
};

void main() { softmax_axis_body(x, y, outer, n, inner); }
