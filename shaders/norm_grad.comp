#version 460
// dx of a norm over rows of x (rows, n), and each row's mean and 1 / deviation; RMS norm when C3 = 1.
// Grid: a group of 256 for each 256 / C0 rows; X folds into Y.
// Arguments: d, x, gamma, dx, stats (rows, 2), rows, n, groups, per, inner, eps.
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
#include "prims.h"
#include "bodies/norm_grad.h"

layout(push_constant, scalar) uniform Args {
    PTR(T) d;
    PTR(T) x;
    PTR(W) gamma;
    PTR(T) dx;
    PTR(f32) stats;
    uint rows;
    uint n;
    uint groups;
    uint per;
    uint inner;
    float eps;
};

void main() { norm_grad_body(d, x, gamma, dx, stats, rows, n, groups, per, inner, eps); }
