// the gradients of the keys and values of attention, from the rows that attention_dq leaves.
// Grid: a group of 256 for each 64 keys of each of b * kv_heads heads; X folds into Y.
// Arguments: dy, q, k, v, mask, lengths, rows, dk, dv, count, heads, kv_heads, sq, sk, d, mb, mh, mq, mk, each, window, scale, cap.
#include "bodies/body.h"
#include "prims.h"
#include "bodies/attention_dkv.h"

extern "C" __global__ void __launch_bounds__(256)
    attention_dkv(PTR(T) dy, PTR(T) q, PTR(T) k, PTR(T) v, PTR(M) mask, PTR(i32) lengths, PTR(f32) rows,
                  PTR(T) dk, PTR(T) dv, uint count, uint heads, uint kv_heads, uint sq, uint sk, uint d,
                  uint mb, uint mh, uint mq, uint mk, uint each, uint window, float scale, float cap) {
    attention_dkv_body(dy, q, k, v, mask, lengths, rows, dk, dv, count, heads, kv_heads, sq, sk, d, mb, mh, mq,
                       mk, each, window, scale, cap);
}
