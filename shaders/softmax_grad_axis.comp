#version 460
// The gradient dx of softmax over the middle axis of (outer, n, inner), from its result y and that one's gradient d.
// Grid: a group of 256 for each C0 places of inner, for each of outer; X folds into Y.
// Arguments: d, y, dx (may be d), outer, n, inner.
// variants: T=f32,f16,bf16
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 32u;
#include "body.glsl"
#include "bodies/softmax_grad_axis.h"

layout(push_constant, scalar) uniform Args {
    PTR(T) d;
    PTR(T) y;
    PTR(T) dx;
    uint outer;
    uint n;
    uint inner;
};

void main() { softmax_grad_axis_body(d, y, dx, outer, n, inner); }
