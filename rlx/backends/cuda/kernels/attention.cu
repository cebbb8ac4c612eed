// softmax(q k^T * scale + mask) v: q (b, heads, sq, d), k and v (b, kv_heads, sk, d); strides of 0 repeat.
// Grid: a group of 256 for each 64 queries of each of `count` = b * heads heads; X folds into Y.
// Arguments: q, k, v, mask, lengths, y, count, heads, kv_heads, sq, sk, d, mb, mh, mq, mk, each, window, scale, cap.
#include "bodies/body.h"
#include "prims.h"
#include "bodies/attention.h"

extern "C" __global__ void __launch_bounds__(256)
    attention(PTR(T) q, PTR(T) k, PTR(T) v, PTR(M) mask, PTR(i32) lengths, PTR(T) y, uint count, uint heads,
              uint kv_heads, uint sq, uint sk, uint d, uint mb, uint mh, uint mq, uint mk, uint each,
              uint window, float scale, float cap) {
    attention_body(q, k, v, mask, lengths, y, count, heads, kv_heads, sq, sk, d, mb, mh, mq, mk, each, window,
                   scale, cap);
}
