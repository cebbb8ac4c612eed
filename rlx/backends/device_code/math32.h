// f32 functions, for devices whose own functions have no specified accuracy. They use no doubles and no 64-bit
// integers, and they do not rely on a fused multiply-add. Every function is within 1.5 ULP over the whole range
// (tests/gpu/test_prims.py has the measured figures). Where the precision of one float is not enough, a value is an
// unevaluated sum hi + lo of two (Dekker, 1971). The polynomials are Chebyshev fits to the functions that the comments
// name. trig32.h has the circular functions.
#include "prelude.h"
#ifndef RLX_MATH32_H
#define RLX_MATH32_H

#define RLX_INF RLX_FLOAT(0x7f800000u)
#define RLX_NAN RLX_FLOAT(0x7fc00000u)

RLX_FN uint m_abs_bits(const float x) { return RLX_BITS(x) & 0x7fffffffu; }
RLX_FN bool m_is_nan(const float x) { return m_abs_bits(x) > 0x7f800000u; }
RLX_FN float m_with_sign(const float x, const float sign) {
    return RLX_FLOAT(m_abs_bits(x) | (RLX_BITS(sign) & 0x80000000u));
}

// The exponent and the mantissa in [1, 2) of a positive finite float with the bits a. A subnormal is converted as an
// integer, which is exact, because some devices flush subnormal floats to zero.
RLX_FN int m_exponent(const uint a) {
    return a >= 0x00800000u ? int(a >> 23) - 127 : int(RLX_BITS(float(a)) >> 23) - 276;
}
RLX_FN float m_mantissa(const uint a) {
    const uint u = a >= 0x00800000u ? a : RLX_BITS(float(a));
    return RLX_FLOAT((u & 0x7fffffu) | 0x3f800000u);
}
// 2^k for -126 <= k <= 127. m_scale gives x 2^k for any k and an x near 1; only its last multiplication rounds.
RLX_FN float m_pow2(const int k) { return RLX_FLOAT(uint(k + 127) << 23); }
RLX_FN float m_scale(const float x, const int k) {
    const int n = k < -252 ? -252 : (k > 254 ? 254 : k);
    return (x * m_pow2(n >> 1)) * m_pow2(n - (n >> 1));
}

// RLX_FUSED says whether RLX_MAD rounds once. It is true where the language has an exact fma, else a specialization
// constant.
#if defined(RLX_EXACT_FMA) && !defined(RLX_FUSED)
#define RLX_FUSED true
#endif

// The exact sum and the exact product of a and b, as hi + lo. m_quick_sum requires |a| >= |b|.
RLX_FN RLX_F2 m_sum(const float a, const float b) {
    const float s = a + b;
    const float t = s - a;
    return RLX_MAKE_F2(s, (a - (s - t)) + (b - t));
}
RLX_FN RLX_F2 m_quick_sum(const float a, const float b) {
    const float s = a + b;
    return RLX_MAKE_F2(s, b - (s - a));
}
RLX_FN RLX_F2 m_product(const float a, const float b) {
    const float p = a * b;
#ifdef RLX_EXACT_FMA
    return RLX_MAKE_F2(p, RLX_EXACT_FMA(a, b, -p));
#else
#ifdef RLX_FUSED
    if (RLX_FUSED) return RLX_MAKE_F2(p, RLX_MAD(a, b, -p));
#endif
    const float ah = RLX_FLOAT(RLX_BITS(a) & 0xfffff000u);
    const float bh = RLX_FLOAT(RLX_BITS(b) & 0xfffff000u);
    const float al = a - ah;
    const float bl = b - bh;
    return RLX_MAKE_F2(p, ((ah * bh - p) + ah * bl + al * bh) + al * bl);
#endif
}
// (n.hi + n.lo) / (d.hi + d.lo). Product and quotient of the operands must be far from overflow and underflow.
RLX_FN RLX_F2 m_quotient(const RLX_F2 n, const RLX_F2 d) {
    const float q = n.x / d.x;
    const RLX_F2 p = m_product(q, d.x);
    return m_quick_sum(q, (((n.x - p.x) - p.y) + (n.y - q * d.y)) / d.x);
}

// Correctly rounded division. The mantissas are divided, the exact remainder corrects the quotient, and the result is
// scaled.
RLX_FN float m_div(const float a, const float b) {
#ifdef RLX_EXACT_DIV
    return a / b;
#else
    const uint ua = m_abs_bits(a);
    const uint ub = m_abs_bits(b);
#ifdef RLX_FUSED
    // Where |a| and |b| are in [2^-60, 2^60), no intermediate value is subnormal or infinite. The steps are Markstein's
    // (1990): the second remainder is exact, so that the quotient is rounded correctly.
    if (RLX_FUSED && ua - 0x21800000u < 0x3c000000u && ub - 0x21800000u < 0x3c000000u) {
        float r = 1.0f / b;
        r = RLX_MAD(RLX_MAD(-b, r, 1.0f), r, r);
        float q = a * r;
        q = RLX_MAD(RLX_MAD(-b, q, a), r, q);
        return RLX_MAD(RLX_MAD(-b, q, a), r, q);
    }
#endif
    const float sign = RLX_FLOAT(((RLX_BITS(a) ^ RLX_BITS(b)) & 0x80000000u) | 0x3f800000u);
    if (ua - 1u >= 0x7f7fffffu || ub - 1u >= 0x7f7fffffu) {
        if (ua > 0x7f800000u || ub > 0x7f800000u || ua == ub) return RLX_NAN;
        return m_with_sign(ua == 0x7f800000u || ub == 0u ? RLX_INF : 0.0f, sign);
    }
    const float x = m_mantissa(ua);
    const float y = m_mantissa(ub);
    float q = x / y;
    RLX_F2 p = m_product(q, y);
    q = q + ((x - p.x) - p.y) / y;
    p = m_product(q, y);
    const float rest = (x - p.x) - p.y;
    const float ulp = q >= 1.0f ? 1.1920928955078125e-07f : 5.9604644775390625e-08f;
    const float half_ulp = 0.5f * ulp * y;
    if (rest > half_ulp) q = q + ulp;
    if (rest < -half_ulp) q = q - ulp;
    return m_scale(q, m_exponent(ua) - m_exponent(ub)) * sign;
#endif
}

// Correctly rounded square root: the exact remainder corrects the root of the mantissa.
RLX_FN float m_sqrt(const float x) {
#ifdef RLX_EXACT_DIV
    return RLX_SQRT(x);
#else
    const uint u = RLX_BITS(x);
    if (u - 1u >= 0x7f7fffffu) {  // zeros, infinity, NaN and negative numbers
        return (u & 0x7fffffffu) == 0u || m_is_nan(x) || u == 0x7f800000u ? x : RLX_NAN;
    }
    const int e = m_exponent(u);
    const float m = m_mantissa(u) * ((e & 1) == 1 ? 2.0f : 1.0f);
    float s = sqrt(m);
    RLX_F2 p = m_product(s, s);
    s = s + (0.5f * ((m - p.x) - p.y)) / s;
    p = m_product(s, s);
    const float rest = (m - p.x) - p.y;
    const float ulp = 1.1920928955078125e-07f;
    if (rest > s * ulp) s = s + ulp;
    if (rest <= -(s * ulp)) s = s - ulp;
    return s * m_pow2(e >> 1);
#endif
}

// (exp(r) - 1 - r) / r^2 for |r| <= 0.3475.
RLX_FN float m_exp_poly(const float r) {
    float q = 1.989124721e-04f;
    q = q * r + 1.393388142e-03f;
    q = q * r + 8.333310485e-03f;
    q = q * r + 4.166646302e-02f;
    q = q * r + 1.666666716e-01f;
    return q * r + 0.5f;
}
// For |x| < 128: k = x / ln 2 rounded to an integer, and exp(x - k ln 2) - 1 as hi + lo.
RLX_FN float m_exp_count(const float x) { return RLX_ROUND(x * 1.442695022e+00f); }
RLX_FN RLX_F2 m_exp_rest(const float x, const float k) {
    const float h = x - k * 6.9314575195e-01f;
    const float c = k * 1.4286067653e-06f;
    const float r = h - c;
    return m_quick_sum(r, (r * r) * m_exp_poly(r) + ((h - r) - c));
}
// Returns p with exp(x) = 2^k (1 + p), for |x| < 2^20, in few instructions; k is an integer.
RLX_FN float m_exp_part(const float x, RLX_OUT(int) k) {
    const float t = RLX_MAD(x, 1.442695022e+00f, 12582912.0f);  // the last bits of x / ln 2 + 3 * 2^22 are k
    k = int(RLX_BITS(t) - 0x4b400000u);
    const float n = t - 12582912.0f;
#ifdef RLX_EXACT_FMA
    const float r = RLX_EXACT_FMA(n, -1.4286067653e-06f, RLX_EXACT_FMA(n, -6.9314575195e-01f, x));
#else
    const float r = (x - n * 6.9314575195e-01f) - n * 1.4286067653e-06f;
#endif
    float p = 1.395063009e-03f;
    p = RLX_MAD(p, r, 8.368969895e-03f);
    p = RLX_MAD(p, r, 4.166620225e-02f);
    p = RLX_MAD(p, r, 1.666651815e-01f);
    p = RLX_MAD(p, r, 0.5f);
    return RLX_MAD(r * r, p, r);
}
RLX_FN float m_exp(const float x) {
    const float high = x > 89.0f ? 89.0f : x;
    int k;
    const float e = 1.0f + m_exp_part(high < -104.0f ? -104.0f : high, k);
    return (e * m_pow2(k >> 1)) * m_pow2(k - (k >> 1));
}
RLX_FN float m_expm1(const float x) {
    if (m_is_nan(x) || m_abs_bits(x) < 0x33000000u) return x;
    if (x > 17.0f) return m_exp(x) - 1.0f;
    if (x < -18.0f) return -1.0f;
    const float k = m_exp_count(x);
    const RLX_F2 r = m_exp_rest(x, k);
    const float s = m_pow2(int(k));
    const RLX_F2 e = m_sum(s - 1.0f, s * r.x);
    return e.x + (e.y + s * r.y);
}

// k ln 2 + log(1 + f + c) for f in [sqrt(1/2) - 1, sqrt(2) - 1] and a c of at most an ULP of 1 + f.
RLX_FN float m_log_sum(const float k, const float f, const float c) {
    float p = 6.972518563e-02f;
    p = RLX_MAD(p, f, -1.148121208e-01f);
    p = RLX_MAD(p, f, 1.168578491e-01f);
    p = RLX_MAD(p, f, -1.242552325e-01f);
    p = RLX_MAD(p, f, 1.424900740e-01f);
    p = RLX_MAD(p, f, -1.666780710e-01f);
    p = RLX_MAD(p, f, 2.000071704e-01f);
    p = RLX_MAD(p, f, -2.499999702e-01f);
    p = RLX_MAD(p, f, 3.333333135e-01f);
    const RLX_F2 sq = m_product(f, f);
    const RLX_F2 s = m_quick_sum(f, -0.5f * sq.x);
    const float low = (s.y - 0.5f * sq.y) + (sq.x * f) * p + c;
    const RLX_F2 t = m_sum(k * 6.9314575195e-01f, s.x);
    return t.x + (t.y + (low + k * 1.4286067653e-06f));
}
RLX_FN float m_log(const float x) {
    const uint u = RLX_BITS(x);
    if (u - 1u >= 0x7f7fffffu) {
        if ((u & 0x7fffffffu) == 0u) return -RLX_INF;
        return u == 0x7f800000u || m_is_nan(x) ? x : RLX_NAN;
    }
    const float m = m_mantissa(u);
    const bool big = m > 1.41421356f;
    return m_log_sum(float(m_exponent(u) + (big ? 1 : 0)), (big ? 0.5f * m : m) - 1.0f, 0.0f);
}
RLX_FN float m_log1p(const float x) {
    if (m_abs_bits(x) < 0x33000000u || m_is_nan(x) || x == RLX_INF) return x;
    if (x <= -1.0f) return x == -1.0f ? -RLX_INF : RLX_NAN;
    if (x > -0.2928f && x < 0.4142f) return m_log_sum(0.0f, x, 0.0f);
    const RLX_F2 w = m_sum(1.0f, x);
    const uint u = RLX_BITS(w.x);
    const float m = m_mantissa(u);
    const bool big = m > 1.41421356f;
    const int k = m_exponent(u) + (big ? 1 : 0);
    const float f = (big ? 0.5f * m : m) - 1.0f;
    const float c = k > 40 ? 0.0f : w.y * m_pow2(-k);
    return m_log_sum(float(k), f, c * (1.0f - f + f * f));
}

// exp(a) / 2 + sign exp(-a) / 2 for a >= 0: cosh, and sinh where the two terms do not cancel.
RLX_FN float m_half_exps(const float a, const float sign) {
    const float x = a > 92.0f ? 92.0f : a;  // sinh and cosh overflow from 89.42 on
    const float k = m_exp_count(x);
    const RLX_F2 r = m_exp_rest(x, k);
    const RLX_F2 e = m_sum(1.0f, r.x);
    const int n = int(k) - 1;
    const float hi = m_scale(e.x, n);
    const float inverse = x > 20.0f ? 0.0f : 0.25f / hi;
    return hi + (m_scale(e.y + r.y, n) + sign * inverse);
}
RLX_FN float m_sinh(const float x) {
    if (m_is_nan(x)) return x;
    const float a = RLX_ABS(x);
    if (a < 2.44140625e-04f) return x;
    if (a >= 1.0f) return m_with_sign(m_half_exps(a, -1.0f), x);
    const float z = x * x;
    float p = 2.806331167e-06f;
    p = RLX_MAD(p, z, 1.983809489e-04f);
    p = RLX_MAD(p, z, 8.333339356e-03f);
    p = RLX_MAD(p, z, 1.666666716e-01f);
    return x + (x * z) * p;
}
RLX_FN float m_cosh(const float x) { return m_is_nan(x) ? x : m_half_exps(RLX_ABS(x), 1.0f); }
// Both formulas are computed, so that the threads of a warp do not diverge: a polynomial in x^2 for
// (tanh(x) / x - 1) / x^2 where |x| < 1, and 1 - 2 / (exp(2 |x|) + 1).
RLX_FN float m_tanh(const float x) {
    const float a = RLX_ABS(x);
    const float z = x * x;
    float p = -3.625258396e-04f;
    p = RLX_MAD(p, z, 2.315476071e-03f);
    p = RLX_MAD(p, z, -7.965227589e-03f);
    p = RLX_MAD(p, z, 2.149941213e-02f);
    p = RLX_MAD(p, z, -5.388410762e-02f);
    p = RLX_MAD(p, z, 1.333241165e-01f);
    p = RLX_MAD(p, z, -3.333329856e-01f);
    const float near = RLX_MAD(a * z, p, a);
    const float b = a > 10.0f ? 10.0f : a;
    int k;
    const float e = m_exp_part(b + b, k);
    const float s = m_pow2(k);
    const float far = 1.0f - 2.0f * RLX_QUICK_RECIP(RLX_MAD(s, e, s) + 1.0f);
    return m_with_sign(a < 1.0f ? near : far, x);
}
// Two polynomials are computed, so that the threads of a warp do not diverge: in x^2 for erf(x) / x - 1 where
// |x| < 1.03, and in u = |x| - 2.25 for 1 - erf(|x|) on [1.03, 4].
RLX_FN float m_erf(const float x) {
    const float a = RLX_ABS(x);
    const float z = x * x;
    float p = 7.692595682e-05f;
    p = RLX_MAD(p, z, -7.965302211e-04f);
    p = RLX_MAD(p, z, 5.183699541e-03f);
    p = RLX_MAD(p, z, -2.685164846e-02f);
    p = RLX_MAD(p, z, 1.128354073e-01f);
    p = RLX_MAD(p, z, -3.761262298e-01f);
    p = RLX_MAD(p, z, 1.283791661e-01f);
#ifdef RLX_EXACT_FMA
    const float near = RLX_EXACT_FMA(x, p, x);
#else
    const float t = x * 1.152921504606847e+18f;  // scaled by 2^60, so that small terms are not flushed to zero
    const float near = (t + t * p) * 8.673617379884035e-19f;
#endif
    const float u = (a > 4.0f ? 4.0f : a) - 2.25f;
    float q = -8.243038110e-07f;
    q = RLX_MAD(q, u, 2.313484174e-06f);
    q = RLX_MAD(q, u, 1.242638700e-05f);
    q = RLX_MAD(q, u, -6.114150165e-05f);
    q = RLX_MAD(q, u, 2.992715417e-05f);
    q = RLX_MAD(q, u, 3.571610141e-04f);
    q = RLX_MAD(q, u, -1.016901457e-03f);
    q = RLX_MAD(q, u, 6.836468237e-04f);
    q = RLX_MAD(q, u, 2.913144883e-03f);
    q = RLX_MAD(q, u, -1.066411939e-02f);
    q = RLX_MAD(q, u, 1.908116043e-02f);
    q = RLX_MAD(q, u, -2.172324620e-02f);
    q = RLX_MAD(q, u, 1.607044414e-02f);
    q = RLX_MAD(q, u, -7.142393384e-03f);
    q = RLX_MAD(q, u, 1.462712535e-03f);
    const float far = m_with_sign(1.0f - q, x);
    return a < 1.03f ? near : far;
}

// log2 of the positive finite float with the bits a, as hi + lo, with a relative error of about 2^-38.
RLX_FN RLX_F2 m_log2(const uint a) {
    const float m = m_mantissa(a);
    const bool big = m > 1.41421356f;
    const float k = float(m_exponent(a) + (big ? 1 : 0));
    const float v = big ? 0.5f * m : m;
    const RLX_F2 s = m_quotient(RLX_MAKE_F2(v - 1.0f, 0.0f), m_sum(v, 1.0f));
    RLX_F2 z = m_product(s.x, s.x);
    z = m_quick_sum(z.x, z.y + 2.0f * s.x * s.y);
    // log(v) / 2 = s + s z (1/3 + z / 5 + ...)
    const float q = z.x * (2.000000030e-01f + z.x * (1.428571492e-01f + z.x * (1.111111119e-01f + z.x * 9.4e-02f)));
    RLX_F2 c = m_quick_sum(3.3333334327e-01f, q);
    c = m_quick_sum(c.x, c.y - 9.9341077586e-09f);
    RLX_F2 t = m_product(z.x, c.x);
    t = m_quick_sum(t.x, t.y + (z.x * c.y + z.y * c.x));
    RLX_F2 u = m_product(s.x, t.x);
    u = m_quick_sum(u.x, u.y + (s.x * t.y + s.y * t.x));
    RLX_F2 l = m_quick_sum(s.x, u.x);
    l = m_quick_sum(l.x, l.y + (s.y + u.y));
    RLX_F2 g = m_product(l.x, 2.8853900433e+00f);
    g = m_quick_sum(g.x, g.y + (l.x * 3.8519260670e-08f + l.y * 2.8853900433e+00f));
    const RLX_F2 h = m_sum(k, g.x);
    return m_quick_sum(h.x, h.y + g.y);
}
// Special cases are those of C99, Annex F: pow(1, y) = pow(x, 0) = pow(-1, +-infinity) = 1; a negative base with a
// fractional exponent gives NaN. The sign is a bit that is set, since drivers may take a product with 0 for +0.
RLX_FN float m_pow(const float x, const float y) {
    const uint ux = m_abs_bits(x);
    const uint uy = m_abs_bits(y);
    if (x == 1.0f || uy == 0u) return 1.0f;
    if (ux > 0x7f800000u || uy > 0x7f800000u) return RLX_NAN;
    const float ay = RLX_ABS(y);
    const bool whole = ay >= 8388608.0f || RLX_FLOOR(ay) == ay;
    const bool odd = whole && ay < 16777216.0f && (uint(ay < 16777216.0f ? ay : 0.0f) & 1u) == 1u;
    const bool minus = (RLX_BITS(x) & 0x80000000u) != 0u;
    const uint sign = minus && odd ? 0x80000000u : 0u;
    if (ux == 0u || ux == 0x7f800000u) return RLX_FLOAT(sign | ((ux == 0u) != (y < 0.0f) ? 0u : 0x7f800000u));
    if (uy == 0x7f800000u) {
        if (ux == 0x3f800000u) return 1.0f;
        return (ux > 0x3f800000u) == (y > 0.0f) ? RLX_INF : 0.0f;
    }
    if (minus && !whole) return RLX_NAN;
    if (ux == 0x3f800000u) return RLX_FLOAT(sign | 0x3f800000u);
    const float exponent = ay > 4294967296.0f ? m_with_sign(4294967296.0f, y) : y;
    const RLX_F2 l = m_log2(ux);
    RLX_F2 e = m_product(l.x, exponent);
    e = m_quick_sum(e.x, e.y + l.y * exponent);
    if (e.x > 128.5f) return RLX_FLOAT(sign | 0x7f800000u);
    if (e.x < -151.0f) return RLX_FLOAT(sign);
    const float k = RLX_ROUND(e.x);
    const float f = e.x - k;
    RLX_F2 r = m_product(f, 6.9314718246e-01f);
    r = m_quick_sum(r.x, r.y + (e.y * 6.9314718246e-01f + f * -1.9046542121e-09f));
    const RLX_F2 v = m_quick_sum(1.0f, r.x);
    return RLX_FLOAT(sign | RLX_BITS(m_scale(v.x + (v.y + ((r.x * r.x) * m_exp_poly(r.x) + r.y)), int(k))));
}

// The exact remainder of truncated division. Each round of the loop finds 8 bits of the quotient.
RLX_FN float m_fmod(const float a, const float b) {
    const uint ua = m_abs_bits(a);
    const uint ub = m_abs_bits(b);
    if (ua >= 0x7f800000u || ub > 0x7f800000u || ub == 0u) return RLX_NAN;
    if (ua < ub) return a;
    const int eb = ub >= 0x00800000u ? int(ub >> 23) : 1;
    int left = (ua >= 0x00800000u ? int(ua >> 23) : 1) - eb;
    uint m = ua >= 0x00800000u ? (ua & 0x7fffffu) | 0x800000u : ua;
    const uint d = ub >= 0x00800000u ? (ub & 0x7fffffu) | 0x800000u : ub;
    m = m % d;
    while (left > 0 && m != 0u) {
        const int n = left < 8 ? left : 8;
        m = (m << uint(n)) % d;
        left = left - n;
    }
    if (m == 0u) return m_with_sign(0.0f, a);
    // The result is m 2^(eb - 150). It is assembled from its bits, because arithmetic may flush subnormals to zero.
    const int up = 23 - RLX_MSB(m);
    const uint r = eb > up ? (uint(eb - up) << 23) + ((m << uint(up)) & 0x7fffffu) : m << uint(eb - 1);
    return m_with_sign(RLX_FLOAT(r), a);
}
#endif
