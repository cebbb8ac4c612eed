// Circular functions and their inverses in f32, made as math32.h says. Angles up to 64 are reduced by parts of pi/2,
// larger ones with the bits of 2/pi (Payne and Hanek, 1983): sin of 3e38 is as good as sin of 1.
#include "math32.h"
#ifndef RLX_TRIG32_H
#define RLX_TRIG32_H

// Bits of 2/pi after 32 zeros.
RLX_TABLE uint m_two_over_pi[8] = {0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u,
                                   0xfe5163abu};

// x - quadrant pi/2 as hi + lo, |hi| <= pi/4, for finite x.
RLX_FN RLX_F2 m_reduce(const float x, RLX_OUT(int) quadrant) {
    const uint a = m_abs_bits(x);
    if (a < 0x42800000u) {  // |x| < 64: k < 41 times 17-bit parts of pi/2 is exact
        const float k = RLX_ROUND(x * 6.366197467e-01f);
        quadrant = int(k) & 3;
        const RLX_F2 r = m_sum(x - k * 1.5708007812e+00f, -(k * -4.4544576667e-06f));
        return m_quick_sum(r.x, r.y - k * 2.5633440683e-12f);
    }
    // |x| = m 2^e; 96 bits of 2/pi from weight 2^(1-e) on give |x| 2/pi mod 4, two bits before the point.
    const uint m = (a & 0x7fffffu) | 0x800000u;
    const int q = int(a >> 23) - 150 + 30;
    const int w = q >> 5;
    const uint s = uint(q & 31);
    uint high = m_two_over_pi[w];
    uint mid = m_two_over_pi[w + 1];
    uint low = m_two_over_pi[w + 2];
    if (s != 0u) {
        high = (high << s) | (mid >> (32u - s));
        mid = (mid << s) | (low >> (32u - s));
        low = (low << s) | (m_two_over_pi[w + 3] >> (32u - s));
    }
    uint p0 = m * low;
    uint p1 = m * mid;
    const uint carry = RLX_UMULHI(m, low);
    p1 = p1 + carry;
    uint p2 = m * high + RLX_UMULHI(m, mid) + (p1 < carry ? 1u : 0u);
    const uint n = (p2 + 0x20000000u) >> 30;
    p2 = p2 - (n << 30);
    const bool negative = (p2 & 0x80000000u) != 0u;
    if (negative) {
        p0 = ~p0 + 1u;
        p1 = ~p1 + (p0 == 0u ? 1u : 0u);
        p2 = ~p2 + (p0 == 0u && p1 == 0u ? 1u : 0u);
    }
    int shift = 0;  // a reduced angle is at least 2^-31 or so: at most one word is empty
    if (p2 == 0u) {
        p2 = p1;
        p1 = p0;
        p0 = 0u;
        shift = 32;
    }
    const int zeros = 31 - RLX_MSB(p2);
    if (zeros != 0) {
        p2 = (p2 << zeros) | (p1 >> (32 - zeros));
        p1 = (p1 << zeros) | (p0 >> (32 - zeros));
    }
    shift = shift + zeros;
    const float unit = m_pow2(-30 - shift);
    const float hi = float(p2 & 0xffffff00u) * unit;
    const float lo = float(((p2 & 0xffu) << 16) | (p1 >> 16)) * (unit * 1.52587890625e-05f);
    const RLX_F2 t = m_product(hi, 1.5707963705e+00f);
    const RLX_F2 r = m_quick_sum(t.x, t.y + (hi * -4.3711388287e-08f + lo * 1.5707963705e+00f));
    const bool flip = negative != (RLX_BITS(x) >= 0x80000000u);
    quadrant = int(RLX_BITS(x) >= 0x80000000u ? 0u - n : n) & 3;
    return flip ? RLX_MAKE_F2(-r.x, -r.y) : r;
}
// sin and cos of hi + lo, |hi| <= pi/4, as hi + lo.
RLX_FN RLX_F2 m_sin_small(const RLX_F2 r) {
    const float z = r.x * r.x;
    float p = 2.724914793e-06f;
    p = RLX_MAD(p, z, -1.984008122e-04f);
    p = RLX_MAD(p, z, 8.333331905e-03f);
    p = RLX_MAD(p, z, -1.666666716e-01f);
    return m_quick_sum(r.x, (z * r.x) * p + r.y * (1.0f - 0.5f * z));
}
RLX_FN RLX_F2 m_cos_small(const RLX_F2 r) {
    const RLX_F2 z = m_product(r.x, r.x);
    float p = -2.730030815e-07f;
    p = p * z.x + 2.480059447e-05f;
    p = p * z.x + -1.388888806e-03f;
    p = p * z.x + 4.166666791e-02f;
    const RLX_F2 w = m_quick_sum(1.0f, -0.5f * z.x);
    return m_quick_sum(w.x, w.y + ((z.x * z.x) * p - (r.x * r.y + 0.5f * z.y)));
}
RLX_FN float m_sin_quadrant(const float x, const int quarter) {
    if (m_abs_bits(x) >= 0x7f800000u) return RLX_NAN;
    int n = 0;
    const RLX_F2 r = m_reduce(x, n);
    n = n + quarter;
    const float y = (n & 1) == 1 ? m_cos_small(r).x : m_sin_small(r).x;
    return (n & 2) == 2 ? -y : y;
}
RLX_FN float m_sin(const float x) { return m_abs_bits(x) < 0x39000000u ? x : m_sin_quadrant(x, 0); }
RLX_FN float m_cos(const float x) { return m_sin_quadrant(x, 1); }
RLX_FN float m_tan(const float x) {
    if (m_abs_bits(x) >= 0x7f800000u) return RLX_NAN;
    if (m_abs_bits(x) < 0x39000000u) return x;
    int n = 0;
    const RLX_F2 r = m_reduce(x, n);
    const RLX_F2 s = m_sin_small(r);
    const RLX_F2 c = m_cos_small(r);
    if ((n & 1) == 0) return m_quotient(s, c).x;
    return -m_quotient(c, s).x;
}

// (asin(x) / x - 1) / x^2 of z = x^2 <= 1/4.
RLX_FN float m_asin_poly(const float z) {
    float p = 3.370072693e-02f;
    p = RLX_MAD(p, z, 1.714371704e-02f);
    p = RLX_MAD(p, z, 3.110172786e-02f);
    p = RLX_MAD(p, z, 4.459932074e-02f);
    p = RLX_MAD(p, z, 7.500094920e-02f);
    return p * z + 1.666666567e-01f;
}
// asin(sqrt((1 - a) / 2)) for 1/2 <= a <= 1 as hi + lo.
RLX_FN RLX_F2 m_asin_root(const float a) {
    const float z = 0.5f * (1.0f - a);
    const float s = m_sqrt(z);
    const RLX_F2 p = m_product(s, s);
    const float low = s > 0.0f ? ((z - p.x) - p.y) / (2.0f * s) : 0.0f;
    return m_quick_sum(s, (s * z) * m_asin_poly(z) + low);
}
RLX_FN float m_asin(const float x) {
    const float a = RLX_ABS(x);
    if (!(a <= 1.0f)) return RLX_NAN;
    if (a < 2.44140625e-04f) return x;
    if (a < 0.5f) return x + (x * (x * x)) * m_asin_poly(x * x);
    const RLX_F2 r = m_asin_root(a);
    const RLX_F2 t = m_quick_sum(1.5707963705e+00f, -2.0f * r.x);
    return m_with_sign(t.x + (t.y + (-4.3711388287e-08f - 2.0f * r.y)), x);
}
RLX_FN float m_acos(const float x) {
    const float a = RLX_ABS(x);
    if (!(a <= 1.0f)) return RLX_NAN;
    if (a < 0.5f) {
        const RLX_F2 t = m_quick_sum(1.5707963705e+00f, -x);
        return t.x + (t.y + (-4.3711388287e-08f - (x * (x * x)) * m_asin_poly(x * x)));
    }
    const RLX_F2 r = m_asin_root(a);
    if (x > 0.0f) return 2.0f * r.x;
    const RLX_F2 t = m_quick_sum(3.1415927410e+00f, -2.0f * r.x);
    return t.x + (t.y + (-8.7422776573e-08f - 2.0f * r.y));
}
RLX_FN float m_atan2(const float y, const float x) {
    if (m_is_nan(x) || m_is_nan(y)) return RLX_NAN;
    uint uy = m_abs_bits(y);
    uint ux = m_abs_bits(x);
    const bool left = (RLX_BITS(x) & 0x80000000u) != 0u;
    if (uy == 0u) return m_with_sign(left ? 3.1415927410e+00f : 0.0f, y);
    if (ux == 0u) return m_with_sign(1.5707963705e+00f, y);
    if (ux == 0x7f800000u || uy == 0x7f800000u) {
        const float quarter = uy != ux ? 0.0f : 7.8539818525e-01f;
        const float near = uy > ux ? 1.5707963705e+00f : quarter;
        const float far = uy > ux ? 1.5707963705e+00f : (uy != ux ? 3.1415927410e+00f : 2.3561944902e+00f);
        return m_with_sign(left ? far : near, y);
    }
    const int d = m_exponent(uy) - m_exponent(ux);
    if (d > 27) return m_with_sign(1.5707963705e+00f, y);
    if (d < -27) return left ? m_with_sign(3.1415927410e+00f, y) : m_div(y, x);
    const float b = m_mantissa(uy) * (d < 0 ? m_pow2(d) : 1.0f);
    const float a = m_mantissa(ux) * (d > 0 ? m_pow2(-d) : 1.0f);
    const bool steep = b > a;
    const float small = steep ? a : b;
    const float large = steep ? b : a;
    const bool middle = small > 0.41421356f * large;  // atan(t) = pi/4 + atan((t - 1) / (t + 1))
    const RLX_F2 num = middle ? m_sum(small, -large) : RLX_MAKE_F2(small, 0.0f);
    const RLX_F2 den = middle ? m_sum(large, small) : RLX_MAKE_F2(large, 0.0f);
    const RLX_F2 q = m_quotient(num, den);
    const float z = q.x * q.x;
    float p = -6.450377405e-02f;  // (atan(q) / q - 1) / q^2
    p = RLX_MAD(p, z, 1.074326336e-01f);
    p = RLX_MAD(p, z, -1.426391155e-01f);
    p = RLX_MAD(p, z, 1.999953985e-01f);
    p = RLX_MAD(p, z, -3.333333135e-01f);
    const RLX_F2 t = m_quick_sum(middle ? 7.8539818525e-01f : 0.0f, q.x);
    RLX_F2 r = middle ? RLX_MAKE_F2(t.x, t.y + -2.1855694143e-08f) : RLX_MAKE_F2(q.x, 0.0f);
    r = m_quick_sum(r.x, r.y + (q.y + (z * q.x) * p));
    if (steep) {
        const RLX_F2 s = m_quick_sum(1.5707963705e+00f, -r.x);
        r = m_quick_sum(s.x, s.y + (-4.3711388287e-08f - r.y));
    }
    if (left) {
        const RLX_F2 s = m_quick_sum(3.1415927410e+00f, -r.x);
        r = m_quick_sum(s.x, s.y + (-8.7422776573e-08f - r.y));
    }
    return m_with_sign(r.x, y);
}
RLX_FN float m_atan(const float x) { return m_abs_bits(x) < 0x39000000u ? x : m_atan2(x, 1.0f); }
#endif
