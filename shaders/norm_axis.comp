#version 460
// Layer norm over the middle axis of x (outer, n, inner).
// Grid: a group of 256 for each C0 places of inner, for each of outer; X folds into Y.
// Arguments: x, gamma (n), beta (n), y (may be x), outer, n, inner, eps.
// variants: T=f32,f16,bf16;W=f32,f16,bf16
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 32u;
#include "body.glsl"
#include "prims.h"
#include "bodies/norm_axis.h"

layout(push_constant, scalar) uniform Args {
    PTR(T) x;
    PTR(W) gamma;
    PTR(W) beta;
    PTR(T) y;
    uint outer;
    uint n;
    uint inner;
    float eps;
};

void main() { norm_axis_body(x, gamma, beta, y, outer, n, inner, eps); }
