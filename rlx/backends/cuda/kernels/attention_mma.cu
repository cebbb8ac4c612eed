// softmax(q k^T * scale + mask) v by matrix instructions: heads of d elements, rows q_row, k_row, v_row apart.
// Grid: a group of 128 for each 64 C4 queries of each of `count` = b * heads heads; X folds into Y.
// Arguments: q, k, v, mask, lengths, y, count, heads, kv_heads, sq, sk, d, mb, mh, mq, mk, each, window, q_row, k_row, v_row, scale, cap.
#include "bodies/body.h"
#include "prims.h"
#include "bodies/mma.h"
#include "bodies/attention_words.h"
#include "bodies/attention_matrix.h"
#if C6 == 1
#include "bodies/attention_opaque.h"
#else
#include "bodies/attention_softmax.h"
#endif
#if C6 == 2
// architecture-specific where C6=2: wgmma
#include "bodies/wgmma.h"
#include "bodies/attention_wgmma.h"
#elif C6 == 0
#include "bodies/attention_mma.h"
#endif

extern "C" __global__ void __launch_bounds__(128)
    attention_mma(PTR(T) q, PTR(T) k, PTR(T) v, PTR(M) mask, PTR(i32) lengths, PTR(O) y, uint count,
                  uint heads, uint kv_heads, uint sq, uint sk, uint d, uint mb, uint mh, uint mq, uint mk,
                  uint each, uint window, uint q_row, uint k_row, uint v_row, float scale, float cap) {
    attention_body(q, k, v, mask, lengths, y, count, heads, kv_heads, sq, sk, d, mb, mh, mq, mk, each, window,
                   q_row, k_row, v_row, scale, cap);
}
