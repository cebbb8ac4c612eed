#version 460
// y = x read at the places that grid names, between its elements too.
// Grid: a thread for each place of eight channels, in groups of 256; X folds into Y.
// Arguments: x, grid (f32), meta (bodies/grid_sample.h), y, total.
// variants: T=f32,f16,bf16
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 0u;
layout(constant_id = 1) const uint C1 = 0u;
layout(constant_id = 2) const uint C2 = 0u;
layout(constant_id = 3) const uint C3 = 2u;
#include "body.glsl"
#include "bodies/grid_sample.h"

layout(push_constant, scalar) uniform Args {
    PTR(T) x;
    PTR(f32) grid;
    PTR(u32) meta;
    PTR(T) y;
    uint total;
};

void main() { grid_sample_body(x, grid, meta, y, total); }
