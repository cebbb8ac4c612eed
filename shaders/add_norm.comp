#version 460
// s = x + residual and y = its layer norm (C3 = 0) or RMS norm (C3 = 1) over rows of n, with beta when C4 = 1, s when C5 = 1.
// Grid: a group of 256 for each 256 / C0 rows; X folds into Y.
// Arguments: x, residual, gamma (n), beta (n), s, y (may be x or residual), rows, n, eps.
// variants: T=f32,f16,bf16;W=f32,f16,bf16
// subgroups: yes
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 32u;
layout(constant_id = 1) const uint C1 = 1u;
layout(constant_id = 2) const uint C2 = 0u;
layout(constant_id = 3) const uint C3 = 0u;
layout(constant_id = 4) const uint C4 = 0u;
layout(constant_id = 5) const uint C5 = 0u;
#include "body.glsl"
#include "prims.h"
#include "bodies/add_norm.h"

layout(push_constant, scalar) uniform Args {
    PTR(T) x;
    PTR(T) residual;
    PTR(W) gamma;
    PTR(W) beta;
    PTR(T) s;
    PTR(T) y;
    uint rows;
    uint n;
    float eps;
};

void main() { add_norm_body(x, residual, gamma, beta, s, y, rows, n, eps); }
