// Adds up, in order, the parts into which the keys of an attention were cut: of part s and a row `figures` has, at
// s * rows + row, the greatest score and the total, `sums` d sums of weights times values. Each part is weighted by exp of
// its greatest score minus the greatest so far. DEEP parts are read at once, since waiting for one after the other would
// take longer than all else.
#include "arrivals.h"
#define DEEP 16u

RLX_FN float parts_sum(PTR(f32) figures, PTR(f32) sums, const uint rows, const uint row, const uint d, const uint c,
                       const uint splits) {
    float top = -INFINITE, total = 0.0f, sum = 0.0f;
    for (uint s0 = 0u; s0 < splits; s0 += DEEP) {
        float part_tops[DEEP], totals[DEEP], part_sums[DEEP];
        UNROLL for (uint s = 0u; s < DEEP; s++) {
            const uint part = (s0 + s < splits ? s0 + s : splits - 1u) * rows + row;
            part_tops[s] = SEEN(figures, part * 2u);
            totals[s] = SEEN(figures, part * 2u + 1u);
            part_sums[s] = SEEN(sums, part * d + c);
        }
        float greatest = top;
        UNROLL for (uint s = 0u; s < DEEP; s++) greatest = larger(part_tops[s], greatest);
        const float base = base_of(greatest), less = weight_of(top - base);
        top = greatest;
        total *= less;
        sum *= less;
        UNROLL for (uint s = 0u; s < DEEP; s++) {
            const float w = s0 + s < splits ? weight_of(part_tops[s] - base) : 0.0f;
            if (s0 + s < splits) {
                total = FMA(totals[s], w, total);
                sum = FMA(part_sums[s], w, sum);
            }
        }
    }
    return sum * inverse(total);
}
