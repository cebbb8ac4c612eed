// dx = y * (d - sum(d * y)) over the middle axis of (outer, n, inner): y is a softmax, d its gradient.
#include "columns.h"

RLX_FN void softmax_grad_axis_body(PTR(T) d, PTR(T) y, PTR(T) dx, const uint outer, const uint n, const uint inner) {
    const uint along = THREAD / ACROSS;
    const uint blocks = (inner + ACROSS - 1u) / ACROSS;
    const uint o = GROUP / blocks, i = GROUP % blocks * ACROSS + THREAD % ACROSS;
    const uint len = o < outer && i < inner ? n : 0u;
    PTR(T) pd = SKIP(T, d, o < outer ? o : 0u, n * inner);
    PTR(T) py = SKIP(T, y, o < outer ? o : 0u, n * inner);
    PTR(T) q = SKIP(T, dx, o < outer ? o : 0u, n * inner);
    float total = 0.0f;
    for (uint j = along; j < len; j += ALONG) total += LOAD(T, pd, j * inner + i) * LOAD(T, py, j * inner + i);
    total = column_sum(total);
    for (uint j = along; j < len; j += ALONG) {
        STORE(T, q, j * inner + i, LOAD(T, py, j * inner + i) * (LOAD(T, pd, j * inner + i) - total));
    }
}
