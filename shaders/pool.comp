#version 460
// y = the largest element or the mean of each window of x, or index = the place of the largest.
// Grid: a thread for each window, in groups of 256; X folds into Y.
// Arguments: x, meta (bodies/pool.h), y, index, total.
// variants: T=f32,f64,f16,bf16
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 0u;
layout(constant_id = 1) const uint C1 = 0u;
#include "body.glsl"
#include "body64.glsl"
#include "bodies/pool.h"

layout(push_constant, scalar) uniform Args {
    PTR(T) x;
    PTR(u32) meta;
    PTR(T) y;
    PTR(u32) index;
    uint total;
};

void main() { pool_body(x, meta, y, index, total); }
