#version 460
// Attention of a few queries against many keys: the result, or parts of it that attention_combine adds up.
// Grid: a group of 256 for each of `splits` parts of the keys of each block of C4 query rows of each of b * kv_heads heads; X folds into Y.
// Arguments: q, k, v, mask, lengths, y, parts, count, heads, kv_heads, sq, sk, d, mb, mh, mq, mk, each, window, q_row, k_row, v_row, splits, scale, cap.
// variants: T=f32,f16,bf16;M=f32,bool
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 2u;
layout(constant_id = 1) const uint C1 = 0u;
layout(constant_id = 2) const uint C2 = 0u;
layout(constant_id = 3) const uint C3 = 0u;
layout(constant_id = 4) const uint C4 = 1u;
layout(constant_id = 5) const uint C5 = 0u;
#include "body.glsl"
#include "prims.h"
#include "bodies/attention_decode.h"

layout(push_constant, scalar) uniform Args {
    PTR(T) q;
    PTR(T) k;
    PTR(T) v;
    PTR(M) mask;
    PTR(i32) lengths;
    PTR(T) y;
    PTR(f32) parts;
    uint count;
    uint heads;
    uint kv_heads;
    uint sq;
    uint sk;
    uint d;
    uint mb;
    uint mh;
    uint mq;
    uint mk;
    uint each;
    uint window;
    uint q_row;
    uint k_row;
    uint v_row;
    uint splits;
    float scale;
    float cap;
};

void main() {
    attention_decode_body(q, k, v, mask, lengths, y, parts, count, heads, kv_heads, sq, sk, d, mb, mh, mq, mk,
                          each, window, q_row, k_row, v_row, splits, scale, cap);
}
