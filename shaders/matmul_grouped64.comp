#version 460
// C (rows, n) = rows of A times their expert's matrix of B, or C (experts, k, n) = sums over each expert's rows, in f64.
// Grid: a group of 256 for each tile, for tiles of experts that are not full too; X folds into Y.
// Arguments: a, b, sizes (experts), c, rows, n, k, experts.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 0u;
layout(constant_id = 1) const uint C1 = 0u;
#include "body.glsl"
#include "body64.glsl"
#include "bodies/matmul_grouped64.h"

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
