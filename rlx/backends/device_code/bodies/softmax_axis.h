// Softmax over the middle axis of x (outer, n, inner). ACROSS threads lie along inner, 256 / ACROSS along n.
#define ALONG (256u / ACROSS)

SHARED float part[256];

RLX_FN float column_max(const float v) {
    part[THREAD] = v;
    for (uint s = 128u; s >= ACROSS; s /= 2u) {
        BARRIER;
        if (THREAD < s && part[THREAD + s] > part[THREAD]) part[THREAD] = part[THREAD + s];
    }
    BARRIER;
    return part[THREAD % ACROSS];
}

RLX_FN float column_sum(const float v) {
    BARRIER;
    part[THREAD] = v;
    for (uint s = 128u; s >= ACROSS; s /= 2u) {
        BARRIER;
        if (THREAD < s) part[THREAD] += part[THREAD + s];
    }
    BARRIER;
    return part[THREAD % ACROSS];
}

RLX_FN void softmax_axis_body(PTR(T) x, PTR(T) y, const uint outer, const uint n, const uint inner) {
    const uint along = THREAD / ACROSS;
    const uint blocks = (inner + ACROSS - 1u) / ACROSS;
    const uint o = GROUP / blocks, i = GROUP % blocks * ACROSS + THREAD % ACROSS;
    const uint len = o < outer && i < inner ? n : 0u;
    PTR(T) p = SKIP(T, x, o < outer ? o : 0u, n * inner);
    PTR(T) q = SKIP(T, y, o < outer ? o : 0u, n * inner);
    float top = -INFINITE, total = 0.0f;
    for (uint j = along; j < len; j += ALONG) {
        const float v = LOAD(T, p, j * inner + i);
        top = v > top ? v : top;  // a NaN comes back through the sum
    }
    top = column_max(top);
    for (uint j = along; j < len; j += ALONG) total += p_exp_f(LOAD(T, p, j * inner + i) - top);
    const float inverse = p_recip_f(column_sum(total));
    for (uint j = along; j < len; j += ALONG) {
        STORE(T, q, j * inner + i, p_exp_f(LOAD(T, p, j * inner + i) - top) * inverse);
    }
}
