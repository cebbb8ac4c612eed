// dx = y * (d - sum(d * y)) over rows: y is a softmax, d its gradient. A row in registers is read once.
#include "rows.h"

RLX_FN float dot4(const vec4 a, const vec4 b) { return (a.x * b.x + a.y * b.y) + (a.z * b.z + a.w * b.w); }
RLX_FN vec4 slope(const vec4 d, const vec4 y, const float t) {
    return VEC4(y.x * (d.x - t), y.y * (d.y - t), y.z * (d.z - t), y.w * (d.w - t));
}

RLX_FN void softmax_grad_body(PTR(T) d, PTR(T) y, PTR(T) dx, const uint rows, const uint n) {
    const uint row = ROW;
    const uint len = row < rows ? n : 0u;
    const uint at = row < rows ? row : 0u;
    PTR(T) pd = SKIP(T, d, at, n);
    PTR(T) py = SKIP(T, y, at, n);
    PTR(T) q = SKIP(T, dx, at, n);
    const uint quads = IN_REGISTERS ? QUADS : (n + 4u * LANES - 1u) / (4u * LANES);
    float total = 0.0f;
    if (IN_REGISTERS) {
        vec4 a[QUADS];
        vec4 b[QUADS];
        UNROLL for (uint j = 0u; j < QUADS; j++) {
            a[j] = get(pd, j, len, 0.0f);
            b[j] = get(py, j, len, 0.0f);
            total += dot4(a[j], b[j]);
        }
        total = row_sum(total);
        UNROLL for (uint j = 0u; j < QUADS; j++) put(q, j, len, slope(a[j], b[j], total));
    } else {
        for (uint j = 0u; j < quads; j++) total += dot4(get(pd, j, len, 0.0f), get(py, j, len, 0.0f));
        total = row_sum(total);
        for (uint j = 0u; j < quads; j++) {
            put(q, j, len, slope(get(pd, j, len, 0.0f), get(py, j, len, 0.0f), total));
        }
    }
}
