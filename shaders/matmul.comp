#version 460
// C (batch, m, n) = activation(op(A) op(B) + bias), batch = d0 * d1 * d2 matrices of strides a0 a1 a2, b0 b1 b2.
// Grid: a group of 256 for each tile of each matrix, for each of `parts` parts of the sum; X folds into Y.
// Arguments: a, b, bias (n, f32), c (parts of it one after the other), m, n, k, batch, parts, d1, d2, a0, a1, a2, b0, b1, b2 (in elements), bias_step (in words of 4 bytes).
// variants: AB=f32_f32,f32_f16,f32_bf16,f16_f16,bf16_bf16;TILE=s,t,w,l
// unroll: yes
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 0u;
layout(constant_id = 1) const uint C1 = 0u;
layout(constant_id = 2) const uint C2 = 0u;
layout(constant_id = 3) const uint C3 = 0u;
layout(constant_id = 4) const uint C4 = 0u;
layout(constant_id = 5) const uint C5 = 0u;
layout(constant_id = 6) const uint C6 = 0u;
layout(constant_id = 7) const uint C7 = 0u;
layout(constant_id = 8) const uint C8 = 0u;
#include "body.glsl"
#include "prims.h"
#include "bodies/matmul.h"

layout(push_constant, scalar) uniform Args {
    PTR(TA) a;
    PTR(TB) b;
    PTR(f32) bias;
    PTR(TA) c;
    uint m;
    uint n;
    uint k;
    uint batch;
    uint parts;
    uint d1;
    uint d2;
    uint a0;
    uint a1;
    uint a2;
    uint b0;
    uint b1;
    uint b2;
    uint bias_step;
};

void main() { matmul_body(a, b, bias, c, m, n, k, batch, parts, d1, d2, a0, a1, a2, b0, b1, b2, bias_step); }
