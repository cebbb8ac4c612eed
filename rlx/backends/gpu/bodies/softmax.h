// y = exp(x - max) / sum(exp(x - max)) over rows. A row in registers is read once; a longer one three times.
#include "rows.h"

RLX_FN vec4 exp4(const vec4 v, const float top) {
    return VEC4(p_exp_f(v.x - top), p_exp_f(v.y - top), p_exp_f(v.z - top), p_exp_f(v.w - top));
}
RLX_FN vec4 scaled(const vec4 v, const float f) { return VEC4(v.x * f, v.y * f, v.z * f, v.w * f); }
RLX_FN float max4(const vec4 v) { return max_of(max_of(v.x, v.y), max_of(v.z, v.w)); }

RLX_FN void softmax_body(PTR(T) x, PTR(T) y, const uint rows, const uint n) {
    const uint row = ROW;
    const uint len = row < rows ? n : 0u;
    const uint at = row < rows ? row : 0u;
    PTR(T) p = SKIP(T, x, at, n);
    PTR(T) q = SKIP(T, y, at, n);
    const uint quads = IN_REGISTERS ? QUADS : (n + 4u * LANES - 1u) / (4u * LANES);
    float top = -INFINITE, total = 0.0f;
    if (IN_REGISTERS) {
        vec4 r[QUADS];
        UNROLL for (uint j = 0u; j < QUADS; j++) r[j] = get(p, j, len, -INFINITE);
        UNROLL for (uint j = 0u; j < QUADS; j++) top = max_of(max4(r[j]), top);
        top = row_max(top);
        UNROLL for (uint j = 0u; j < QUADS; j++) {
            r[j] = exp4(r[j], top);
            total += sum4(r[j]);
        }
        // Where a row is -inf throughout, so are the places beyond its end: NaN either way, as -inf - -inf is.
        const float inverse = p_recip_f(row_sum(total));
        UNROLL for (uint j = 0u; j < QUADS; j++) put(q, j, len, scaled(r[j], inverse));
    } else {
        for (uint j = 0u; j < quads; j++) top = max_of(max4(get(p, j, len, -INFINITE)), top);
        top = row_max(top);
        for (uint j = 0u; j < quads; j++) total += sum4(exp4(get(p, j, len, -INFINITE), top));
        const float inverse = p_recip_f(row_sum(total));
        for (uint j = 0u; j < quads; j++) put(q, j, len, scaled(exp4(get(p, j, len, -INFINITE), top), inverse));
    }
}
