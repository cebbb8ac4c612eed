#version 460
// Softmax over the last axis of x (rows, n).
// Grid: a group of 256 for each 256 / C0 rows; X folds into Y.
// Arguments: x, y (may be x), rows, n.
// variants: T=f32,f16,bf16
// subgroups: yes
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 32u;
layout(constant_id = 1) const uint C1 = 1u;
layout(constant_id = 2) const uint C2 = 0u;
#include "body.glsl"
#include "rounding.glsl"
#include "prims.h"
#include "bodies/softmax.h"

layout(push_constant, scalar) uniform Args {
    PTR(T) x;
    PTR(T) y;
    uint rows;
    uint n;
};

void main() { softmax_body(x, y, rows, n); }
