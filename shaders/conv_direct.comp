#version 460
// y = act(weights w times what they lie on in x + bias), a thread for each element: convolutions of few rows a group.
// Grid: a thread for each row, phase and column of each group, in groups of 256; X folds into Y.
// Arguments: x, w, bias (f32), taps, places, meta (bodies/conv.h), y, batch, groups, rows, phases, columns.
// variants: AB=f32_f32,f64_f64,f32_f16,f32_bf16,f16_f16,bf16_bf16
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 0u;
layout(constant_id = 1) const uint C1 = 0u;
layout(constant_id = 2) const uint C2 = 0u;
#include "body.glsl"
#include "body64.glsl"
#include "bodies/conv_direct.h"

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
};

void main() { conv_direct_body(x, w, bias, taps, places, meta, y, batch, groups, rows, phases, columns); }
