// How gradients of attention that lie in registers are stored; a lane holds what attention_softmax.h says. CUDA only.
#include "attention_softmax.h"

// Writes rows `row` and row + 8 of a head's sums, each times `factor`, unless they lie beyond `limit`. Rows lie `pitch`
// elements apart.
RLX_FN void put_sums(PTR(O) head, const float* out, const float* factor, const uint row, const uint limit,
                     const uint pitch, const uint d) {
    UNROLL for (uint half = 0u; half < 2u; half++) {
        if (row + half * 8u < limit) {
            PTR(O) p = SKIP(O, head, row + half * 8u, pitch);
            UNROLL for (uint n = 0u; n < OUTPUTS / 2u; n += 2u) {
                const uint column = COLUMN(n);
                const float a = out[ELEMENT(n, half)] * factor[half], b = out[ELEMENT(n + 1u, half)] * factor[half];
                if (ALIGNED) {  // and d a multiple of eight
                    if (n / 2u * 8u < d) STORE_TWO(p, column, a, b);
                } else {
                    if (column < d) STORE(O, p, column, a);
                    if (column + 1u < d) STORE(O, p, column + 1u, b);
                }
            }
        }
    }
}
