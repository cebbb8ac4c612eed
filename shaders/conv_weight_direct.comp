#version 460
// y = gradient of a convolution's weights, of its input x and the gradient d of its result, for small groups.
// Grid: a group of 256 for each element of y; X folds into Y.
// Arguments: x, d, meta (bodies/conv_weight.h), y, batch, groups, rows, columns.
// variants: T=f32,f64,f16,bf16
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
#include "body.glsl"
#include "body64.glsl"
#include "bodies/conv_weight_direct.h"

layout(push_constant, scalar) uniform Args {
    PTR(T) x;
    PTR(T) d;
    PTR(u32) meta;
    PTR(T) y;
    uint batch;
    uint groups;
    uint rows;
    uint columns;
};

void main() { conv_weight_direct_body(x, d, meta, y, batch, groups, rows, columns); }
