#version 460
// C (batch, m, n) = activation(A op(B) + bias) for few rows, batch = d0 * d1 * d2 matrices of strides a0 a1 a2, b0 b1 b2.
// Grid: a group of 256 for each 256 / C5 / C6 (B transposed) or 4 * C5 columns of each ROWS rows of each matrix; X folds into Y.
// Arguments: a, b, bias (n, f32), c, m, n, k, batch, d1, d2, a0, a1, a2, b0, b1, b2 (strides in elements), bias_step (in words of 4 bytes).
// variants: AB=f32_f32,f32_f16,f32_bf16,f16_f16,bf16_bf16;ROWS=1,4,8,16
// unroll: yes
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 0u;
layout(constant_id = 1) const uint C1 = 0u;
layout(constant_id = 2) const uint C2 = 0u;
layout(constant_id = 3) const uint C3 = 0u;
layout(constant_id = 4) const uint C4 = 0u;
layout(constant_id = 5) const uint C5 = 16u;
layout(constant_id = 6) const uint C6 = 1u;
#include "body.glsl"
#include "prims.h"
#include "bodies/matmul_rows.h"

layout(push_constant, scalar) uniform Args {
    PTR(TA) a;
    PTR(TB) b;
    PTR(f32) bias;
    PTR(TA) c;
    uint m;
    uint n;
    uint k;
    uint batch;
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

void main() { matmul_rows_body(a, b, bias, c, m, n, k, batch, d1, d2, a0, a1, a2, b0, b1, b2, bias_step); }
