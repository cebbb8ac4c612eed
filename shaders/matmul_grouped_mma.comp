#version 460
// C (rows, n) = rows of A times their expert's matrix of B, or C (experts, k, n) = sums over each expert's rows; see grouped.h.
// Grid: a group of 256 for each tile, for tiles of experts that are not full too; X folds into Y.
// Arguments: a, b, sizes (experts), c, rows, n, k, experts.
// variants: ABM=f32_f32_f16,f32_f32_bf16,f32_f16_f16,f32_f16_bf16,f32_bf16_bf16,f16_f16_f16,bf16_bf16_bf16;TILE=s,m
// compiler: new
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
layout(constant_id = 9) const uint C9 = 32u;
layout(constant_id = 10) const uint C10 = 1u;
layout(constant_id = 11) const uint C11 = 1u;
layout(constant_id = 12) const uint C12 = 1u;
layout(constant_id = 13) const uint C13 = 0u;
#include "body.glsl"
#include "prims.h"
#include "mma.glsl"
#include "bodies/matmul_grouped_mma.h"

layout(push_constant, scalar) uniform Args {
    PTR(TA) a;
    PTR(TB) b;
    PTR(i32) sizes;
    PTR(TA) c;
    uint rows;
    uint n;
    uint k;
    uint experts;
};

void main() { grouped_body(a, b, sizes, c, rows, n, k, experts); }
