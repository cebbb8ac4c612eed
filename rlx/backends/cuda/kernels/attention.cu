// softmax(q k^T * scale + mask) v: heads of d elements, rows q_row, k_row, v_row apart; strides of 0 repeat.
// Grid: a group of 256 for each 64 queries of each of `count` = b * heads heads; X folds into Y.
// Arguments: q, k, v, mask, lengths, y, count, heads, kv_heads, sq, sk, d, mb, mh, mq, mk, each, window, q_row, k_row, v_row, scale, cap.
#include "bodies/body.h"
#include "prims.h"
#include "bodies/attention.h"

extern "C" __global__ void __launch_bounds__(256)
    attention(PTR(T) q, PTR(T) k, PTR(T) v, PTR(M) mask, PTR(i32) lengths, PTR(T) y, uint count, uint heads,
              uint kv_heads, uint sq, uint sk, uint d, uint mb, uint mh, uint mq, uint mk, uint each,
              uint window, uint q_row, uint k_row, uint v_row, float scale, float cap) {
    attention_body(q, k, v, mask, lengths, y, count, heads, kv_heads, sq, sk, d, mb, mh, mq, mk, each, window,
                   q_row, k_row, v_row, scale, cap);
}
