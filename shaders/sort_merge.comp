#version 460
// Sorted runs of `run` pairs of `lines` lines of n, merged two by two; the last time into elements and places.
// Grid: a group for each 256 places of a line; X folds into Y.
// Arguments: x, source and pairs (lines, n), y and index (outer, keep, inner), lines, n, inner, keep, run.
// variants: U=b1,b2,b4,b8
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 0u;
#include "body.glsl"
#include "bodies/sort_merge.h"

layout(push_constant, scalar) uniform Args {
    PTR(U) x;
    PTR(PU) source;
    PTR(PU) pairs;
    PTR(U) y;
    PTR(b8) index;
    uint lines;
    uint n;
    uint inner;
    uint keep;
    uint run;
};

void main() { sort_merge_body(x, source, pairs, y, index, lines, n, inner, keep, run); }
