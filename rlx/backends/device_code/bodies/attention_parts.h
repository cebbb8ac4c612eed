// The parts into which the keys of an attention are cut: of part s and a row `figures` has, at s * rows + row, the
// greatest score and the total, `sums` d sums of weights times values. They are added up in order. Each part is weighted
// by exp of its greatest score minus the greatest so far. DEEP parts are read at once, since waiting for one after the
// other would take longer than all else. PART_AT(p, i): an element of either, by default one that another workgroup of
// the launch may have shown.
#include "arrivals.h"
#ifndef PART_AT
#define PART_AT(p, i) SEEN(p, i)
#endif
#define DEEP 16u

// 1 / total for a total of 0, or of at least 1, which is the greatest weight. Through Vulkan a step of attention takes 0.8 µs
// longer with a division that is rounded correctly.
RLX_FN float quick_inverse(const float total) { return total == 0.0f ? 0.0f : RLX_QUICK_RECIP(total); }

// Element c of row `row` of part s, of `rows` rows of d elements; c = 0 brings the row's greatest score and total.
RLX_FN void show_part(PTR(f32) figures, PTR(f32) sums, const uint rows, const uint row, const uint s, const uint d,
                      const uint c, const float top, const float total, const float sum) {
    SHOW(sums, (s * rows + row) * d + c, sum);
    if (c != 0u) return;
    SHOW(figures, (s * rows + row) * 2u, top);
    SHOW(figures, (s * rows + row) * 2u + 1u, total);
}
RLX_FN float parts_sum(PTR(f32) figures, PTR(f32) sums, const uint rows, const uint row, const uint d, const uint c,
                       const uint splits) {
    float top = -INFINITE, total = 0.0f, sum = 0.0f;
    for (uint s0 = 0u; s0 < splits; s0 += DEEP) {
        float part_tops[DEEP], totals[DEEP], part_sums[DEEP];
        UNROLL for (uint s = 0u; s < DEEP; s++) {
            const uint part = (s0 + s < splits ? s0 + s : splits - 1u) * rows + row;
            part_tops[s] = PART_AT(figures, part * 2u);
            totals[s] = PART_AT(figures, part * 2u + 1u);
            part_sums[s] = PART_AT(sums, part * d + c);
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
    return sum * quick_inverse(total);
}
