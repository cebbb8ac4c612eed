// y = (x - mean) / sqrt(var + eps) * gamma + beta over the middle axis of x (outer, n, inner). Three sweeps, and one
// over the first sixteenth: the mean is kept as two floats, as in row_mean.h.
#include "columns.h"

RLX_FN void norm_axis_body(PTR(T) x, PTR(W) gamma, PTR(W) beta, PTR(T) y, const uint outer, const uint n,
                           const uint inner, const float eps) {
    const uint along = THREAD / ACROSS;
    const uint blocks = (inner + ACROSS - 1u) / ACROSS;
    const uint o = GROUP / blocks, i = GROUP % blocks * ACROSS + THREAD % ACROSS;
    const uint len = o < outer && i < inner ? n : 0u;
    PTR(T) p = SKIP(T, x, o < outer ? o : 0u, n * inner);
    PTR(T) q = SKIP(T, y, o < outer ? o : 0u, n * inner);
    const float share = p_recip_f(float(n));
    const uint most = (n + 15u) / 16u;
    const uint few = len < most ? len : most;
    const float first = len > 0u ? LOAD(T, p, i) : 0.0f;
    float mean = 0.0f, rest = 0.0f, total = 0.0f;
    for (uint j = along; j < few; j += ALONG) mean += LOAD(T, p, j * inner + i) - first;
    mean = first + column_sum(mean) * p_recip_f(float(most));
    for (uint j = along; j < len; j += ALONG) rest += LOAD(T, p, j * inner + i) - mean;
    rest = column_sum(rest) * share;
    for (uint j = along; j < len; j += ALONG) {
        const float v = (LOAD(T, p, j * inner + i) - mean) - rest;
        total += v * v;
    }
    const float inverse = p_rsqrt_f(column_sum(total) * share + eps);
    for (uint j = along; j < len; j += ALONG) {
        const float v = ((LOAD(T, p, j * inner + i) - mean) - rest) * inverse;
        STORE(T, q, j * inner + i, v * LOAD(W, gamma, j) + LOAD(W, beta, j));
    }
}
