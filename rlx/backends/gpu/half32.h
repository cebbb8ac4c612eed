// f32 functions for results that end in 16 bits: within 2^-17 of the result, an eighth of what an f16 is rounded by, a
// hundredth of what a bf16 is. Special values are those of the functions in math32.h.
#include "math32.h"
#ifndef RLX_HALF32_H
#define RLX_HALF32_H

// 2^x where a subnormal result may be taken for 0.
#ifndef RLX_FLUSHED_EXP2
#define RLX_FLUSHED_EXP2(x) RLX_QUICK_EXP2(x)
#endif

// a / b, moved by a power of two where a device may take 1 / b for nothing.
RLX_FN float h_div(const float a, const float b) {
#ifdef RLX_QUICK_DIV
    return RLX_QUICK_DIV(a, b);
#else
    const float size = RLX_ABS(b);
    const float up = size < 7.8886091e-31f ? 4294967296.0f : 1.0f;
    const float s = size > 1.2676506e+30f ? 2.3283064e-10f : up;
    return (a * s) * RLX_QUICK_RECIP(b * s);
#endif
}

RLX_FN float h_exp(const float x) { return RLX_QUICK_EXP2(x * 1.442695022e+00f); }

// 1 + erf(x) = 2 - erfc(x) = erfc(-x), which does not cancel: erfc(a) = 2^(a p(a)), p fitted up to 4.5, where erfc is
// 2e-10. Beyond, it goes to 0 faster than erfc.
RLX_FN float h_one_plus_erf(const float x) {
    const float a = RLX_ABS(x);
    float p = -2.031807890e-05f;
    p = RLX_MAD(p, a, 4.860969202e-04f);
    p = RLX_MAD(p, a, -5.223662127e-03f);
    p = RLX_MAD(p, a, 3.391036764e-02f);
    p = RLX_MAD(p, a, -1.524298638e-01f);
    p = RLX_MAD(p, a, -9.170815945e-01f);
    p = RLX_MAD(p, a, -1.628063202e+00f);
    const float e = RLX_FLUSHED_EXP2(p * a);
    return x < 0.0f ? e : 2.0f - e;
}

RLX_FN float h_tanh(const float x) {
    const float a = RLX_ABS(x);
    const float z = x * x;
    float p = -4.145898297e-02f;  // (tanh(x) / x - 1) / x^2 of x^2 up to 0.6
    p = RLX_MAD(p, z, 1.308999807e-01f);
    p = RLX_MAD(p, z, -3.331947625e-01f);
    const float near = a + (a * z) * p;
    const float e = RLX_FLUSHED_EXP2((a > 10.0f ? 10.0f : a) * 2.885390043e+00f);
    const float far = 1.0f - 2.0f * RLX_QUICK_RECIP(e + 1.0f);
    return m_with_sign(a < 0.6f ? near : far, x);
}
#endif
