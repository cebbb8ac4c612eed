// f64 functions for both GPUs, made as math32.h makes those of f32: sums hi + lo where one double is too little, and
// nothing left to a device's own division, square root or subnormals. Within 1.5 ULP (tests/gpu/test_prims64.py).
// Constants are given by their bits: the preprocessor of GLSL makes no literals of f64. The polynomials are fits of
// Chebyshev to the functions named beside them. trig64.h and hyper64.h hold the rest.
#include "prelude64.h"
#ifndef RLX_MATH64_H
#define RLX_MATH64_H

#define D_INF_BITS RLX_U64(0x7ff00000u, 0x00000000u)
#define D_ONE_BITS RLX_U64(0x3ff00000u, 0x00000000u)
#define D_SIGN_BIT RLX_U64(0x80000000u, 0x00000000u)
#define D_FRACTION RLX_U64(0x000fffffu, 0xffffffffu)
#define D_LEAST RLX_U64(0x00100000u, 0x00000000u)
#define D_INF RLX_DOUBLE(D_INF_BITS)
#define D_LN2 RLX_D64(0x3fe62e42u, 0xfefa39efu)
#define D_LN2_REST RLX_D64(0x3c7abc9eu, 0x3b39803fu)
#define D_LN2_HIGH RLX_D64(0x3fe62e42u, 0xfefa3800u)  // of 42 bits
#define D_LN2_LOW RLX_D64(0x3d2ef357u, 0x93c76730u)
#define D_NAN RLX_DOUBLE(RLX_U64(0x7ff80000u, 0x00000000u))

RLX_FN rlx_u64 d_abs_bits(const double x) { return RLX_DBITS(x) & ~D_SIGN_BIT; }
RLX_FN bool d_is_nan(const double x) { return d_abs_bits(x) > D_INF_BITS; }
RLX_FN bool d_negative(const double x) { return (RLX_DBITS(x) & D_SIGN_BIT) != rlx_u64(0u); }
RLX_FN double d_with_sign(const double x, const double sign) {
    return RLX_DOUBLE(d_abs_bits(x) | (RLX_DBITS(sign) & D_SIGN_BIT));
}
// Whether x, of these bits, is positive, finite and no zero.
RLX_FN bool d_ordinary(const rlx_u64 u) { return u - rlx_u64(1u) < D_INF_BITS - rlx_u64(1u); }

// a = mantissa in [1, 2) times 2^exponent, from the bits of a positive finite a; subnormals as math32.h reads them.
RLX_FN int d_exponent(const rlx_u64 a) {
    return a >= D_LEAST ? int(a >> 52) - 1023 : int(RLX_DBITS(double(a)) >> 52) - 2097;
}
RLX_FN double d_mantissa(const rlx_u64 a) {
    const rlx_u64 u = a >= D_LEAST ? a : RLX_DBITS(double(a));
    return RLX_DOUBLE((u & D_FRACTION) | D_ONE_BITS);
}
// 2^k for -1022 <= k <= 1023, and x 2^k for any k and x near 1: rounded once, by the last multiplication.
RLX_FN double d_pow2(const int k) { return RLX_DOUBLE(rlx_u64(uint(k + 1023)) << 52); }
RLX_FN double d_scale(const double x, const int k) {
    const int n = k < -2044 ? -2044 : (k > 2046 ? 2046 : k);
    return (x * d_pow2(n >> 1)) * d_pow2(n - (n >> 1));
}

// a + b and a * b as hi + lo, exactly; d_quick_sum wants |a| >= |b|.
RLX_FN RLX_D2 d_sum(const double a, const double b) {
    const double s = a + b;
    const double t = s - a;
    return RLX_MAKE_D2(s, (a - (s - t)) + (b - t));
}
RLX_FN RLX_D2 d_quick_sum(const double a, const double b) {
    const double s = a + b;
    return RLX_MAKE_D2(s, b - (s - a));
}
RLX_FN RLX_D2 d_product(const double a, const double b) {
    const double p = a * b;
#ifdef RLX_EXACT_FMA64
    return RLX_MAKE_D2(p, RLX_EXACT_FMA64(a, b, -p));
#else
    const double ah = RLX_DOUBLE(RLX_DBITS(a) & RLX_U64(0xffffffffu, 0xf8000000u));
    const double bh = RLX_DOUBLE(RLX_DBITS(b) & RLX_U64(0xffffffffu, 0xf8000000u));
    const double al = a - ah;
    const double bl = b - bh;
    return RLX_MAKE_D2(p, ((ah * bh - p) + ah * bl + al * bh) + al * bl);
#endif
}
// The product and the quotient of sums; operands whose product and quotient are far from over- and underflow.
RLX_FN RLX_D2 d_times(const RLX_D2 a, const RLX_D2 b) {
    const RLX_D2 p = d_product(a.x, b.x);
    return d_quick_sum(p.x, p.y + (a.x * b.y + a.y * b.x));
}
RLX_FN RLX_D2 d_quotient(const RLX_D2 n, const RLX_D2 d) {
    const double q = n.x / d.x;
    const RLX_D2 p = d_product(q, d.x);
    return d_quick_sum(q, (((n.x - p.x) - p.y) + (n.y - q * d.y)) / d.x);
}

// Correctly rounded division and square root, in the way of math32.h.
RLX_FN double d_div(const double a, const double b) {
#ifdef RLX_EXACT_DIV
    return a / b;
#else
    const rlx_u64 ua = d_abs_bits(a);
    const rlx_u64 ub = d_abs_bits(b);
    const double sign = RLX_DOUBLE(((RLX_DBITS(a) ^ RLX_DBITS(b)) & D_SIGN_BIT) | D_ONE_BITS);
    if (!d_ordinary(ua) || !d_ordinary(ub)) {
        if (ua > D_INF_BITS || ub > D_INF_BITS || ua == ub) return D_NAN;
        return d_with_sign(ua == D_INF_BITS || ub == rlx_u64(0u) ? D_INF : RLX_D(0.0), sign);
    }
    const double x = d_mantissa(ua);
    const double y = d_mantissa(ub);
    double q = x / y;
    RLX_D2 p = d_product(q, y);
    q = q + ((x - p.x) - p.y) / y;
    p = d_product(q, y);
    const double rest = (x - p.x) - p.y;
    const double ulp = q >= RLX_D(1.0) ? d_pow2(-52) : d_pow2(-53);
    const double half_ulp = RLX_D(0.5) * ulp * y;
    if (rest > half_ulp) q = q + ulp;
    if (rest < -half_ulp) q = q - ulp;
    return d_scale(q, d_exponent(ua) - d_exponent(ub)) * sign;
#endif
}
RLX_FN double d_sqrt(const double x) {
#ifdef RLX_EXACT_DIV
    return RLX_DSQRT(x);
#else
    const rlx_u64 u = RLX_DBITS(x);
    if (!d_ordinary(u)) return d_abs_bits(x) == rlx_u64(0u) || d_is_nan(x) || u == D_INF_BITS ? x : D_NAN;
    const int e = d_exponent(u);
    const double m = d_mantissa(u) * ((e & 1) == 1 ? RLX_D(2.0) : RLX_D(1.0));
    double s = sqrt(m);
    RLX_D2 p = d_product(s, s);
    s = s + (RLX_D(0.5) * ((m - p.x) - p.y)) / s;
    p = d_product(s, s);
    const double rest = (m - p.x) - p.y;
    const double ulp = d_pow2(-52);
    if (rest > s * ulp) s = s + ulp;
    if (rest <= -(s * ulp)) s = s - ulp;
    return s * d_pow2(e >> 1);
#endif
}

// (exp(r) - 1 - r) / r^2 for |r| <= 0.3475.
RLX_FN double d_exp_poly(const double r) {
    double q = RLX_D64(0x3e5af39cu, 0x20098071u);  // 2.510063446e-08
    q = RLX_MAD64(q, r, RLX_D64(0x3e928926u, 0x932adb78u));  // 2.762041219e-07
    q = RLX_MAD64(q, r, RLX_D64(0x3ec71de0u, 0xd383914au));  // 2.755726794e-06
    q = RLX_MAD64(q, r, RLX_D64(0x3efa019bu, 0x84d17a80u));  // 2.480152061e-05
    q = RLX_MAD64(q, r, RLX_D64(0x3f2a01a0u, 0x1a7e29cdu));  // 1.984126986e-04
    q = RLX_MAD64(q, r, RLX_D64(0x3f56c16cu, 0x178bd6bcu));  // 1.388888892e-03
    q = RLX_MAD64(q, r, RLX_D64(0x3f811111u, 0x1111098cu));  // 8.333333333e-03
    q = RLX_MAD64(q, r, RLX_D64(0x3fa55555u, 0x55553ce3u));  // 4.166666667e-02
    q = RLX_MAD64(q, r, RLX_D64(0x3fc55555u, 0x55555556u));  // 1.666666667e-01
    q = RLX_MAD64(q, r, RLX_D64(0x3fe00000u, 0x00000001u));  // 5.000000000e-01
    return q;
}
// The number of ln 2 in x, and exp of the rest minus 1 as hi + lo.
RLX_FN double d_exp_count(const double x) { return RLX_DROUND(x * RLX_D64(0x3ff71547u, 0x652b82feu)); }
RLX_FN RLX_D2 d_exp_rest(const double x, const double k) {
    const double h = x - k * D_LN2_HIGH;  // exact
    const double c = k * D_LN2_LOW;
    const double r = h - c;
    return d_quick_sum(r, (r * r) * d_exp_poly(r) + ((h - r) - c));
}
RLX_FN double d_exp(const double x) {
    if (d_is_nan(x)) return x;
    if (x > RLX_D(709.79)) return D_INF;
    if (x < RLX_D(-745.2)) return RLX_D(0.0);
    const double k = d_exp_count(x);
    const RLX_D2 r = d_exp_rest(x, k);
    return d_scale(RLX_D(1.0) + r.x, int(k));
}
RLX_FN double d_expm1(const double x) {
    if (d_is_nan(x) || d_abs_bits(x) < RLX_U64(0x3c900000u, 0x00000000u)) return x;
    if (x > RLX_D(38.0)) return d_exp(x) - RLX_D(1.0);
    if (x < RLX_D(-38.0)) return RLX_D(-1.0);
    const double k = d_exp_count(x);
    const RLX_D2 r = d_exp_rest(x, k);
    const double s = d_pow2(int(k));
    const RLX_D2 e = d_sum(s - RLX_D(1.0), s * r.x);
    return e.x + (e.y + s * r.y);
}

// k ln 2 + log(1 + f + c) for f in [sqrt(1/2) - 1, sqrt(2) - 1] and a tiny c: with s = f / (2 + f),
// log(1 + f) = f - f^2 / 2 + s (f^2 / 2 + s^2 p(s^2)).
RLX_FN double d_log_sum(const double k, const double f, const double c) {
    const double v = f / (RLX_D(2.0) + f);
    const double z = v * v;
    double p = RLX_D64(0x3fc0c2c7u, 0x48b6f13cu);  // 1.309441667e-01
    p = RLX_MAD64(p, z, RLX_D64(0x3fc0fbaau, 0xb3c72fc6u));  // 1.326802614e-01
    p = RLX_MAD64(p, z, RLX_D64(0x3fc3b1c5u, 0xae500a38u));  // 1.538626767e-01
    p = RLX_MAD64(p, z, RLX_D64(0x3fc745cfu, 0x85360411u));  // 1.818179512e-01
    p = RLX_MAD64(p, z, RLX_D64(0x3fcc71c7u, 0x20302bd8u));  // 2.222222240e-01
    p = RLX_MAD64(p, z, RLX_D64(0x3fd24924u, 0x92475dbcu));  // 2.857142857e-01
    p = RLX_MAD64(p, z, RLX_D64(0x3fd99999u, 0x99999a3eu));  // 4.000000000e-01
    p = RLX_MAD64(p, z, RLX_D64(0x3fe55555u, 0x55555555u));  // 6.666666667e-01
    const RLX_D2 sq = d_product(f, f);
    const RLX_D2 s = d_quick_sum(f, RLX_D(-0.5) * sq.x);
    const double low = (s.y - RLX_D(0.5) * sq.y) + v * (RLX_D(0.5) * sq.x + z * p) + c;
    const RLX_D2 t = d_sum(k * D_LN2_HIGH, s.x);
    return t.x + (t.y + (low + k * D_LN2_LOW));
}
// What logarithms give where x is not positive and finite.
RLX_FN double d_log_odd(const double x) {
    if (d_abs_bits(x) == rlx_u64(0u)) return -D_INF;
    return d_is_nan(x) || RLX_DBITS(x) == D_INF_BITS ? x : D_NAN;
}
RLX_FN double d_log(const double x) {
    const rlx_u64 u = RLX_DBITS(x);
    if (!d_ordinary(u)) return d_log_odd(x);
    const double m = d_mantissa(u);
    const bool big = m > RLX_D(1.4142135623730951);
    return d_log_sum(double(d_exponent(u) + (big ? 1 : 0)), (big ? RLX_D(0.5) * m : m) - RLX_D(1.0), RLX_D(0.0));
}
// log(v.hi + v.lo) + twos ln 2 for a normal positive v.
RLX_FN double d_log_pair(const RLX_D2 v, const double twos) {
    const rlx_u64 u = RLX_DBITS(v.x);
    const double m = d_mantissa(u);
    const bool big = m > RLX_D(1.4142135623730951);
    const int k = d_exponent(u) + (big ? 1 : 0);
    const double f = (big ? RLX_D(0.5) * m : m) - RLX_D(1.0);
    const double c = k > 70 ? RLX_D(0.0) : v.y * d_pow2(-k);
    return d_log_sum(double(k) + twos, f, c * (RLX_D(1.0) - f + f * f));
}
RLX_FN double d_log1p(const double x) {
    if (d_abs_bits(x) < RLX_U64(0x3c900000u, 0x00000000u) || d_is_nan(x) || x == D_INF) return x;
    if (x <= RLX_D(-1.0)) return x == RLX_D(-1.0) ? -D_INF : D_NAN;
    if (x > RLX_D(-0.2928) && x < RLX_D(0.4142)) return d_log_sum(RLX_D(0.0), x, RLX_D(0.0));
    return d_log_pair(d_sum(RLX_D(1.0), x), RLX_D(0.0));
}

// exp(a) / 2 +- exp(-a) / 2 for a >= 0: sinh and cosh, once they do not cancel.
RLX_FN double d_half_exps(const double a, const double sign) {
    const double x = a > RLX_D(714.0) ? RLX_D(714.0) : a;  // both overflow from 710.48 on
    const double k = d_exp_count(x);
    const RLX_D2 r = d_exp_rest(x, k);
    const RLX_D2 e = d_sum(RLX_D(1.0), r.x);
    const int n = int(k) - 1;
    const double hi = d_scale(e.x, n);
    const double inverse = x > RLX_D(40.0) ? RLX_D(0.0) : RLX_D(0.25) / hi;
    return hi + (d_scale(e.y + r.y, n) + sign * inverse);
}
RLX_FN double d_sinh(const double x) {
    if (d_is_nan(x)) return x;
    const double a = RLX_DABS(x);
    if (a < d_pow2(-27)) return x;
    if (a >= RLX_D(1.0)) return d_with_sign(d_half_exps(a, RLX_D(-1.0)), x);
    const double z = x * x;
    double p = RLX_D64(0x3d6b4123u, 0x2cf9950fu);  // 7.746178593e-13
    p = RLX_MAD64(p, z, RLX_D64(0x3de611cbu, 0x330c1fe8u));  // 1.605767962e-10
    p = RLX_MAD64(p, z, RLX_D64(0x3e5ae646u, 0x0fae3728u));  // 2.505211770e-08
    p = RLX_MAD64(p, z, RLX_D64(0x3ec71de3u, 0xa4e14f40u));  // 2.755731919e-06
    p = RLX_MAD64(p, z, RLX_D64(0x3f2a01a0u, 0x1a01ee70u));  // 1.984126984e-04
    p = RLX_MAD64(p, z, RLX_D64(0x3f811111u, 0x111110fdu));  // 8.333333333e-03
    p = RLX_MAD64(p, z, RLX_D64(0x3fc55555u, 0x55555555u));  // 1.666666667e-01
    return x + (x * z) * p;
}
RLX_FN double d_cosh(const double x) { return d_is_nan(x) ? x : d_half_exps(RLX_DABS(x), RLX_D(1.0)); }
RLX_FN double d_tanh(const double x) {
    if (d_is_nan(x)) return x;
    const double a = RLX_DABS(x);
    if (a < d_pow2(-27)) return x;
    if (a > RLX_D(19.1)) return d_with_sign(RLX_D(1.0), x);
    if (a < RLX_D(0.55)) {
        const double z = x * x;
        double p = RLX_D64(0xbef59a83u, 0x4187ce22u);  // -2.060276538e-05
        p = RLX_MAD64(p, z, RLX_D64(0x3f164fd8u, 0x8e9900a5u));  // 8.511313686e-05
        p = RLX_MAD64(p, z, RLX_D64(0xbf2ec109u, 0x1436eb2au));  // -2.346347411e-04
        p = RLX_MAD64(p, z, RLX_D64(0x3f434c5au, 0x8a996cd4u));  // 5.889360520e-04
        p = RLX_MAD64(p, z, RLX_D64(0xbf57d97cu, 0xfd138c28u));  // -1.455661830e-03
        p = RLX_MAD64(p, z, RLX_D64(0x3f6d6d33u, 0x9333f329u));  // 3.592110379e-03
        p = RLX_MAD64(p, z, RLX_D64(0xbf8226e3u, 0x2f00cf0cu));  // -8.863234398e-03
        p = RLX_MAD64(p, z, RLX_D64(0x3f9664f4u, 0x87713373u));  // 2.186948849e-02
        p = RLX_MAD64(p, z, RLX_D64(0xbfaba1bau, 0x1b9fec84u));  // -5.396825397e-02
        p = RLX_MAD64(p, z, RLX_D64(0x3fc11111u, 0x11111032u));  // 1.333333333e-01
        p = RLX_MAD64(p, z, RLX_D64(0xbfd55555u, 0x55555555u));  // -3.333333333e-01
        return x + (x * z) * p;
    }
    const double k = d_exp_count(a + a);
    const RLX_D2 r = d_exp_rest(a + a, k);
    const double s = d_pow2(int(k));
    const RLX_D2 d = d_sum(s + RLX_D(1.0), s * r.x);
    const RLX_D2 q = d_quotient(RLX_MAKE_D2(RLX_D(2.0), RLX_D(0.0)), RLX_MAKE_D2(d.x, d.y + s * r.y));
    return d_with_sign(RLX_D(1.0) - q.x, x);
}
RLX_FN double d_erf(const double x) {
    if (d_is_nan(x)) return x;
    const double a = RLX_DABS(x);
    if (a >= RLX_D(5.95)) return d_with_sign(RLX_D(1.0), x);
    if (a < d_pow2(-500)) {  // 2^540 times as large on the way, lest a small term be flushed
        const double t = x * d_pow2(540);
        return (t + t * RLX_D64(0x3fc06ebau, 0x8214db69u)) * d_pow2(-540);
    }
    if (a < RLX_D(1.0)) {
        const double z = x * x;  // erf(x) / x - 1
        double p = RLX_D64(0x3dd05ffdu, 0x737fb32eu);  // 5.957176148e-11
        p = RLX_MAD64(p, z, RLX_D64(0xbe1389d4u, 0xf2641625u));  // -1.137284886e-09
        p = RLX_MAD64(p, z, RLX_D64(0x3e4f7b4bu, 0xf3b13964u));  // 1.465977527e-08
        p = RLX_MAD64(p, z, RLX_D64(0xbe85f1ecu, 0xb6f0764cu));  // -1.635031270e-07
        p = RLX_MAD64(p, z, RLX_D64(0x3ebb9df2u, 0x24ca4b97u));  // 1.646100048e-06
        p = RLX_MAD64(p, z, RLX_D64(0xbeef4d1eu, 0x3183f7aeu));  // -1.492559527e-05
        p = RLX_MAD64(p, z, RLX_D64(0x3f1f9a32u, 0x1d5b8e1eu));  // 1.205533111e-04
        p = RLX_MAD64(p, z, RLX_D64(0xbf4c02dbu, 0x3dac435fu));  // -8.548326981e-04
        p = RLX_MAD64(p, z, RLX_D64(0x3f7565bcu, 0xd0dbaa38u));  // 5.223977625e-03
        p = RLX_MAD64(p, z, RLX_D64(0xbf9b82ceu, 0x31284e00u));  // -2.686617065e-02
        p = RLX_MAD64(p, z, RLX_D64(0x3fbce2f2u, 0x1a042b30u));  // 1.128379167e-01
        p = RLX_MAD64(p, z, RLX_D64(0xbfd81274u, 0x6b0379e6u));  // -3.761263890e-01
        p = RLX_MAD64(p, z, RLX_D64(0x3fc06ebau, 0x8214db69u));  // 1.283791671e-01
        return x + x * p;
    }
    const double t = a < RLX_D(2.0) ? a - RLX_D(1.0) : a - RLX_D(2.0);
    double p;
    if (a < RLX_D(2.0)) {  // log(1 - erf(1 + t))
        p = RLX_D64(0xbe5bb91eu, 0xb6783191u);  // -2.581917205e-08
        p = RLX_MAD64(p, t, RLX_D64(0x3e973c5au, 0xceaf9ff8u));  // 3.462398143e-07
        p = RLX_MAD64(p, t, RLX_D64(0xbec3464du, 0x12d08a26u));  // -2.297712987e-06
        p = RLX_MAD64(p, t, RLX_D64(0x3ee49234u, 0x97c612a5u));  // 9.809072019e-06
        p = RLX_MAD64(p, t, RLX_D64(0xbefc9b1bu, 0xd0e414d4u));  // -2.728070563e-05
        p = RLX_MAD64(p, t, RLX_D64(0x3efb9c28u, 0x7a7dba67u));  // 2.633094087e-05
        p = RLX_MAD64(p, t, RLX_D64(0x3f2f1aabu, 0xdc0e009eu));  // 2.373060979e-04
        p = RLX_MAD64(p, t, RLX_D64(0xbf6033f4u, 0x7d14ed6du));  // -1.977899091e-03
        p = RLX_MAD64(p, t, RLX_D64(0x3f848c9du, 0x2e12393du));  // 1.003382489e-02
        p = RLX_MAD64(p, t, RLX_D64(0xbfa5477fu, 0x096680a2u));  // -4.156109800e-02
        p = RLX_MAD64(p, t, RLX_D64(0xbfeafabcu, 0x11a2d5e1u));  // -8.431072564e-01
        p = RLX_MAD64(p, t, RLX_D64(0xc0051c9bu, 0x0006c1eeu));  // -2.638967514e+00
        p = RLX_MAD64(p, t, RLX_D64(0xbffd97fbu, 0xf27aa2a2u));  // -1.849605510e+00
    } else {  // log(1 - erf(2 + t))
        p = RLX_D64(0xbcef650cu, 0x9400ace2u);  // -3.485514452e-15
        p = RLX_MAD64(p, t, RLX_D64(0x3d451177u, 0x04ce092bu));  // 1.496987233e-13
        p = RLX_MAD64(p, t, RLX_D64(0xbd8abae5u, 0x1c941655u));  // -3.038855819e-12
        p = RLX_MAD64(p, t, RLX_D64(0x3dc5636eu, 0x2898b20cu));  // 3.890527230e-11
        p = RLX_MAD64(p, t, RLX_D64(0xbdf84d4fu, 0x21aa843cu));  // -3.536404795e-10
        p = RLX_MAD64(p, t, RLX_D64(0x3e24e392u, 0x4a733b40u));  // 2.431793950e-09
        p = RLX_MAD64(p, t, RLX_D64(0xbe4c15f6u, 0x1c146200u));  // -1.307846354e-08
        p = RLX_MAD64(p, t, RLX_D64(0x3e6d8db2u, 0x1aa5f52bu));  // 5.504768137e-08
        p = RLX_MAD64(p, t, RLX_D64(0xbe867ff4u, 0x845b483fu));  // -1.676367580e-07
        p = RLX_MAD64(p, t, RLX_D64(0x3e8a42b0u, 0x901281e7u));  // 1.956560212e-07
        p = RLX_MAD64(p, t, RLX_D64(0x3ec07271u, 0x9b1842f1u));  // 1.960640667e-06
        p = RLX_MAD64(p, t, RLX_D64(0xbef5b81du, 0x4fdb4bedu));  // -2.071304060e-05
        p = RLX_MAD64(p, t, RLX_D64(0x3f21bc5au, 0x6fb5f099u));  // 1.353130718e-04
        p = RLX_MAD64(p, t, RLX_D64(0xbf47ffd2u, 0xdda86933u));  // -7.324008578e-04
        p = RLX_MAD64(p, t, RLX_D64(0x3f6d406bu, 0x6c188016u));  // 3.570756730e-03
        p = RLX_MAD64(p, t, RLX_D64(0xbf90dc3bu, 0x60be60f3u));  // -1.646511820e-02
        p = RLX_MAD64(p, t, RLX_D64(0xbfed8f5du, 0xece86e7bu));  // -9.237508418e-01
        p = RLX_MAD64(p, t, RLX_D64(0xc011ac32u, 0x58a8dcedu));  // -4.418160806e+00
        p = RLX_MAD64(p, t, RLX_D64(0xc01575b3u, 0x29b1f515u));  // -5.364941265e+00
    }
    return d_with_sign(RLX_D(1.0) - d_exp(p), x);
}

// The remainder of truncated division, exact: 11 bits of the quotient a round.
RLX_FN double d_fmod(const double a, const double b) {
    const rlx_u64 ua = d_abs_bits(a);
    const rlx_u64 ub = d_abs_bits(b);
    if (ua >= D_INF_BITS || ub > D_INF_BITS || ub == rlx_u64(0u)) return D_NAN;
    if (ua < ub) return a;
    const int eb = ub >= D_LEAST ? int(ub >> 52) : 1;
    int left = (ua >= D_LEAST ? int(ua >> 52) : 1) - eb;
    rlx_u64 m = ua >= D_LEAST ? (ua & D_FRACTION) | D_LEAST : ua;
    const rlx_u64 d = ub >= D_LEAST ? (ub & D_FRACTION) | D_LEAST : ub;
    m = m % d;
    while (left > 0 && m != rlx_u64(0u)) {
        const int n = left < 11 ? left : 11;
        m = (m << uint(n)) % d;
        left = left - n;
    }
    if (m == rlx_u64(0u)) return d_with_sign(RLX_D(0.0), a);
    // m 2^(eb - 1075), put together from its bits so that nothing is flushed.
    const int up = 1075 - int(RLX_DBITS(double(m)) >> 52);
    const rlx_u64 r = eb > up ? (rlx_u64(uint(eb - up)) << 52) + ((m << uint(up)) & D_FRACTION) : m << uint(eb - 1);
    return d_with_sign(RLX_DOUBLE(r), a);
}
#endif
