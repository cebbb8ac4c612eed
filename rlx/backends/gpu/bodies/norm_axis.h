// y = (x - mean) / sqrt(var + eps) * gamma + beta over the middle axis of x (outer, n, inner). Three sweeps.
#include "columns.h"

RLX_FN void norm_axis_body(PTR(T) x, PTR(W) gamma, PTR(W) beta, PTR(T) y, const uint outer, const uint n,
                           const uint inner, const float eps) {
    const uint along = THREAD / ACROSS;
    const uint blocks = (inner + ACROSS - 1u) / ACROSS;
    const uint o = GROUP / blocks, i = GROUP % blocks * ACROSS + THREAD % ACROSS;
    const uint len = o < outer && i < inner ? n : 0u;
    PTR(T) p = SKIP(T, x, o < outer ? o : 0u, n * inner);
    PTR(T) q = SKIP(T, y, o < outer ? o : 0u, n * inner);
    const float count = float(n);
    float total = 0.0f;
    for (uint j = along; j < len; j += ALONG) total += LOAD(T, p, j * inner + i);
    const float mean = p_div_f(column_sum(total), count);
    total = 0.0f;
    for (uint j = along; j < len; j += ALONG) {
        const float v = LOAD(T, p, j * inner + i) - mean;
        total += v * v;
    }
    const float inverse = p_rsqrt_f(p_div_f(column_sum(total), count) + eps);
    for (uint j = along; j < len; j += ALONG) {
        const float v = (LOAD(T, p, j * inner + i) - mean) * inverse;
        STORE(T, q, j * inner + i, v * LOAD(W, gamma, j) + LOAD(W, beta, j));
    }
}
