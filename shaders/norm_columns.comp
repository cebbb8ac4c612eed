#version 460
// Parts of a norm's dgamma and, when C2 = 1, dbeta: sums over chunks of n of d, x (outer, n, inner).
// Grid: a group of 256 for each C0 places of inner, for each 256 / (C0 C1) of outer * splits; X folds into Y.
// Arguments: d, x, stats, dgamma, dbeta, outer, n, inner, chunk, splits, channels, length.
// variants: T=f32,f16,bf16
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 32u;
layout(constant_id = 1) const uint C1 = 8u;
layout(constant_id = 2) const uint C2 = 1u;
#include "body.glsl"
#include "bodies/norm_columns.h"

layout(push_constant, scalar) uniform Args {
    PTR(T) d;
    PTR(T) x;
    PTR(f32) stats;
    PTR(f32) dgamma;
    PTR(f32) dbeta;
    uint outer;
    uint n;
    uint inner;
    uint chunk;
    uint splits;
    uint channels;
    uint length;
};

void main() { norm_columns_body(d, x, stats, dgamma, dbeta, outer, n, inner, chunk, splits, channels, length); }
