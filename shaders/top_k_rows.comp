#version 460
// The k first in order of each of `lines` rows of n floats, C2 times sixteen bytes of a row a thread.
// Grid: a group for each row; X folds into Y.
// Arguments: x, y (lines, k), index (lines, k), lines, n, k.
// variants: U=b2,b4
// subgroups: yes
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 4u;
layout(constant_id = 1) const uint C1 = 1u;
layout(constant_id = 2) const uint C2 = 4u;
layout(constant_id = 3) const uint C3 = 1u;
layout(constant_id = 4) const uint C4 = 3u;
#include "body.glsl"
#include "bodies/top_k_rows.h"

layout(push_constant, scalar) uniform Args {
    PTR(U) x;
    PTR(U) y;
    PTR(b8) index;
    uint lines;
    uint n;
    uint k;
};

void main() { top_k_rows_body(x, y, index, lines, n, k); }
