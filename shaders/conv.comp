#version 460
// y = act(product of weights w and columns read out of x + bias): convolution, transposed convolution, its gradient to x.
// Grid: a group of 256 for each tile of C0 rows x C1 columns of each group, phase and split; X folds into Y.
// Arguments: x, w, bias (f32), taps, places, meta (bodies/conv.h), y, batch, groups, rows, phases, columns, chunk, splits.
// variants: AB=f32_f32,f32_f16,f32_bf16,f16_f16,bf16_bf16
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 64u;
layout(constant_id = 1) const uint C1 = 64u;
layout(constant_id = 2) const uint C2 = 0u;
layout(constant_id = 3) const uint C3 = 0u;
layout(constant_id = 4) const uint C4 = 0u;
layout(constant_id = 5) const uint C5 = 0u;
layout(constant_id = 6) const uint C6 = 0u;
#include "body.glsl"
#include "bodies/conv.h"

layout(push_constant, scalar) uniform Args {
    PTR(TA) x;
    PTR(TB) w;
    PTR(f32) bias;
    PTR(b16) taps;
    PTR(u32) places;
    PTR(u32) meta;
    PTR(TA) y;
    uint batch;
    uint groups;
    uint rows;
    uint phases;
    uint columns;
    uint chunk;
    uint splits;
};

void main() { conv_body(x, w, bias, taps, places, meta, y, batch, groups, rows, phases, columns, chunk, splits); }
