#version 460
// softmax(q k^T * scale + mask) v by matrix instructions: heads of d elements, rows q_row, k_row, v_row apart.
// Grid: a group of 128 for each 64 C4 queries of each of `count` = b * heads heads; X folds into Y.
// Arguments: q, k, v, mask, lengths, y, count, heads, kv_heads, sq, sk, d, mb, mh, mq, mk, each, window, q_row, k_row, v_row, scale, cap.
// variants: SMO=f16_f16_f16,bf16_bf16_bf16,f16_f16_f32,bf16_bf16_f32,f32_f16_f32,f32_bf16_f32;M=f32,bool
// compiler: new
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 128) in;
layout(constant_id = 0) const uint C0 = 2u;
layout(constant_id = 1) const uint C1 = 0u;
layout(constant_id = 2) const uint C2 = 0u;
layout(constant_id = 3) const uint C3 = 0u;
layout(constant_id = 4) const uint C4 = 1u;
layout(constant_id = 5) const uint C5 = 64u;
layout(constant_id = 6) const uint C6 = 1u;
layout(constant_id = 7) const uint C7 = 1u;
#include "body.glsl"
#include "prims.h"
#include "mma.glsl"
#include "attention_words.glsl"
#include "bodies/attention_matrix.h"
#include "bodies/attention_opaque.h"

layout(push_constant, scalar) uniform Args {
    PTR(T) q;
    PTR(T) k;
    PTR(T) v;
    PTR(M) mask;
    PTR(i32) lengths;
    PTR(O) y;
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
