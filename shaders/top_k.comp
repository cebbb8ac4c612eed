#version 460
// The k first in order of each part of `chunk` elements of the lines along n of x (outer, n, inner).
// Grid: a group for each part of each of `lines` lines; X folds into Y.
// Arguments: x, list (lines, listed), made (lines, splits, k), y and index (outer, k, inner), lines, n, listed, inner, k, chunk, splits.
// variants: U=b1,b2,b4,b8
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 2048u;
layout(constant_id = 1) const uint C1 = 4u;
layout(constant_id = 2) const uint C2 = 0u;
layout(constant_id = 3) const uint C3 = 0u;
#include "body.glsl"
#include "bodies/top_k.h"

layout(push_constant, scalar) uniform Args {
    PTR(U) x;
    PTR(u32) list;
    PTR(u32) made;
    PTR(U) y;
    PTR(b8) index;
    uint lines;
    uint n;
    uint listed;
    uint inner;
    uint k;
    uint chunk;
    uint splits;
};

void main() { top_k_body(x, list, made, y, index, lines, n, listed, inner, k, chunk, splits); }
