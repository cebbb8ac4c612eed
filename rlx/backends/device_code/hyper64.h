// Powers, logarithms of 2 and 10, the cube root and the inverse hyperbolic functions in f64, in the way of hyper32.h.
#include "math64.h"
#ifndef RLX_HYPER64_H
#define RLX_HYPER64_H

// log2(a) as hi + lo, about 2^-70 of it, for positive finite a.
RLX_FN RLX_D2 d_log2(const rlx_u64 a) {
    const double m = d_mantissa(a);
    const bool big = m > RLX_D(1.4142135623730951);
    const double k = double(d_exponent(a) + (big ? 1 : 0));
    const double v = big ? RLX_D(0.5) * m : m;
    const RLX_D2 s = d_quotient(RLX_MAKE_D2(v - RLX_D(1.0), RLX_D(0.0)), d_sum(v, RLX_D(1.0)));
    const RLX_D2 z = d_times(s, s);
    // log(v) / 2 = s + s z (1/3 + z (1/5 + z q))
    double q = RLX_D64(0x3fb05162u, 0xb225c4a7u);  // 6.374184465e-02
    q = RLX_MAD64(q, z.x, RLX_D64(0x3fb10628u, 0x348c299fu));  // 6.650019915e-02
    q = RLX_MAD64(q, z.x, RLX_D64(0x3fb3b166u, 0x451e06f9u));  // 7.692565143e-02
    q = RLX_MAD64(q, z.x, RLX_D64(0x3fb745d1u, 0x2758a388u));  // 9.090907298e-02
    q = RLX_MAD64(q, z.x, RLX_D64(0x3fbc71c7u, 0x1ca3e5d0u));  // 1.111111112e-01
    q = RLX_MAD64(q, z.x, RLX_D64(0x3fc24924u, 0x924921efu));  // 1.428571429e-01
    RLX_D2 c = d_quick_sum(RLX_D64(0x3fc99999u, 0x9999999au), z.x * q);
    c = d_times(z, RLX_MAKE_D2(c.x, c.y + RLX_D64(0xbc699999u, 0x9999999au)));
    const RLX_D2 d = d_quick_sum(RLX_D64(0x3fd55555u, 0x55555555u), c.x);
    const RLX_D2 u = d_times(s, d_times(z, RLX_MAKE_D2(d.x, d.y + (c.y + RLX_D64(0x3c755555u, 0x55555555u)))));
    RLX_D2 l = d_quick_sum(s.x, u.x);
    l = d_quick_sum(l.x, l.y + (s.y + u.y));
    const RLX_D2 g = d_times(l, RLX_MAKE_D2(RLX_D64(0x40071547u, 0x652b82feu), RLX_D64(0x3c8777d0u, 0xffda0d24u)));
    const RLX_D2 h = d_sum(k, g.x);
    return d_quick_sum(h.x, h.y + g.y);
}
// C99 Annex F: pow(1, y) = pow(x, 0) = pow(-1, +-infinity) = 1, NaN for a negative base and a fractional exponent.
RLX_FN double d_pow(const double x, const double y) {
    const rlx_u64 ux = d_abs_bits(x);
    const rlx_u64 uy = d_abs_bits(y);
    if (x == RLX_D(1.0) || uy == rlx_u64(0u)) return RLX_D(1.0);
    if (ux > D_INF_BITS || uy > D_INF_BITS) return D_NAN;
    const double ay = RLX_DABS(y);
    const double most = d_pow2(53);
    const bool whole = ay >= most || RLX_DFLOOR(ay) == ay;
    const bool odd = whole && ay < most && (rlx_u64(ay < most ? ay : RLX_D(0.0)) & rlx_u64(1u)) == rlx_u64(1u);
    const bool minus = d_negative(x);
    const rlx_u64 sign = minus && odd ? D_SIGN_BIT : rlx_u64(0u);
    if (ux == rlx_u64(0u) || ux == D_INF_BITS) {
        return RLX_DOUBLE(sign | ((ux == rlx_u64(0u)) != (y < RLX_D(0.0)) ? rlx_u64(0u) : D_INF_BITS));
    }
    if (uy == D_INF_BITS) {
        if (ux == D_ONE_BITS) return RLX_D(1.0);
        return (ux > D_ONE_BITS) == (y > RLX_D(0.0)) ? D_INF : RLX_D(0.0);
    }
    if (minus && !whole) return D_NAN;
    if (ux == D_ONE_BITS) return RLX_DOUBLE(sign | D_ONE_BITS);
    const double exponent = ay > d_pow2(64) ? d_with_sign(d_pow2(64), y) : y;
    const RLX_D2 l = d_log2(ux);
    // What is so small that its lower part would be flushed is small enough for 1 + e.
    if (RLX_DABS(l.x * exponent) < d_pow2(-60)) return RLX_DOUBLE(sign | RLX_DBITS(RLX_D(1.0) + l.x * exponent));
    RLX_D2 e = d_product(l.x, exponent);
    e = d_quick_sum(e.x, e.y + l.y * exponent);
    if (e.x > RLX_D(1024.5)) return RLX_DOUBLE(sign | D_INF_BITS);
    if (e.x < RLX_D(-1076.0)) return RLX_DOUBLE(sign);
    const double k = RLX_DROUND(e.x);
    const double f = e.x - k;
    RLX_D2 r = d_product(f, D_LN2);
    r = d_quick_sum(r.x, r.y + (e.y * D_LN2 + f * D_LN2_REST));
    const RLX_D2 v = d_quick_sum(RLX_D(1.0), r.x);
    return RLX_DOUBLE(sign | RLX_DBITS(d_scale(v.x + (v.y + ((r.x * r.x) * d_exp_poly(r.x) + r.y)), int(k))));
}

RLX_FN double d_log2_of(const double x) {
    const rlx_u64 u = RLX_DBITS(x);
    return d_ordinary(u) ? d_log2(u).x : d_log_odd(x);
}
RLX_FN double d_log10(const double x) {
    const rlx_u64 u = RLX_DBITS(x);
    if (!d_ordinary(u)) return d_log_odd(x);
    const RLX_D2 two = RLX_MAKE_D2(RLX_D64(0x3fd34413u, 0x509f79ffu), RLX_D64(0xbc49dc1du, 0xa994fd21u));  // log10(2)
    const RLX_D2 p = d_times(d_log2(u), two);
    return p.x + p.y;
}
RLX_FN double d_exp2(const double x) {
    if (d_is_nan(x)) return x;
    if (x >= RLX_D(1024.0)) return D_INF;
    if (x < RLX_D(-1076.0)) return RLX_D(0.0);
    if (RLX_DABS(x) < d_pow2(-60)) return RLX_D(1.0);
    const double k = RLX_DROUND(x);
    const double f = x - k;
    RLX_D2 r = d_product(f, D_LN2);
    r = d_quick_sum(r.x, r.y + f * D_LN2_REST);
    return d_scale(RLX_D(1.0) + (r.x + ((r.x * r.x) * d_exp_poly(r.x) + r.y)), int(k));
}
// The cube root of 8^q m, 1 <= m < 8: a guess from the bits of m, three steps of Halley, one of Newton on
// the exact rest.
RLX_FN double d_cbrt(const double x) {
    const rlx_u64 u = d_abs_bits(x);
    if (!d_ordinary(u)) return x;
    const int e = d_exponent(u) + 1077;
    const int q = e / 3;
    const double m = d_mantissa(u) * d_pow2(e - 3 * q);
    double y = RLX_DOUBLE(RLX_DBITS(m) / rlx_u64(3u) + RLX_U64(0x2a9f7893u, 0x782da1ceu));
    for (int i = 0; i < 3; i++) {
        const double c = y * (y * y);
        y = y * (c + (m + m)) / (c + c + m);
    }
    const RLX_D2 s = d_product(y, y);
    const RLX_D2 t = d_product(s.x, y);
    y = y + (((m - t.x) - t.y) - s.y * y) / (RLX_D(3.0) * s.x);
    return d_with_sign(y * d_pow2(q - 359), x);
}

// log(a + sqrt(a^2 + one)) for a > 1/2 and one = 1, or a >= 3/2 and one = -1.
RLX_FN double d_log_root(const double a, const double one) {
    const RLX_D2 alone = RLX_MAKE_D2(a, RLX_D(0.0));
    if (a > d_pow2(28)) return d_log_pair(alone, RLX_D(1.0));  // log(2 a)
    const RLX_D2 p = d_product(a, a);
    const RLX_D2 h = d_sum(p.x, one);
    const double s = d_sqrt(h.x);
    const RLX_D2 t = d_product(s, s);
    const double low = (((h.x - t.x) - t.y) + (h.y + p.y)) / (s + s);
    const RLX_D2 v = d_sum(a, s);
    return d_log_pair(RLX_MAKE_D2(v.x, v.y + low), RLX_D(0.0));
}
RLX_FN double d_asinh(const double x) {
    const double a = RLX_DABS(x);
    if (d_abs_bits(x) >= D_INF_BITS || a < d_pow2(-27)) return x;
    if (a > RLX_D(0.5)) return d_with_sign(d_log_root(a, RLX_D(1.0)), x);
    const double z = x * x;  // (asinh(x) / x - 1) / x^2
    double p = RLX_D64(0x3f5ee3fdu, 0x77d44d42u);  // 1.885411766e-03
    p = RLX_MAD64(p, z, RLX_D64(0xbf74733eu, 0x5158e0e1u));  // -4.992717198e-03
    p = RLX_MAD64(p, z, RLX_D64(0x3f7f3892u, 0x1b605d54u));  // 7.622309427e-03
    p = RLX_MAD64(p, z, RLX_D64(0xbf83a4aeu, 0xece7e69cu));  // -9.591452222e-03
    p = RLX_MAD64(p, z, RLX_D64(0x3f879b0du, 0xbdcdfc75u));  // 1.152621017e-02
    p = RLX_MAD64(p, z, RLX_D64(0xbf8c983bu, 0x8d12e853u));  // -1.396223568e-02
    p = RLX_MAD64(p, z, RLX_D64(0x3f91c4e0u, 0x72f36dc7u));  // 1.735258772e-02
    p = RLX_MAD64(p, z, RLX_D64(0xbf96e8b9u, 0xab4638efu));  // -2.237215145e-02
    p = RLX_MAD64(p, z, RLX_D64(0x3f9f1c71u, 0xc3bee026u));  // 3.038194425e-02
    p = RLX_MAD64(p, z, RLX_D64(0xbfa6db6du, 0xb6d5b365u));  // -4.464285714e-02
    p = RLX_MAD64(p, z, RLX_D64(0x3fb33333u, 0x33332f5fu));  // 7.500000000e-02
    p = RLX_MAD64(p, z, RLX_D64(0xbfc55555u, 0x55555555u));  // -1.666666667e-01
    return x + (x * z) * p;
}
RLX_FN double d_acosh(const double x) {
    if (d_is_nan(x) || RLX_DBITS(x) == D_INF_BITS) return x;
    if (x < RLX_D(1.0)) return D_NAN;
    if (x >= RLX_D(1.5)) return d_log_root(x, RLX_D(-1.0));
    const double t = x - RLX_D(1.0);
    const double d = t + t;
    const double s = d_sqrt(d);
    if (s == RLX_D(0.0)) return RLX_D(0.0);
    const RLX_D2 e = d_product(s, s);  // (acosh(1 + t) / sqrt(2 t) - 1) / t
    double p = RLX_D64(0x3e9ee3fdu, 0x77d44d42u);  // 4.603056068e-07
    p = RLX_MAD64(p, t, RLX_D64(0xbec4733eu, 0x5158e0e1u));  // -2.437850194e-06
    p = RLX_MAD64(p, t, RLX_D64(0x3edf3892u, 0x1b605d54u));  // 7.443661550e-06
    p = RLX_MAD64(p, t, RLX_D64(0xbef3a4aeu, 0xece7e69cu));  // -1.873330512e-05
    p = RLX_MAD64(p, t, RLX_D64(0x3f079b0du, 0xbdcdfc75u));  // 4.502425848e-05
    p = RLX_MAD64(p, t, RLX_D64(0xbf1c983bu, 0x8d12e853u));  // -1.090799663e-04
    p = RLX_MAD64(p, t, RLX_D64(0x3f31c4e0u, 0x72f36dc7u));  // 2.711341830e-04
    p = RLX_MAD64(p, t, RLX_D64(0xbf46e8b9u, 0xab4638efu));  // -6.991297328e-04
    p = RLX_MAD64(p, t, RLX_D64(0x3f5f1c71u, 0xc3bee026u));  // 1.898871516e-03
    p = RLX_MAD64(p, t, RLX_D64(0xbf76db6du, 0xb6d5b365u));  // -5.580357143e-03
    p = RLX_MAD64(p, t, RLX_D64(0x3f933333u, 0x33332f5fu));  // 1.875000000e-02
    p = RLX_MAD64(p, t, RLX_D64(0xbfb55555u, 0x55555555u));  // -8.333333333e-02
    return s + (((d - e.x) - e.y) / (s + s) + (s * t) * p);
}
RLX_FN double d_atanh(const double x) {
    const rlx_u64 u = d_abs_bits(x);
    const double a = RLX_DABS(x);
    if (d_is_nan(x) || a < d_pow2(-27)) return x;
    if (u >= D_ONE_BITS) return u == D_ONE_BITS ? d_with_sign(D_INF, x) : D_NAN;
    if (a < RLX_D(0.5)) {
        const double z = x * x;  // (atanh(x) / x - 1) / x^2
        double p = RLX_D64(0x3fc9462eu, 0x6cdab7edu);  // 1.974542648e-01
        p = RLX_MAD64(p, z, RLX_D64(0xbfbc0946u, 0x19c471ebu));  // -1.095165074e-01
        p = RLX_MAD64(p, z, RLX_D64(0x3fbd52fcu, 0xe8146bb0u));  // 1.145475451e-01
        p = RLX_MAD64(p, z, RLX_D64(0x3f9b8f39u, 0x6f4331c4u));  // 2.691354505e-02
        p = RLX_MAD64(p, z, RLX_D64(0x3facfa99u, 0x4d3772b8u));  // 5.659941738e-02
        p = RLX_MAD64(p, z, RLX_D64(0x3faddabfu, 0x32ba625au));  // 5.830953116e-02
        p = RLX_MAD64(p, z, RLX_D64(0x3fb11405u, 0xf07cc1b1u));  // 6.671177980e-02
        p = RLX_MAD64(p, z, RLX_D64(0x3fb3b10eu, 0xe1a6b3fcu));  // 7.692044267e-02
        p = RLX_MAD64(p, z, RLX_D64(0x3fb745d3u, 0x1a266f20u));  // 9.090918911e-02
        p = RLX_MAD64(p, z, RLX_D64(0x3fbc71c7u, 0x13205231u));  // 1.111111089e-01
        p = RLX_MAD64(p, z, RLX_D64(0x3fc24924u, 0x9256c8f9u));  // 1.428571429e-01
        p = RLX_MAD64(p, z, RLX_D64(0x3fc99999u, 0x999989f4u));  // 2.000000000e-01
        p = RLX_MAD64(p, z, RLX_D64(0x3fd55555u, 0x55555557u));  // 3.333333333e-01
        return x + (x * z) * p;
    }
    const RLX_D2 v = d_quotient(d_sum(RLX_D(1.0), a), RLX_MAKE_D2(RLX_D(1.0) - a, RLX_D(0.0)));
    return d_with_sign(RLX_D(0.5) * d_log_pair(v, RLX_D(0.0)), x);
}
#endif
