// The primitives of prims.h for class d (f64), and its casts. They follow NumPy as those do.
#include "prims.h"
#include "math64.h"
#include "hyper64.h"
#include "trig64.h"
#ifndef RLX_PRIMS64_H
#define RLX_PRIMS64_H

RLX_FN double p_neg_d(const double x) { return RLX_DOUBLE(RLX_DBITS(x) ^ D_SIGN_BIT); }
RLX_FN double p_abs_d(const double x) { return RLX_DOUBLE(d_abs_bits(x)); }
RLX_FN double p_sign_d(const double x) {
    return x > RLX_D(0.0) ? RLX_D(1.0) : (x < RLX_D(0.0) ? RLX_D(-1.0) : (d_is_nan(x) ? x : RLX_D(0.0)));
}
RLX_FN double p_sqrt_d(const double x) { return d_sqrt(x); }
RLX_FN double p_rsqrt_d(const double x) { return d_div(RLX_D(1.0), d_sqrt(x)); }
RLX_FN double p_recip_d(const double x) { return d_div(RLX_D(1.0), x); }
RLX_FN double p_exp_d(const double x) { return d_exp(x); }
RLX_FN double p_expm1_d(const double x) { return d_expm1(x); }
RLX_FN double p_log_d(const double x) { return d_log(x); }
RLX_FN double p_log1p_d(const double x) { return d_log1p(x); }
RLX_FN double p_exp2_d(const double x) { return d_exp2(x); }
RLX_FN double p_log2_d(const double x) { return d_log2_of(x); }
RLX_FN double p_log10_d(const double x) { return d_log10(x); }
RLX_FN double p_cbrt_d(const double x) { return d_cbrt(x); }
RLX_FN double p_sin_d(const double x) { return d_sin(x); }
RLX_FN double p_cos_d(const double x) { return d_cos(x); }
RLX_FN double p_tan_d(const double x) { return d_tan(x); }
RLX_FN double p_asin_d(const double x) { return d_asin(x); }
RLX_FN double p_acos_d(const double x) { return d_acos(x); }
RLX_FN double p_atan_d(const double x) { return d_atan(x); }
RLX_FN double p_sinh_d(const double x) { return d_sinh(x); }
RLX_FN double p_cosh_d(const double x) { return d_cosh(x); }
RLX_FN double p_tanh_d(const double x) { return d_tanh(x); }
RLX_FN double p_asinh_d(const double x) { return d_asinh(x); }
RLX_FN double p_acosh_d(const double x) { return d_acosh(x); }
RLX_FN double p_atanh_d(const double x) { return d_atanh(x); }
RLX_FN double p_erf_d(const double x) { return d_erf(x); }
RLX_FN double p_floor_d(const double x) { return RLX_DFLOOR(x); }
RLX_FN double p_ceil_d(const double x) { return RLX_DCEIL(x); }
RLX_FN double p_round_d(const double x) { return RLX_DROUND(x); }
RLX_FN double p_trunc_d(const double x) { return RLX_DTRUNC(x); }
RLX_FN double p_not_d(const double x) { return x == RLX_D(0.0) ? RLX_D(1.0) : RLX_D(0.0); }
RLX_FN bool p_isnan_d(const double x) { return d_is_nan(x); }
RLX_FN bool p_isinf_d(const double x) { return d_abs_bits(x) == D_INF_BITS; }
RLX_FN double p_add_d(const double a, const double b) { return a + b; }
RLX_FN double p_sub_d(const double a, const double b) { return a - b; }
RLX_FN double p_mul_d(const double a, const double b) { return a * b; }
RLX_FN double p_div_d(const double a, const double b) { return d_div(a, b); }
RLX_FN double p_pow_d(const double a, const double b) { return d_pow(a, b); }
RLX_FN double p_max_d(const double a, const double b) { return a >= b || d_is_nan(a) ? a : b; }
RLX_FN double p_min_d(const double a, const double b) { return a <= b || d_is_nan(a) ? a : b; }
RLX_FN double p_fmod_d(const double a, const double b) { return d_fmod(a, b); }
RLX_FN double p_mod_d(const double a, const double b) {
    const double r = d_fmod(a, b);
    if (d_is_nan(r)) return r;
    if (r == RLX_D(0.0)) return d_with_sign(r, b);
    return (r < RLX_D(0.0)) != (b < RLX_D(0.0)) ? r + b : r;
}
RLX_FN double p_floordiv_d(const double a, const double b) {
    if (b == RLX_D(0.0)) return d_div(a, b);
    const double r = d_fmod(a, b);
    double q = d_div(a - r, b);
    if (r != RLX_D(0.0) && (r < RLX_D(0.0)) != (b < RLX_D(0.0))) q = q - RLX_D(1.0);
    if (q == RLX_D(0.0)) return d_with_sign(RLX_D(0.0), d_div(a, b));
    const double f = RLX_DFLOOR(q);
    return q - f > RLX_D(0.5) ? f + RLX_D(1.0) : f;
}
RLX_FN double p_atan2_d(const double a, const double b) { return d_atan2(a, b); }
RLX_FN bool p_eq_d(const double a, const double b) { return a == b; }
RLX_FN bool p_ne_d(const double a, const double b) { return !(a == b); }
RLX_FN bool p_lt_d(const double a, const double b) { return a < b; }
RLX_FN bool p_le_d(const double a, const double b) { return a <= b; }
RLX_FN bool p_gt_d(const double a, const double b) { return a > b; }
RLX_FN bool p_ge_d(const double a, const double b) { return a >= b; }
RLX_FN double p_select_d(const bool c, const double a, const double b) { return c ? a : b; }

// ---- casts, as prims.h has them

RLX_FN double p_cast_f_d(const float x) { return double(x); }
RLX_FN double p_cast_i_d(const int x) { return double(x); }
RLX_FN double p_cast_l_d(const rlx_i64 x) { return double(x); }
RLX_FN double p_cast_b_d(const bool x) { return x ? RLX_D(1.0) : RLX_D(0.0); }
RLX_FN float p_cast_d_f(const double x) { return float(x); }
// To the f32 on either side whose last bit is 1, unless x is an f32: a later rounding to fewer bits sees on which side
// of a tie x lies.
RLX_FN float p_odd_d_f(const double x) {
    const float f = float(x);
    const double wide = double(f);
    if (wide == x || d_is_nan(x) || (RLX_BITS(f) & 0x7fffffffu) == 0x7f800000u) return f;
    const uint down = RLX_DABS(wide) > RLX_DABS(x) ? 1u : 0u;
    return RLX_FLOAT((RLX_BITS(f) - down) | 1u);
}
RLX_FN int p_cast_d_i(const double x) {
    const bool high = x >= RLX_D(2147483648.0);
    const bool low = x <= RLX_D(-2147483648.0);
    const double inside = high || low || d_is_nan(x) ? RLX_D(0.0) : x;
    return high ? 2147483647 : (low ? -2147483647 - 1 : int(inside));
}
RLX_FN rlx_i64 p_cast_d_l(const double x) {
    const bool high = x >= RLX_D(9223372036854775808.0);
    const bool low = x <= RLX_D(-9223372036854775808.0);
    const double inside = high || low || d_is_nan(x) ? RLX_D(0.0) : x;
    const rlx_i64 most = rlx_i64(~D_SIGN_BIT);
    return high ? most : (low ? -most - rlx_i64(1) : rlx_i64(inside));
}
RLX_FN int p_cast_d_u8(const double x) { return x >= RLX_D(255.0) ? 255 : (x > RLX_D(0.0) ? int(x) : 0); }
RLX_FN int p_cast_d_i8(const double x) {
    const double inside = d_is_nan(x) ? RLX_D(0.0) : x;
    return inside >= RLX_D(127.0) ? 127 : (inside <= RLX_D(-128.0) ? -128 : int(inside));
}
RLX_FN bool p_cast_d_b(const double x) { return !(x == RLX_D(0.0)); }
#endif
