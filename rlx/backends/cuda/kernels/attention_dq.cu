// the gradient of the queries of attention, and per query row what attention_dkv needs: rows (3, count, sq).
// Grid: a group of 256 for each 64 queries of each of `count` = b * heads heads; X folds into Y.
// Arguments: dy, q, k, v, mask, lengths, dq, rows, count, heads, kv_heads, sq, sk, d, mb, mh, mq, mk, each, window, scale, cap.
#include "bodies/body.h"
#include "prims.h"
#include "bodies/attention_dq.h"

extern "C" __global__ void __launch_bounds__(256)
    attention_dq(PTR(T) dy, PTR(T) q, PTR(T) k, PTR(T) v, PTR(M) mask, PTR(i32) lengths, PTR(T) dq,
                 PTR(f32) rows, uint count, uint heads, uint kv_heads, uint sq, uint sk, uint d, uint mb,
                 uint mh, uint mq, uint mk, uint each, uint window, float scale, float cap) {
    attention_dq_body(dy, q, k, v, mask, lengths, dq, rows, count, heads, kv_heads, sq, sk, d, mb, mh, mq, mk,
                      each, window, scale, cap);
}
