// y[row, k] = the sum over all parts of x (rows, parts, bins): eight neighbours of k for each workgroup, whose 32 threads
// of each take every 32nd part, in order; then they are added up by a fixed tree.
SHARED float found[256];

RLX_FN void segment_power_sum_body(PTR(f32) x, PTR(f32) y, const uint rows, const uint parts, const uint bins) {
    const uint groups = (bins + 7u) / 8u;
    if (GROUP >= rows * groups) return;
    const uint row = GROUP / groups, k = GROUP % groups * 8u + THREAD % 8u;
    float sum = 0.0f;
    if (k < bins) {
        for (uint part = THREAD / 8u; part < parts; part += 32u) sum += LOAD(f32, x, (row * parts + part) * bins + k);
    }
    found[THREAD] = sum;
    UNROLL for (uint s = 128u; s >= 8u; s /= 2u) {
        BARRIER;
        if (THREAD < s) found[THREAD] += found[THREAD + s];
    }
    if (THREAD < 8u && k < bins) STORE(f32, y, row * bins + k, found[THREAD]);
}
