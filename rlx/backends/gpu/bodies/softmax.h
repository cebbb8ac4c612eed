// y = exp(x - max) / sum(exp(x - max)) over rows. A row in registers is read once; a longer one three times.
#include "rows8.h"

// exp(x) to 2^-17 for x <= 0, what a result of 16 bits asks for: 2^k p(f) for x / ln 2 = k + f. 0 below 2^-126.
RLX_FN float exp_half(const float x) {
    const float t = x * 1.442695022e+00f;
    const float s = t + 12582912.0f;  // 3 * 2^22: the last bits of the sum are k
    const float f = t - (s - 12582912.0f);
    float p = 9.582850497e-03f;
    p = FMA(p, f, 5.590642545e-02f);
    p = FMA(p, f, 2.402409867e-01f);
    p = FMA(p, f, 6.931241933e-01f);
    p = FMA(p, f, 1.0f);
    return t < -126.0f ? 0.0f : p * RLX_FLOAT((RLX_BITS(s) << 23) + 0x3f800000u);
}
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
            total += sum4(r[j]);
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
