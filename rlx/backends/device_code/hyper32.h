// Logarithms and powers of 2 and 10, the cube root and the inverse hyperbolic functions in f32, made as math32.h says.
#include "math32.h"
#ifndef RLX_HYPER32_H
#define RLX_HYPER32_H

// What log, log2 and log10 give where x is not positive and finite.
RLX_FN float m_log_odd(const float x) {
    if (m_abs_bits(x) == 0u) return -RLX_INF;
    return m_is_nan(x) || RLX_BITS(x) == 0x7f800000u ? x : RLX_NAN;
}
RLX_FN float m_log2_of(const float x) {
    const uint u = RLX_BITS(x);
    return u - 1u >= 0x7f7fffffu ? m_log_odd(x) : m_log2(u).x;
}
RLX_FN float m_log10(const float x) {
    const uint u = RLX_BITS(x);
    if (u - 1u >= 0x7f7fffffu) return m_log_odd(x);
    const RLX_F2 l = m_log2(u);
    const RLX_F2 p = m_product(l.x, 3.0102998018e-01f);
    return p.x + (p.y + (l.x * 1.4320989000e-08f + l.y * 3.0102998018e-01f));
}
RLX_FN float m_exp2(const float x) {
    if (m_is_nan(x)) return x;
    if (x >= 128.0f) return RLX_INF;
    if (x < -151.0f) return 0.0f;
    const float k = RLX_ROUND(x);
    const float f = x - k;
    RLX_F2 r = m_product(f, 6.9314718246e-01f);
    r = m_quick_sum(r.x, r.y + f * -1.9046542121e-09f);
    return m_scale(1.0f + (r.x + ((r.x * r.x) * m_exp_poly(r.x) + r.y)), int(k));
}
// The cube root of 8^q m, 1 <= m < 8: a guess from the bits of m, one step of Halley, one of Newton on the exact rest.
RLX_FN float m_cbrt(const float x) {
    const uint u = m_abs_bits(x);
    if (u == 0u || u >= 0x7f800000u) return x;
    const int e = m_exponent(u) + 150;
    const int q = e / 3;
    const float m = m_mantissa(u) * m_pow2(e - 3 * q);
    float y = RLX_FLOAT(RLX_BITS(m) / 3u + 0x2a5119f2u);
    float c = y * (y * y);
    y = y * (c + (m + m)) / (c + c + m);
    c = y * (y * y);
    y = y * (c + (m + m)) / (c + c + m);
    const RLX_F2 s = m_product(y, y);
    const RLX_F2 t = m_product(s.x, y);
    y = y + (((m - t.x) - t.y) - s.y * y) / (3.0f * s.x);
    return m_with_sign(y * m_pow2(q - 50), x);
}

// log(v.hi + v.lo) + twos ln 2 for a normal positive v.
RLX_FN float m_log_pair(const RLX_F2 v, const float twos) {
    const uint u = RLX_BITS(v.x);
    const float m = m_mantissa(u);
    const bool big = m > 1.41421356f;
    const int k = m_exponent(u) + (big ? 1 : 0);
    const float f = (big ? 0.5f * m : m) - 1.0f;
    const float c = k > 40 ? 0.0f : v.y * m_pow2(-k);
    return m_log_sum(float(k) + twos, f, c * (1.0f - f + f * f));
}
// log(a + sqrt(a^2 + one)) for a > 1/2 and one = 1, or a >= 3/2 and one = -1.
RLX_FN float m_log_root(const float a, const float one) {
    if (a > 4096.0f) return m_log_pair(RLX_MAKE_F2(a, 0.0f), 1.0f);  // log(2 a)
    const RLX_F2 p = m_product(a, a);
    const RLX_F2 h = m_sum(p.x, one);
    const float s = m_sqrt(h.x);
    const RLX_F2 t = m_product(s, s);
    const float low = (((h.x - t.x) - t.y) + (h.y + p.y)) / (s + s);
    const RLX_F2 v = m_sum(a, s);
    return m_log_pair(RLX_MAKE_F2(v.x, v.y + low), 0.0f);
}
RLX_FN float m_asinh(const float x) {
    const uint u = m_abs_bits(x);
    if (u < 0x39800000u || u >= 0x7f800000u) return x;
    const float a = RLX_ABS(x);
    if (a > 0.5f) return m_with_sign(m_log_root(a, 1.0f), x);
    const float z = x * x;
    float p = 9.175316431e-03f;  // (asinh(x) / x - 1) / x^2
    p = RLX_MAD(p, z, -1.998558082e-02f);
    p = RLX_MAD(p, z, 3.001448512e-02f);
    p = RLX_MAD(p, z, -4.461343959e-02f);
    p = RLX_MAD(p, z, 7.499890029e-02f);
    p = RLX_MAD(p, z, -1.666666567e-01f);
    return x + (x * z) * p;
}
RLX_FN float m_acosh(const float x) {
    if (m_is_nan(x) || RLX_BITS(x) == 0x7f800000u) return x;
    if (x < 1.0f) return RLX_NAN;
    if (x >= 1.5f) return m_log_root(x, -1.0f);
    const float t = x - 1.0f;
    const float d = t + t;
    const float s = m_sqrt(d);
    if (s == 0.0f) return 0.0f;
    const RLX_F2 e = m_product(s, s);
    float p = 1.433643192e-04f;  // (acosh(1 + t) / sqrt(2 t) - 1) / t
    p = RLX_MAD(p, t, -6.245494005e-04f);
    p = RLX_MAD(p, t, 1.875905320e-03f);
    p = RLX_MAD(p, t, -5.576679949e-03f);
    p = RLX_MAD(p, t, 1.874972507e-02f);
    p = RLX_MAD(p, t, -8.333332837e-02f);
    return s + (((d - e.x) - e.y) / (s + s) + (s * t) * p);
}
RLX_FN float m_atanh(const float x) {
    const uint u = m_abs_bits(x);
    if (u < 0x39800000u || u > 0x7f800000u) return x;
    if (u >= 0x3f800000u) return u == 0x3f800000u ? m_with_sign(RLX_INF, x) : RLX_NAN;
    const float a = RLX_ABS(x);
    if (a < 0.5f) {
        const float z = x * x;
        float p = 1.764572263e-01f;  // (atanh(x) / x - 1) / x^2
        p = RLX_MAD(p, z, 2.407691255e-02f);
        p = RLX_MAD(p, z, 1.029773653e-01f);
        p = RLX_MAD(p, z, 1.096467897e-01f);
        p = RLX_MAD(p, z, 1.429506391e-01f);
        p = RLX_MAD(p, z, 1.999971867e-01f);
        p = RLX_MAD(p, z, 3.333333731e-01f);
        return x + (x * z) * p;
    }
    const RLX_F2 v = m_quotient(m_sum(1.0f, a), RLX_MAKE_F2(1.0f - a, 0.0f));
    return m_with_sign(0.5f * m_log_pair(v, 0.0f), x);
}
#endif
