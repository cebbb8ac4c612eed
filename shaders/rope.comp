#version 460
// Rotary position embedding of x (outer, seq, inner, d) by tables of `pairs` angles a position.
// Grid: a thread for each of `total` = outer * seq * inner * units; X folds into Y.
// Arguments: x, cosine, sine, position, y (may be x), total, seq, inner, d, pairs, per, rows, offset, members.
// variants: T=f32,f16,bf16
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 0u;
layout(constant_id = 1) const uint C1 = 0u;
layout(constant_id = 2) const uint C2 = 0u;
layout(constant_id = 3) const uint C3 = 0u;
#include "body.glsl"
#include "bodies/rope.h"

layout(push_constant, scalar) uniform Args {
    PTR(T) x;
    PTR(f32) cosine;
    PTR(f32) sine;
    PTR(i32) position;
    PTR(T) y;
    uint total;
    uint seq;
    uint inner;
    uint d;
    uint pairs;
    uint per;
    uint rows;
    uint offset;
    uint members;
};

void main() { rope_body(x, cosine, sine, position, y, total, seq, inner, d, pairs, per, rows, offset, members); }
