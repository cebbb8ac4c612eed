#version 460
// The gradient dx of softmax cross-entropy of rows of n logits, from that of the losses.
// Grid: a group of 256 for each 256 / C0 rows; X folds into Y.
// Arguments: d (rows), x, label (rows), dx (may be x), rows, n, ignored.
// variants: T=f32,f16,bf16
// subgroups: yes
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 32u;
layout(constant_id = 1) const uint C1 = 1u;
layout(constant_id = 2) const uint C2 = 0u;
#include "body.glsl"
#include "prims.h"
#include "bodies/cross_entropy_grad.h"

layout(push_constant, scalar) uniform Args {
    PTR(f32) d;
    PTR(T) x;
    PTR(i32) label;
    PTR(T) dx;
    uint rows;
    uint n;
    int ignored;
};

void main() { cross_entropy_grad_body(d, x, label, dx, rows, n, ignored); }
