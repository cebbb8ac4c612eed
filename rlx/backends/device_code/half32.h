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

// a / x for x >= 1. GLSL's division takes some thirty instructions, 1 / sqrt(x) a few.
RLX_FN float h_part(const float a, const float x) {
#ifdef RLX_GLSL
    const float r = inversesqrt(x);
    return (a * r) * r;
#else
    return h_div(a, x);
#endif
}

// 1 / x for x >= 1, or 0 from 2^100 on.
RLX_FN float h_recip(const float x) {
#ifdef RLX_GLSL
    return h_part(1.0f, x);
#else
    return RLX_QUICK_RECIP(x);
#endif
}

// a / (1 + exp(-x)): a sigmoid, or silu.
RLX_FN float h_logistic(const float a, const float x) {
    return h_part(a, 1.0f + RLX_FLUSHED_EXP2(x * -1.442695022e+00f));
}

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
    const float tail = RLX_FLUSHED_EXP2(p * a);
    const float rest = 2.0f - tail;
    return x < 0.0f ? tail : rest;
}

// gelu(x) = x Phi(x). The normal distribution's lower tail is Phi(-a) = 2^(a q(a) - 1), q fitted up to 7, where it is
// 1e-12, a sixteenth as closely from 5.4 on, where an f16 is 2^-24 or 0. Beyond, the power goes to 0 faster than Phi.
RLX_FN float h_gelu(const float x) {
    const float a = RLX_ABS(x);
    float q = -1.777845569e-06f;
    q = RLX_MAD(q, a, 6.045567352e-05f);
    q = RLX_MAD(q, a, -9.214234888e-04f);
    q = RLX_MAD(q, a, 8.471323177e-03f);
    q = RLX_MAD(q, a, -5.388241634e-02f);
    q = RLX_MAD(q, a, -4.585474432e-01f);
    q = RLX_MAD(q, a, -1.151213050e+00f);
    const float tail = RLX_FLUSHED_EXP2(RLX_MAD(q, a, -1.0f));
    const float rest = 1.0f - tail;
    return x * (x < 0.0f ? tail : rest);
}

RLX_FN float h_tanh(const float x) {
    const float a = RLX_ABS(x);
    const float z = x * x;
    float p = -4.145898297e-02f;  // (tanh(x) / x - 1) / x^2 of x^2 up to 0.6
    p = RLX_MAD(p, z, 1.308999807e-01f);
    p = RLX_MAD(p, z, -3.331947625e-01f);
    const float near = RLX_MAD(a * z, p, a);
    const float far = RLX_MAD(-2.0f, h_recip(RLX_FLUSHED_EXP2(a * 2.885390043e+00f) + 1.0f), 1.0f);
    return m_with_sign(a < 0.6f ? near : far, x);
}
#endif
