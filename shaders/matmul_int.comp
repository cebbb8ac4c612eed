#version 460
// C (batch, m, n) = op(A) op(B) + bias in integers or f64, batch = d0 * d1 * d2 matrices of strides a0 a1 a2, b0 b1 b2.
// Grid: a group of 256 for each tile of 16 x 16 of each matrix; X folds into Y.
// Arguments: a, b, bias (n), c, m, n, k, batch, d1, d2, a0, a1, a2, b0, b1, b2 (strides in elements).
// variants: T=i32,i64,f64
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 0u;
layout(constant_id = 1) const uint C1 = 0u;
layout(constant_id = 2) const uint C2 = 0u;
#include "body.glsl"
#include "body64.glsl"
#include "bodies/matmul_int.h"

layout(push_constant, scalar) uniform Args {
    PTR(T) a;
    PTR(T) b;
    PTR(T) bias;
    PTR(T) c;
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
};

void main() { matmul_int_body(a, b, bias, c, m, n, k, batch, d1, d2, a0, a1, a2, b0, b1, b2); }
