// Adds up, in order, the parts that attention_decode leaves: each part's sums are weighted by exp of its greatest score
// minus the greatest score of all parts.
#define LARGER(a, b) ((a) > (b) ? (a) : (b))

RLX_FN void attention_combine_body(PTR(f32) parts, PTR(T) y, const uint rows, const uint d, const uint splits) {
    const uint blocks = (d + 255u) / 256u;
    const uint row = GROUP / blocks, c = GROUP % blocks * 256u + THREAD;
    if (row >= rows || c >= d) return;
    float top = -INFINITE;
    for (uint s = 0u; s < splits; s++) {
        PTR(f32) figures = SKIP(f32, parts, s * rows + row, 2u);
        top = LARGER(LOAD(f32, figures, 0u), top);
    }
    const float base = top == -INFINITE ? 0.0f : top;
    float total = 0.0f, sum = 0.0f;
    for (uint s = 0u; s < splits; s++) {
        PTR(f32) figures = SKIP(f32, parts, s * rows + row, 2u);
        PTR(f32) sums = SKIP(f32, SKIP(f32, parts, splits * rows, 2u), s * rows + row, d);
        const float w = p_exp_f(LOAD(f32, figures, 0u) - base);
        total = FMA(LOAD(f32, figures, 1u), w, total);
        sum = FMA(LOAD(f32, sums, c), w, sum);
    }
    PTR(T) py = SKIP(T, y, row, d);
    STORE(T, py, c, total == 0.0f ? 0.0f : sum * p_recip_f(total));
}
