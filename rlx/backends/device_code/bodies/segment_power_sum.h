// y[row, k] = the sum over all parts of x (rows, parts, bins): four neighbours of k for each workgroup. 64 threads of each
// take every 64th part, eight at once; then they are added up by a fixed tree.
SHARED float found[256];

RLX_FN void segment_power_sum_body(PTR(f32) x, PTR(f32) y, const uint rows, const uint parts, const uint bins) {
    const uint groups = (bins + 3u) / 4u;
    if (GROUP >= rows * groups) return;
    const uint row = GROUP / groups, k = GROUP % groups * 4u + THREAD % 4u, first = THREAD / 4u;
    PTR(f32) here = SKIP(f32, x, row * parts, bins);
    float sum = 0.0f;
    for (uint part = first; part < parts; part += 512u) {
        float v[8];
        UNROLL for (uint i = 0u; i < 8u; i++) {
            const bool there = k < bins && part + i * 64u < parts;
            const float given = LOAD(f32, here, there ? (part + i * 64u) * bins + k : 0u);
            v[i] = there ? given : 0.0f;
        }
        sum += ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
    }
    found[THREAD] = sum;
    UNROLL for (uint s = 128u; s >= 4u; s /= 2u) {
        BARRIER;
        if (THREAD < s) found[THREAD] += found[THREAD + s];
    }
    if (THREAD < 4u && k < bins) STORE(f32, y, row * bins + k, found[THREAD]);
}
