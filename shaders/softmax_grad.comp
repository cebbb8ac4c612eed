#version 460
// The gradient dx of softmax over rows of n, from its result y and that one's gradient d.
// Grid: a group of 256 for each 256 / C0 rows; X folds into Y.
// Arguments: d, y, dx (may be d), rows, n.
// variants: T=f32,f16,bf16
// subgroups: yes
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 32u;
layout(constant_id = 1) const uint C1 = 1u;
layout(constant_id = 2) const uint C2 = 0u;
#include "body.glsl"
#include "bodies/softmax_grad.h"

layout(push_constant, scalar) uniform Args {
    PTR(T) d;
    PTR(T) y;
    PTR(T) dx;
    uint rows;
    uint n;
};

void main() { softmax_grad_body(d, y, dx, rows, n); }
