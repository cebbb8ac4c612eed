#version 460
// Blocks of C0 elements of the lines along n of x (outer, n, inner), `lines` = outer * inner, each sorted.
// Grid: a group for each C0 < 512 ? 512 / C0 : 1 of the lines * blocks; X folds into Y.
// Arguments: x, pairs (lines, n), y and index (outer, keep, inner), lines, n, inner, keep, blocks.
// variants: U=b1,b2,b4,b8
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 512u;
layout(constant_id = 1) const uint C1 = 4u;
layout(constant_id = 2) const uint C2 = 0u;
layout(constant_id = 3) const uint C3 = 3u;
#include "body.glsl"
#include "bodies/sort_rows.h"

layout(push_constant, scalar) uniform Args {
    PTR(U) x;
    PTR(PU) pairs;
    PTR(U) y;
    PTR(b8) index;
    uint lines;
    uint n;
    uint inner;
    uint keep;
    uint blocks;
};

void main() { sort_rows_body(x, pairs, y, index, lines, n, inner, keep, blocks); }
