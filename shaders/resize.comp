#version 460
// y = x resized along up to three axes: weighted sums of the neighbours that the tables name.
// Grid: a thread for each element of y, in groups of 256; X folds into Y.
// Arguments: x, index, weight, meta (bodies/resize.h), y, total.
// variants: IO=f32_f32,f64_f64,f16_f16,bf16_bf16,f16_f32,bf16_f32,f32_f16,f32_bf16
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 1u;
layout(constant_id = 1) const uint C1 = 2u;
layout(constant_id = 2) const uint C2 = 2u;
#include "body.glsl"
#include "body64.glsl"
#include "bodies/resize.h"

layout(push_constant, scalar) uniform Args {
    PTR(TI) x;
    PTR(u32) index;
    PTR(TW) weight;
    PTR(u32) meta;
    PTR(TO) y;
    uint total;
};

void main() { resize_body(x, index, weight, meta, y, total); }
