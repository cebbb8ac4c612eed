// Without TOTALS y = x - max - log(sum(exp(x - max))) over rows; with TOTALS y, one number a row, = log(sum(exp(x -
// max))) + max, where a largest element that is infinite is not taken out. A row in registers is read once; a longer
// one three times.
#include "rows.h"

RLX_FN float exp_sum4(const vec4 v, const float top) {
    return sum4(VEC4(p_exp_f(v.x - top), p_exp_f(v.y - top), p_exp_f(v.z - top), p_exp_f(v.w - top)));
}
RLX_FN float max4(const vec4 v) { return max_of(max_of(v.x, v.y), max_of(v.z, v.w)); }
RLX_FN vec4 lowered(const vec4 v, const float top, const float log_sum) {
    return VEC4(v.x - top - log_sum, v.y - top - log_sum, v.z - top - log_sum, v.w - top - log_sum);
}
RLX_FN float taken_out(const float top) { return TOTALS && !(top - top == 0.0f) ? 0.0f : top; }

RLX_FN void log_softmax_body(PTR(T) x, PTR(T) y, const uint rows, const uint n) {
    const uint row = ROW;
    const uint len = row < rows ? n : 0u;
    const uint at = row < rows ? row : 0u;
    PTR(T) p = SKIP(T, x, at, n);
    const uint quads = IN_REGISTERS ? QUADS : (n + 4u * LANES - 1u) / (4u * LANES);
    float top = -INFINITE, total = 0.0f;
    if (IN_REGISTERS) {
        vec4 r[QUADS];
        UNROLL for (uint j = 0u; j < QUADS; j++) r[j] = get(p, j, len, -INFINITE);
        UNROLL for (uint j = 0u; j < QUADS; j++) top = max_of(max4(r[j]), top);
        top = taken_out(row_max(top));
        UNROLL for (uint j = 0u; j < QUADS; j++) total += exp_sum4(r[j], top);
        const float log_sum = p_log_f(row_sum(total));
        if (TOTALS) {
            if (LANE == 0u && row < rows) STORE(T, y, row, log_sum + top);
        } else {
            PTR(T) q = SKIP(T, y, at, n);
            UNROLL for (uint j = 0u; j < QUADS; j++) put(q, j, len, lowered(r[j], top, log_sum));
        }
    } else {
        for (uint j = 0u; j < quads; j++) top = max_of(max4(get(p, j, len, -INFINITE)), top);
        top = taken_out(row_max(top));
        for (uint j = 0u; j < quads; j++) total += exp_sum4(get(p, j, len, -INFINITE), top);
        const float log_sum = p_log_f(row_sum(total));
        if (TOTALS) {
            if (LANE == 0u && row < rows) STORE(T, y, row, log_sum + top);
        } else {
            PTR(T) q = SKIP(T, y, at, n);
            for (uint j = 0u; j < quads; j++) put(q, j, len, lowered(get(p, j, len, -INFINITE), top, log_sum));
        }
    }
}
