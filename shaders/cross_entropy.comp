#version 460
// Softmax cross-entropy of rows of n logits with a label each.
// Grid: a group of 256 for each 256 / C0 rows; X folds into Y.
// Arguments: x, label (rows), loss (rows), rows, n, ignored.
// variants: T=f32,f16,bf16
// subgroups: yes
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 32u;
layout(constant_id = 1) const uint C1 = 1u;
layout(constant_id = 2) const uint C2 = 0u;
#include "body.glsl"
#include "prims.h"
#include "bodies/cross_entropy.h"

layout(push_constant, scalar) uniform Args {
    PTR(T) x;
    PTR(i32) label;
    PTR(f32) loss;
    uint rows;
    uint n;
    int ignored;
};

void main() { cross_entropy_body(x, label, loss, rows, n, ignored); }
