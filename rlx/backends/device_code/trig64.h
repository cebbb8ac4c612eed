// Circular functions and their inverses in f64, in the way of trig32.h.
#include "math64.h"
#ifndef RLX_TRIG64_H
#define RLX_TRIG64_H

#define D_PI RLX_D64(0x400921fbu, 0x54442d18u)
#define D_PI_REST RLX_D64(0x3ca1a626u, 0x33145c07u)
#define D_PI_2 RLX_D64(0x3ff921fbu, 0x54442d18u)
#define D_PI_2_REST RLX_D64(0x3c91a626u, 0x33145c07u)
#define D_PI_4 RLX_D64(0x3fe921fbu, 0x54442d18u)
#define D_PI_4_REST RLX_D64(0x3c81a626u, 0x33145c07u)
#define D_PI_34 RLX_D64(0x4002d97cu, 0x7f3321d2u)

// Bits of 2/pi after 64 zeros.
RLX_TABLE rlx_u64 d_two_over_pi[21] = {
    RLX_U64(0x00000000u, 0x00000000u), RLX_U64(0xa2f9836eu, 0x4e441529u), RLX_U64(0xfc2757d1u, 0xf534ddc0u),
    RLX_U64(0xdb629599u, 0x3c439041u), RLX_U64(0xfe5163abu, 0xdebbc561u), RLX_U64(0xb7246e3au, 0x424dd2e0u),
    RLX_U64(0x06492eeau, 0x09d1921cu), RLX_U64(0xfe1deb1cu, 0xb129a73eu), RLX_U64(0xe88235f5u, 0x2ebb4484u),
    RLX_U64(0xe99c7026u, 0xb45f7e41u), RLX_U64(0x3991d639u, 0x835339f4u), RLX_U64(0x9c845f8bu, 0xbdf9283bu),
    RLX_U64(0x1ff897ffu, 0xde05980fu), RLX_U64(0xef2f118bu, 0x5a0a6d1fu), RLX_U64(0x6d367ecfu, 0x27cb09b7u),
    RLX_U64(0x4f463f66u, 0x9e5fea2du), RLX_U64(0x7527bac7u, 0xebe5f17bu), RLX_U64(0x3d0739f7u, 0x8a5292eau),
    RLX_U64(0x6bfb5fb1u, 0x1f8d5d08u), RLX_U64(0x56033046u, 0xfc7b6babu), RLX_U64(0xf0cfbc20u, 0x9af4361du)};

RLX_FN rlx_u64 d_umulhi(const rlx_u64 a, const rlx_u64 b) {
    const rlx_u64 mask = rlx_u64(0xffffffffu);
    const rlx_u64 al = a & mask, ah = a >> 32, bl = b & mask, bh = b >> 32;
    const rlx_u64 low = (al * bl) >> 32;
    const rlx_u64 mid = ah * bl + low;
    const rlx_u64 cross = al * bh + (mid & mask);
    return ah * bh + (mid >> 32) + (cross >> 32);
}
// Zeros before the highest bit of a number that is not 0.
RLX_FN int d_zeros(const rlx_u64 a) {
    const uint high = uint(a >> 32);
    return high != 0u ? 31 - RLX_MSB(high) : 63 - RLX_MSB(uint(a & rlx_u64(0xffffffffu)));
}

// x - quadrant pi/2 as hi + lo, |hi| <= pi/4, for finite x.
RLX_FN RLX_D2 d_reduce(const double x, RLX_OUT(int) quadrant) {
    const rlx_u64 a = d_abs_bits(x);
    if (a < RLX_U64(0x40500000u, 0x00000000u)) {  // |x| < 64: k < 41 times 33-bit parts of pi/2 is exact
        const double k = RLX_DROUND(x * RLX_D64(0x3fe45f30u, 0x6dc9c883u));
        quadrant = int(k) & 3;
        const RLX_D2 r = d_sum(x - k * RLX_D64(0x3ff921fbu, 0x54400000u), -(k * RLX_D64(0x3dd0b461u, 0x1a600000u)));
        return d_quick_sum(r.x, r.y - k * RLX_D64(0x3ba3198au, 0x2e037073u));
    }
    // |x| = m 2^e; 192 bits of 2/pi from weight 2^(1-e) on give |x| 2/pi mod 4, two bits before the point.
    const rlx_u64 m = (a & D_FRACTION) | D_LEAST;
    const int q = int(a >> 52) - 1075 + 62;
    const int w = q >> 6;
    const uint s = uint(q & 63);
    rlx_u64 high = d_two_over_pi[w];
    rlx_u64 mid = d_two_over_pi[w + 1];
    rlx_u64 low = d_two_over_pi[w + 2];
    if (s != 0u) {
        high = (high << s) | (mid >> (64u - s));
        mid = (mid << s) | (low >> (64u - s));
        low = (low << s) | (d_two_over_pi[w + 3] >> (64u - s));
    }
    rlx_u64 p0 = m * low;
    rlx_u64 p1 = m * mid;
    const rlx_u64 carry = d_umulhi(m, low);
    p1 = p1 + carry;
    rlx_u64 p2 = m * high + d_umulhi(m, mid) + (p1 < carry ? rlx_u64(1u) : rlx_u64(0u));
    const rlx_u64 n = (p2 + RLX_U64(0x20000000u, 0x00000000u)) >> 62;
    p2 = p2 - (n << 62);
    const bool negative = (p2 & D_SIGN_BIT) != rlx_u64(0u);
    if (negative) {
        p0 = ~p0 + rlx_u64(1u);
        p1 = ~p1 + (p0 == rlx_u64(0u) ? rlx_u64(1u) : rlx_u64(0u));
        p2 = ~p2 + (p0 == rlx_u64(0u) && p1 == rlx_u64(0u) ? rlx_u64(1u) : rlx_u64(0u));
    }
    int shift = 0;  // a reduced angle is at least 2^-62 or so: at most one word is empty
    if (p2 == rlx_u64(0u)) {
        p2 = p1;
        p1 = p0;
        shift = 64;
    }
    const int zeros = d_zeros(p2);
    if (zeros != 0) {
        p2 = (p2 << uint(zeros)) | (p1 >> uint(64 - zeros));
        p1 = p1 << uint(zeros);  // its last bits are beyond what lo holds
    }
    shift = shift + zeros;
    const double unit = d_pow2(-62 - shift);
    const double hi = double(p2 & ~rlx_u64(0x7ffu)) * unit;
    const double lo = double(((p2 & rlx_u64(0x7ffu)) << 42) | (p1 >> 22)) * (unit * d_pow2(-42));
    const RLX_D2 t = d_product(hi, D_PI_2);
    const RLX_D2 r = d_quick_sum(t.x, t.y + (hi * D_PI_2_REST + lo * D_PI_2));
    const bool flip = negative != d_negative(x);
    const int turns = int(n & rlx_u64(3u));
    quadrant = (d_negative(x) ? -turns : turns) & 3;
    return flip ? RLX_MAKE_D2(-r.x, -r.y) : r;
}
// sin and cos of hi + lo, |hi| <= pi/4, as hi + lo.
RLX_FN RLX_D2 d_sin_small(const RLX_D2 r) {
    const double z = r.x * r.x;
    double p = RLX_D64(0x3de5e0aeu, 0x8e372075u);  // 1.591809524e-10
    p = RLX_MAD64(p, z, RLX_D64(0xbe5ae600u, 0xa7a70c62u));  // -2.505113137e-08
    p = RLX_MAD64(p, z, RLX_D64(0x3ec71de3u, 0x79607474u));  // 2.755731610e-06
    p = RLX_MAD64(p, z, RLX_D64(0xbf2a01a0u, 0x19e83460u));  // -1.984126984e-04
    p = RLX_MAD64(p, z, RLX_D64(0x3f811111u, 0x11110bb1u));  // 8.333333333e-03
    p = RLX_MAD64(p, z, RLX_D64(0xbfc55555u, 0x55555555u));  // -1.666666667e-01
    return d_quick_sum(r.x, (z * r.x) * p + r.y * (RLX_D(1.0) - RLX_D(0.5) * z));
}
RLX_FN RLX_D2 d_cos_small(const RLX_D2 r) {
    const RLX_D2 z = d_product(r.x, r.x);
    double p = RLX_D64(0xbda907d7u, 0x24680d4eu);  // -1.138261112e-11
    p = RLX_MAD64(p, z.x, RLX_D64(0x3e21eeb6u, 0x8a508535u));  // 2.087614597e-09
    p = RLX_MAD64(p, z.x, RLX_D64(0xbe927e4fu, 0xa179895fu));  // -2.755731727e-07
    p = RLX_MAD64(p, z.x, RLX_D64(0x3efa01a0u, 0x19f4e7d9u));  // 2.480158730e-05
    p = RLX_MAD64(p, z.x, RLX_D64(0xbf56c16cu, 0x16c16966u));  // -1.388888889e-03
    p = RLX_MAD64(p, z.x, RLX_D64(0x3fa55555u, 0x55555555u));  // 4.166666667e-02
    const RLX_D2 w = d_quick_sum(RLX_D(1.0), RLX_D(-0.5) * z.x);
    return d_quick_sum(w.x, w.y + ((z.x * z.x) * p - (r.x * r.y + RLX_D(0.5) * z.y)));
}
RLX_FN double d_sin_quadrant(const double x, const int quarter) {
    if (d_abs_bits(x) >= D_INF_BITS) return D_NAN;
    int n = 0;
    const RLX_D2 r = d_reduce(x, n);
    n = n + quarter;
    const double y = (n & 1) == 1 ? d_cos_small(r).x : d_sin_small(r).x;
    return (n & 2) == 2 ? -y : y;
}
RLX_FN double d_sin(const double x) { return RLX_DABS(x) < d_pow2(-27) ? x : d_sin_quadrant(x, 0); }
RLX_FN double d_cos(const double x) {
    return RLX_DABS(x) < d_pow2(-27) ? RLX_D(1.0) : d_sin_quadrant(x, 1);
}
RLX_FN double d_tan(const double x) {
    if (d_abs_bits(x) >= D_INF_BITS) return D_NAN;
    if (RLX_DABS(x) < d_pow2(-27)) return x;
    int n = 0;
    const RLX_D2 r = d_reduce(x, n);
    const RLX_D2 s = d_sin_small(r);
    const RLX_D2 c = d_cos_small(r);
    if ((n & 1) == 0) return d_quotient(s, c).x;
    return -d_quotient(c, s).x;
}

// (asin(x) / x - 1) / x^2 of z = x^2 <= 1/4.
RLX_FN double d_asin_poly(const double z) {
    double p = RLX_D64(0x3f9d72b2u, 0xbc8155f8u);  // 2.875785137e-02
    p = RLX_MAD64(p, z, RLX_D64(0xbf8e6aaau, 0x8a0a04ccu));  // -1.485188707e-02
    p = RLX_MAD64(p, z, RLX_D64(0x3f91d189u, 0x408314eeu));  // 1.740087944e-02
    p = RLX_MAD64(p, z, RLX_D64(0x3f765a9cu, 0x4dfcf8b2u));  // 5.457506719e-03
    p = RLX_MAD64(p, z, RLX_D64(0x3f852420u, 0xb04b37beu));  // 1.032281435e-02
    p = RLX_MAD64(p, z, RLX_D64(0x3f878265u, 0x1caa6547u));  // 1.147917742e-02
    p = RLX_MAD64(p, z, RLX_D64(0x3f8c9cf0u, 0x7674736au));  // 1.397121297e-02
    p = RLX_MAD64(p, z, RLX_D64(0x3f91c4d3u, 0x5cf95421u));  // 1.735239272e-02
    p = RLX_MAD64(p, z, RLX_D64(0x3f96e8bbu, 0x1c8209a2u));  // 2.237217294e-02
    p = RLX_MAD64(p, z, RLX_D64(0x3f9f1c71u, 0xc1db0623u));  // 3.038194414e-02
    p = RLX_MAD64(p, z, RLX_D64(0x3fa6db6du, 0xb6e31f13u));  // 4.464285715e-02
    p = RLX_MAD64(p, z, RLX_D64(0x3fb33333u, 0x33332ecau));  // 7.500000000e-02
    p = RLX_MAD64(p, z, RLX_D64(0x3fc55555u, 0x55555556u));  // 1.666666667e-01
    return p;
}
// asin(sqrt((1 - a) / 2)) for 1/2 <= a <= 1 as hi + lo.
RLX_FN RLX_D2 d_asin_root(const double a) {
    const double z = RLX_D(0.5) * (RLX_D(1.0) - a);
    const double s = d_sqrt(z);
    const RLX_D2 p = d_product(s, s);
    const double low = s > RLX_D(0.0) ? ((z - p.x) - p.y) / (RLX_D(2.0) * s) : RLX_D(0.0);
    return d_quick_sum(s, (s * z) * d_asin_poly(z) + low);
}
RLX_FN double d_asin(const double x) {
    const double a = RLX_DABS(x);
    if (!(a <= RLX_D(1.0))) return D_NAN;
    if (a < d_pow2(-27)) return x;
    if (a < RLX_D(0.5)) return x + (x * (x * x)) * d_asin_poly(x * x);
    const RLX_D2 r = d_asin_root(a);
    const RLX_D2 t = d_quick_sum(D_PI_2, RLX_D(-2.0) * r.x);
    return d_with_sign(t.x + (t.y + (D_PI_2_REST - RLX_D(2.0) * r.y)), x);
}
RLX_FN double d_acos(const double x) {
    const double a = RLX_DABS(x);
    if (!(a <= RLX_D(1.0))) return D_NAN;
    if (a < RLX_D(0.5)) {
        const RLX_D2 t = d_quick_sum(D_PI_2, -x);
        const double cubed = a < d_pow2(-60) ? RLX_D(0.0) : (x * (x * x)) * d_asin_poly(x * x);
        return t.x + (t.y + (D_PI_2_REST - cubed));
    }
    const RLX_D2 r = d_asin_root(a);
    if (x > RLX_D(0.0)) return RLX_D(2.0) * r.x;
    const RLX_D2 t = d_quick_sum(D_PI, RLX_D(-2.0) * r.x);
    return t.x + (t.y + (D_PI_REST - RLX_D(2.0) * r.y));
}
RLX_FN double d_atan2(const double y, const double x) {
    if (d_is_nan(x) || d_is_nan(y)) return D_NAN;
    const rlx_u64 uy = d_abs_bits(y);
    const rlx_u64 ux = d_abs_bits(x);
    const bool left = d_negative(x);
    if (uy == rlx_u64(0u)) return d_with_sign(left ? D_PI : RLX_D(0.0), y);
    if (ux == rlx_u64(0u)) return d_with_sign(D_PI_2, y);
    if (ux == D_INF_BITS || uy == D_INF_BITS) {
        const double quarter = uy != ux ? RLX_D(0.0) : D_PI_4;
        const double near = uy > ux ? D_PI_2 : quarter;
        const double back = uy != ux ? D_PI : D_PI_34;
        const double far = uy > ux ? D_PI_2 : back;
        return d_with_sign(left ? far : near, y);
    }
    const int d = d_exponent(uy) - d_exponent(ux);
    if (d > 56) return d_with_sign(D_PI_2, y);
    if (d < -56) return left ? d_with_sign(D_PI, y) : d_div(y, x);
    const double b = d_mantissa(uy) * (d < 0 ? d_pow2(d) : RLX_D(1.0));
    const double a = d_mantissa(ux) * (d > 0 ? d_pow2(-d) : RLX_D(1.0));
    const bool steep = b > a;
    const double small = steep ? a : b;
    const double large = steep ? b : a;
    const bool middle = small > RLX_D(0.4142135623730951) * large;  // atan(t) = pi/4 + atan((t - 1) / (t + 1))
    const RLX_D2 none = RLX_MAKE_D2(small, RLX_D(0.0));
    const RLX_D2 num = middle ? d_sum(small, -large) : none;
    const RLX_D2 whole = RLX_MAKE_D2(large, RLX_D(0.0));
    const RLX_D2 den = middle ? d_sum(large, small) : whole;
    const RLX_D2 q = d_quotient(num, den);
    const double z = q.x * q.x;
    double p = RLX_D64(0xbf93a2f1u, 0xcc1ba3c5u);  // -1.917627152e-02
    p = RLX_MAD64(p, z, RLX_D64(0x3fa4161bu, 0x24be475bu));  // 3.923115562e-02
    p = RLX_MAD64(p, z, RLX_D64(0xbfaa0993u, 0xef875d4au));  // -5.085432338e-02
    p = RLX_MAD64(p, z, RLX_D64(0x3fadfe63u, 0x7a48099bu));  // 5.858145588e-02
    p = RLX_MAD64(p, z, RLX_D64(0xbfb10fa7u, 0x6aa9b02cu));  // -6.664511065e-02
    p = RLX_MAD64(p, z, RLX_D64(0x3fb3b126u, 0x2f3a2b5bu));  // 7.692183164e-02
    p = RLX_MAD64(p, z, RLX_D64(0xbfb745d0u, 0xb27da190u));  // -9.090904577e-02
    p = RLX_MAD64(p, z, RLX_D64(0x3fbc71c7u, 0x185386f1u));  // 1.111111102e-01
    p = RLX_MAD64(p, z, RLX_D64(0xbfc24924u, 0x92436180u));  // -1.428571428e-01
    p = RLX_MAD64(p, z, RLX_D64(0x3fc99999u, 0x9999934bu));  // 2.000000000e-01
    p = RLX_MAD64(p, z, RLX_D64(0xbfd55555u, 0x55555555u));  // -3.333333333e-01
    const RLX_D2 t = d_quick_sum(middle ? D_PI_4 : RLX_D(0.0), q.x);
    const RLX_D2 turned = RLX_MAKE_D2(t.x, t.y + D_PI_4_REST);
    const RLX_D2 plain = RLX_MAKE_D2(q.x, RLX_D(0.0));
    RLX_D2 r = middle ? turned : plain;
    r = d_quick_sum(r.x, r.y + (q.y + (z * q.x) * p));
    if (steep) {
        const RLX_D2 s = d_quick_sum(D_PI_2, -r.x);
        r = d_quick_sum(s.x, s.y + (D_PI_2_REST - r.y));
    }
    if (left) {
        const RLX_D2 s = d_quick_sum(D_PI, -r.x);
        r = d_quick_sum(s.x, s.y + (D_PI_REST - r.y));
    }
    return d_with_sign(r.x, y);
}
RLX_FN double d_atan(const double x) { return RLX_DABS(x) < d_pow2(-27) ? x : d_atan2(x, RLX_D(1.0)); }
#endif
