#version 460
// y = the gradient of max pooling: d, added up where index says that a window's largest element lies.
// Grid: a thread for each element of y, in groups of 256; X folds into Y.
// Arguments: d, index, meta (bodies/pool.h), y, total.
// variants: T=f32,f64,f16,bf16
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
#include "body.glsl"
#include "body64.glsl"
#include "bodies/pool_back.h"

layout(push_constant, scalar) uniform Args {
    PTR(T) d;
    PTR(u32) index;
    PTR(u32) meta;
    PTR(T) y;
    uint total;
};

void main() { pool_back_body(d, index, meta, y, total); }
