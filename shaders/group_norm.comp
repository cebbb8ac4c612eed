#version 460
// Group norm: y = (x - mean) / sqrt(var + eps) * gamma + beta over rows of x (rows, n), a row a group of channels.
// Grid: a group of 256 for each 256 / C0 rows; X folds into Y.
// Arguments: x, gamma, beta, y (may be x), rows, n, groups, per, inner, eps.
// variants: T=f32,f16,bf16;W=f32,f16,bf16
// subgroups: yes
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 32u;
layout(constant_id = 1) const uint C1 = 1u;
layout(constant_id = 2) const uint C2 = 0u;
layout(constant_id = 3) const uint C3 = 0u;
#include "body.glsl"
#include "prims.h"
#include "bodies/group_norm.h"

layout(push_constant, scalar) uniform Args {
    PTR(T) x;
    PTR(W) gamma;
    PTR(W) beta;
    PTR(T) y;
    uint rows;
    uint n;
    uint groups;
    uint per;
    uint inner;
    float eps;
};

void main() { group_norm_body(x, gamma, beta, y, rows, n, groups, per, inner, eps); }
