#version 460
// y (lines, taps, positions) = the elements of x under every position of a window; moves bits.
// Grid: a thread for each unit of y, in groups of 256; X folds into Y.
// Arguments: x, meta (bodies/im2col.h), y, total, units.
// variants: U=b1,b2,b4
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
#include "body.glsl"
#define NOTHING_b1 uint8_t(0u)
#define NOTHING_b2 uint16_t(0u)
#define NOTHING_b4 0u
#define NOTHING(U) RLX_JOIN(NOTHING_, U)
#include "bodies/im2col.h"

layout(push_constant, scalar) uniform Args {
    PTR(U) x;
    PTR(u32) meta;
    PTR(U) y;
    uint total;
    uint units;
};

void main() { im2col_body(x, meta, y, total, units); }
