#version 460
// Layer norm (C3 = 0) or RMS norm (C3 = 1) over the last axis of x (rows, n), with beta when C4 = 1.
// Grid: a group of 256 for each 256 / C0 rows; X folds into Y.
// Arguments: x, gamma (n), beta (n), y (may be x), rows, n, eps.
// variants: T=f32,f16,bf16;W=f32,f16,bf16
// subgroups: yes
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 32u;
layout(constant_id = 1) const uint C1 = 1u;
layout(constant_id = 2) const uint C2 = 0u;
layout(constant_id = 3) const uint C3 = 0u;
layout(constant_id = 4) const uint C4 = 0u;
#include "body.glsl"
#include "rounding.glsl"
#include "prims.h"
#include "bodies/row_norm.h"

layout(push_constant, scalar) uniform Args {
    PTR(T) x;
    PTR(W) gamma;
    PTR(W) beta;
    PTR(T) y;
    uint rows;
    uint n;
    float eps;
};

void main() { row_norm_body(x, gamma, beta, y, rows, n, eps); }
