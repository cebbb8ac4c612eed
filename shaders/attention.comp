#version 460
// softmax(q k^T * scale + mask) v: heads of d elements, rows q_row, k_row, v_row apart; strides of 0 repeat.
// Grid: a group of 256 for each 64 queries of each of `count` = b * heads heads; X folds into Y.
// Arguments: q, k, v, mask, lengths, y, count, heads, kv_heads, sq, sk, d, mb, mh, mq, mk, each, window, q_row, k_row, v_row, scale, cap.
// variants: T=f32,f16,bf16;M=f32,bool
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 2u;
layout(constant_id = 1) const uint C1 = 0u;
layout(constant_id = 2) const uint C2 = 0u;
layout(constant_id = 3) const uint C3 = 0u;
#include "body.glsl"
#include "prims.h"
#include "bodies/attention.h"

layout(push_constant, scalar) uniform Args {
    PTR(T) q;
    PTR(T) k;
    PTR(T) v;
    PTR(M) mask;
    PTR(i32) lengths;
    PTR(T) y;
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
    float scale;
    float cap;
};

void main() {
    attention_body(q, k, v, mask, lengths, y, count, heads, kv_heads, sq, sk, d, mb, mh, mq, mk, each, window,
                   q_row, k_row, v_row, scale, cap);
}
