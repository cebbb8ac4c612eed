// Attention of a few queries against many keys: the result, or parts of it that attention_combine adds up.
// Grid: a group of 256 for each of `splits` parts of the keys of each block of C4 query rows of each of b * kv_heads heads; X folds into Y.
// Arguments: q, k, v, mask, lengths, y, parts, count, heads, kv_heads, sq, sk, d, mb, mh, mq, mk, each, window, q_row, k_row, v_row, splits, scale, cap.
#include "bodies/body.h"
#include "prims.h"
#include "bodies/attention_decode.h"

extern "C" __global__ void __launch_bounds__(256)
    attention_decode(PTR(T) q, PTR(T) k, PTR(T) v, PTR(M) mask, PTR(i32) lengths, PTR(T) y, PTR(f32) parts,
                     uint count, uint heads, uint kv_heads, uint sq, uint sk, uint d, uint mb, uint mh,
                     uint mq, uint mk, uint each, uint window, uint q_row, uint k_row, uint v_row,
                     uint splits, float scale, float cap) {
    attention_decode_body(q, k, v, mask, lengths, y, parts, count, heads, kv_heads, sq, sk, d, mb, mh, mq, mk,
                          each, window, q_row, k_row, v_row, splits, scale, cap);
}
