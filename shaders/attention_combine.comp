#version 460
// The parts that attention_decode leaves, (splits, rows, 2) figures and (splits, rows, d) sums, added up in order.
// Grid: a group of 256 for each 256 columns of each row; X folds into Y.
// Arguments: parts, y, rows, d, splits.
// variants: T=f32,f16,bf16
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
#include "body.glsl"
#include "prims.h"
#include "bodies/attention_combine.h"

layout(push_constant, scalar) uniform Args {
    PTR(f32) parts;
    PTR(T) y;
    uint rows;
    uint d;
    uint splits;
};

void main() {
    attention_combine_body(parts, y, rows, d, splits);
}
