#version 460
// y = the window of x that begins at `starts`; bits are copied in units of U.
// Grid: a thread for each of `total` units of the window; X folds into Y.
// Arguments: x, starts, meta, y, total, axes.
// variants: U=b1,b2,b4,b8,b16;I=i32,i64
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
#include "body.glsl"
#include "bodies/dynamic_slice.h"

layout(push_constant, scalar) uniform Args {
    PTR(U) x;
    PTR(i32) starts;
    PTR(u32) meta;
    PTR(U) y;
    uint total;
    uint axes;
};

void main() { dynamic_slice_body(x, starts, meta, y, total, axes); }
