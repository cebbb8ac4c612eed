#version 460
// y = x with its axes padded; bits are copied in units of U.
// Grid: a group for each 1024 of `total` units of y; X folds into Y.
// Arguments: x, meta, y, total, v0, v1, v2, v3 (the value).
// variants: U=b1,b2,b4,b8,b16
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 0u;
layout(constant_id = 1) const uint C1 = 1u;
#include "body.glsl"
#include "bodies/pad.h"

layout(push_constant, scalar) uniform Args {
    PTR(U) x;
    PTR(u32) meta;
    PTR(U) y;
    uint total;
    uint v0;
    uint v1;
    uint v2;
    uint v3;
};

void main() { pad_body(x, meta, y, total, v0, v1, v2, v3); }
