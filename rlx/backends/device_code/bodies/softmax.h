// y = exp(x - max) / sum(exp(x - max)) over rows. A row in registers is read once; a longer one three times.
#include "rows8.h"

// Of results of 16 bits exp is within 2^-16, where a device's own 2^x is (GLSL: 3 + 2 |x| ULP); 0 below 2^-126.
RLX_FN float exp_half(const float x) { return RLX_FLUSHED_EXP2(x * 1.442695022e+00f); }
#define EXP_f32(x) p_exp_f(x)
#define EXP_f16(x) exp_half(x)
#define EXP_bf16(x) exp_half(x)
#define EXP(x) RLX_JOIN(EXP_, T)(x)

RLX_FN vec4 exp4(const vec4 v, const float top) {
    return VEC4(EXP(v.x - top), EXP(v.y - top), EXP(v.z - top), EXP(v.w - top));
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
        UNROLL for (uint j = 0u; j < QUADS; j += STEP) get2(p, j, len, -INFINITE, r[j], r[j + STEP - 1u]);
        UNROLL for (uint j = 0u; j < QUADS; j++) top = max_of(max4(r[j]), top);
        top = row_max(top);
        UNROLL for (uint j = 0u; j < QUADS; j++) {
            r[j] = exp4(r[j], top);
            total += counted(sum4(r[j]), j, len);
        }
        // Where a row is -inf throughout, so are the places beyond its end: NaN either way, as -inf - -inf is.
        const float inverse = p_recip_f(row_sum(total));
        UNROLL for (uint j = 0u; j < QUADS; j += STEP) {
            put2(q, j, len, scaled(r[j], inverse), scaled(r[j + STEP - 1u], inverse));
        }
    } else {
        for (uint j = 0u; j < quads; j++) top = max_of(max4(get(p, j, len, -INFINITE)), top);
        top = row_max(top);
        for (uint j = 0u; j < quads; j++) total += sum4(exp4(get(p, j, len, -INFINITE), top));
        const float inverse = p_recip_f(row_sum(total));
        for (uint j = 0u; j < quads; j++) put(q, j, len, scaled(exp4(get(p, j, len, -INFINITE), top), inverse));
    }
}
