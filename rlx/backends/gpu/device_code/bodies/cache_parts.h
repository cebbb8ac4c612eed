// Adds up, in order, the parts that packed_attention or paged_attention leaves: each part's sums are weighted by exp of
// its greatest score minus the greatest score so far. DEEP parts are read at once, since waiting for one after the other
// would take longer than all else.
#define LARGER(a, b) ((a) > (b) ? (a) : (b))
#define DEEP 16u

RLX_FN void cache_parts_body(PTR(f32) parts, PTR(T) y, const uint rows, const uint d, const uint splits) {
    const uint at = GROUP * 256u + THREAD, row = at / d, c = at % d;
    if (row >= rows) return;
    float top = -INFINITE, total = 0.0f, sum = 0.0f;
    for (uint s0 = 0u; s0 < splits; s0 += DEEP) {
        float tops[DEEP], totals[DEEP], sums[DEEP];
        UNROLL for (uint s = 0u; s < DEEP; s++) {
            const uint part = (s0 + s < splits ? s0 + s : splits - 1u) * rows + row;
            PTR(f32) figures = SKIP(f32, parts, part, 2u);
            tops[s] = LOAD(f32, figures, 0u);
            totals[s] = LOAD(f32, figures, 1u);
            PTR(f32) of_part = SKIP(f32, SKIP(f32, parts, splits * rows, 2u), part, d);
            sums[s] = LOAD(f32, of_part, c);
        }
        float greatest = top;
        UNROLL for (uint s = 0u; s < DEEP; s++) greatest = LARGER(tops[s], greatest);
        const float base = greatest == -INFINITE ? 0.0f : greatest, less = p_exp_f(top - base);
        top = greatest;
        total *= less;
        sum *= less;
        UNROLL for (uint s = 0u; s < DEEP; s++) {
            const float w = s0 + s < splits ? p_exp_f(tops[s] - base) : 0.0f;
            if (s0 + s < splits) {
                total = FMA(totals[s], w, total);
                sum = FMA(sums[s], w, sum);
            }
        }
    }
    PTR(T) py = SKIP(T, y, row, d);
    STORE(T, py, c, total == 0.0f ? 0.0f : sum * p_recip_f(total));
}
