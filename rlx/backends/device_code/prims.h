// The scalar primitives of rlx/ir/expr.py for CUDA C++ and GLSL. A function is named p_<primitive>_<class>, a cast
// p_cast_<from>_<to>. The classes are f (f32), i (i32), l (i64), b (bool) and h (f32 values that are rounded to 16 bits
// afterwards). The functions follow NumPy: max and min return NaN if an operand is NaN, integers wrap, and an integer
// division by zero gives 0. u8 and i8 are computed in class i; p_wrap_u8 and p_wrap_i8 wrap each result.
#include "half.h"
#include "half32.h"
#include "hyper32.h"
#include "math32.h"
#include "random32.h"
#include "trig32.h"
#ifndef RLX_PRIMS_H
#define RLX_PRIMS_H

// ---- f

RLX_FN float p_neg_f(const float x) { return RLX_FLOAT(RLX_BITS(x) ^ 0x80000000u); }
RLX_FN float p_abs_f(const float x) { return RLX_FLOAT(RLX_BITS(x) & 0x7fffffffu); }
RLX_FN float p_sign_f(const float x) { return x > 0.0f ? 1.0f : (x < 0.0f ? -1.0f : (m_is_nan(x) ? x : 0.0f)); }
RLX_FN float p_sqrt_f(const float x) { return m_sqrt(x); }
RLX_FN float p_rsqrt_f(const float x) { return m_div(1.0f, m_sqrt(x)); }
RLX_FN float p_recip_f(const float x) { return m_div(1.0f, x); }
RLX_FN float p_exp_f(const float x) { return m_exp(x); }
RLX_FN float p_expm1_f(const float x) { return m_expm1(x); }
RLX_FN float p_log_f(const float x) { return m_log(x); }
RLX_FN float p_log1p_f(const float x) { return m_log1p(x); }
RLX_FN float p_exp2_f(const float x) { return m_exp2(x); }
RLX_FN float p_log2_f(const float x) { return m_log2_of(x); }
RLX_FN float p_log10_f(const float x) { return m_log10(x); }
RLX_FN float p_cbrt_f(const float x) { return m_cbrt(x); }
RLX_FN float p_sin_f(const float x) { return m_sin(x); }
RLX_FN float p_cos_f(const float x) { return m_cos(x); }
RLX_FN float p_tan_f(const float x) { return m_tan(x); }
RLX_FN float p_asin_f(const float x) { return m_asin(x); }
RLX_FN float p_acos_f(const float x) { return m_acos(x); }
RLX_FN float p_atan_f(const float x) { return m_atan(x); }
RLX_FN float p_sinh_f(const float x) { return m_sinh(x); }
RLX_FN float p_cosh_f(const float x) { return m_cosh(x); }
RLX_FN float p_tanh_f(const float x) { return m_tanh(x); }
RLX_FN float p_asinh_f(const float x) { return m_asinh(x); }
RLX_FN float p_acosh_f(const float x) { return m_acosh(x); }
RLX_FN float p_atanh_f(const float x) { return m_atanh(x); }
RLX_FN float p_erf_f(const float x) { return m_erf(x); }
RLX_FN float p_floor_f(const float x) { return RLX_FLOOR(x); }
RLX_FN float p_ceil_f(const float x) { return RLX_CEIL(x); }
RLX_FN float p_round_f(const float x) { return RLX_ROUND(x); }
RLX_FN float p_trunc_f(const float x) { return RLX_TRUNC(x); }
RLX_FN float p_not_f(const float x) { return x == 0.0f ? 1.0f : 0.0f; }
RLX_FN bool p_isnan_f(const float x) { return m_is_nan(x); }
RLX_FN bool p_isinf_f(const float x) { return m_abs_bits(x) == 0x7f800000u; }
RLX_FN float p_add_f(const float a, const float b) { return a + b; }
RLX_FN float p_sub_f(const float a, const float b) { return a - b; }
RLX_FN float p_mul_f(const float a, const float b) { return a * b; }
RLX_FN float p_div_f(const float a, const float b) { return m_div(a, b); }
RLX_FN float p_pow_f(const float a, const float b) { return m_pow(a, b); }
RLX_FN float p_max_f(const float a, const float b) { return a >= b || m_is_nan(a) ? a : b; }
RLX_FN float p_min_f(const float a, const float b) { return a <= b || m_is_nan(a) ? a : b; }
RLX_FN float p_fmod_f(const float a, const float b) { return m_fmod(a, b); }
RLX_FN float p_mod_f(const float a, const float b) {
    const float r = m_fmod(a, b);
    if (m_is_nan(r)) return r;
    if (r == 0.0f) return m_with_sign(r, b);
    return (r < 0.0f) != (b < 0.0f) ? r + b : r;
}
RLX_FN float p_floordiv_f(const float a, const float b) {
    if (b == 0.0f) return m_div(a, b);
    const float r = m_fmod(a, b);
    float q = m_div(a - r, b);
    if (r != 0.0f && (r < 0.0f) != (b < 0.0f)) q = q - 1.0f;
    if (q == 0.0f) return m_with_sign(0.0f, m_div(a, b));
    const float f = RLX_FLOOR(q);
    return q - f > 0.5f ? f + 1.0f : f;
}
RLX_FN float p_atan2_f(const float a, const float b) { return m_atan2(a, b); }
RLX_FN bool p_eq_f(const float a, const float b) { return a == b; }
RLX_FN bool p_ne_f(const float a, const float b) { return !(a == b); }
RLX_FN bool p_lt_f(const float a, const float b) { return a < b; }
RLX_FN bool p_le_f(const float a, const float b) { return a <= b; }
RLX_FN bool p_gt_f(const float a, const float b) { return a > b; }
RLX_FN bool p_ge_f(const float a, const float b) { return a >= b; }
RLX_FN float p_select_f(const bool c, const float a, const float b) { return c ? a : b; }

// ---- h: the fusion group reads and stores 16-bit values only, so that fewer bits are enough

RLX_FN float p_div_h(const float a, const float b) { return h_div(a, b); }
RLX_FN float p_recip_h(const float x) { return h_div(1.0f, x); }
RLX_FN float p_exp_h(const float x) { return h_exp(x); }
RLX_FN float p_tanh_h(const float x) { return h_tanh(x); }
RLX_FN float p_one_plus_erf_h(const float x) { return h_one_plus_erf(x); }
RLX_FN float p_gelu_h(const float x) { return h_gelu(x); }
RLX_FN float p_logistic_h(const float a, const float x) { return h_logistic(a, x); }

// ---- i and l: unsigned arithmetic wraps in both languages, signed overflow is undefined in C++

#define RLX_INT_PRIMS(I, U, s, BITS)                                                                                   \
    RLX_FN I p_neg_##s(const I x) { return I(U(0) - U(x)); }                                                           \
    RLX_FN I p_abs_##s(const I x) { return x < I(0) ? I(U(0) - U(x)) : x; }                                            \
    RLX_FN I p_sign_##s(const I x) { return x > I(0) ? I(1) : (x < I(0) ? I(-1) : I(0)); }                             \
    RLX_FN I p_floor_##s(const I x) { return x; }                                                                      \
    RLX_FN I p_ceil_##s(const I x) { return x; }                                                                       \
    RLX_FN I p_round_##s(const I x) { return x; }                                                                      \
    RLX_FN I p_trunc_##s(const I x) { return x; }                                                                      \
    RLX_FN I p_not_##s(const I x) { return x == I(0) ? I(1) : I(0); }                                                  \
    RLX_FN bool p_isnan_##s(const I x) { return false; }                                                               \
    RLX_FN bool p_isinf_##s(const I x) { return false; }                                                               \
    RLX_FN I p_add_##s(const I a, const I b) { return I(U(a) + U(b)); }                                                \
    RLX_FN I p_sub_##s(const I a, const I b) { return I(U(a) - U(b)); }                                                \
    RLX_FN I p_mul_##s(const I a, const I b) { return I(U(a) * U(b)); }                                                \
    RLX_FN I p_div_##s(const I a, const I b) {                                                                         \
        const I d = b == I(0) || b == I(-1) ? I(1) : b;                                                                \
        return b == I(0) ? I(0) : (b == I(-1) ? I(U(0) - U(a)) : a / d);                                               \
    }                                                                                                                  \
    RLX_FN I p_fmod_##s(const I a, const I b) {                                                                        \
        const I d = b == I(0) || b == I(-1) ? I(1) : b;                                                                \
        return a - (a / d) * d;                                                                                        \
    }                                                                                                                  \
    RLX_FN I p_mod_##s(const I a, const I b) {                                                                         \
        const I d = b == I(0) || b == I(-1) ? I(1) : b;                                                                \
        const I r = a - (a / d) * d;                                                                                   \
        return r != I(0) && (r < I(0)) != (d < I(0)) ? r + d : r;                                                      \
    }                                                                                                                  \
    RLX_FN I p_floordiv_##s(const I a, const I b) {                                                                    \
        const I d = b == I(0) || b == I(-1) ? I(1) : b;                                                                \
        const I r = a - (a / d) * d;                                                                                   \
        const I q = p_div_##s(a, b);                                                                                   \
        return r != I(0) && (r < I(0)) != (d < I(0)) ? q - I(1) : q;                                                   \
    }                                                                                                                  \
    RLX_FN I p_pow_##s(const I a, const I b) {                                                                         \
        const bool odd = (b & I(1)) == I(1);                                                                           \
        if (b < I(0)) return a == I(1) ? I(1) : (a == I(-1) ? (odd ? I(-1) : I(1)) : I(0));                            \
        U r = U(1);                                                                                                    \
        U f = U(a);                                                                                                    \
        U e = U(b);                                                                                                    \
        while (e != U(0)) {                                                                                            \
            if ((e & U(1)) == U(1)) r = r * f;                                                                         \
            f = f * f;                                                                                                 \
            e = e >> 1;                                                                                                \
        }                                                                                                              \
        return I(r);                                                                                                   \
    }                                                                                                                  \
    RLX_FN I p_max_##s(const I a, const I b) { return a > b ? a : b; }                                                 \
    RLX_FN I p_min_##s(const I a, const I b) { return a < b ? a : b; }                                                 \
    RLX_FN I p_and_##s(const I a, const I b) { return a & b; }                                                         \
    RLX_FN I p_or_##s(const I a, const I b) { return a | b; }                                                          \
    RLX_FN I p_xor_##s(const I a, const I b) { return a ^ b; }                                                         \
    RLX_FN I p_shl_##s(const I a, const I b) { return U(b) < U(BITS) ? I(U(a) << uint(b)) : I(0); }                    \
    RLX_FN I p_shr_##s(const I a, const I b) { return a >> (U(b) < U(BITS) ? uint(b) : uint(BITS - 1)); }              \
    RLX_FN bool p_eq_##s(const I a, const I b) { return a == b; }                                                      \
    RLX_FN bool p_ne_##s(const I a, const I b) { return a != b; }                                                      \
    RLX_FN bool p_lt_##s(const I a, const I b) { return a < b; }                                                       \
    RLX_FN bool p_le_##s(const I a, const I b) { return a <= b; }                                                      \
    RLX_FN bool p_gt_##s(const I a, const I b) { return a > b; }                                                       \
    RLX_FN bool p_ge_##s(const I a, const I b) { return a >= b; }                                                      \
    RLX_FN I p_select_##s(const bool c, const I a, const I b) { return c ? a : b; }

RLX_INT_PRIMS(int, uint, i, 32)
RLX_INT_PRIMS(rlx_i64, rlx_u64, l, 64)

RLX_FN int p_wrap_u8(const int x) { return x & 255; }
RLX_FN int p_wrap_i8(const int x) { return ((x & 255) ^ 128) - 128; }

// ---- b: as in NumPy, addition and maximum are "or", multiplication and minimum are "and"

RLX_FN bool p_not_b(const bool x) { return !x; }
RLX_FN bool p_abs_b(const bool x) { return x; }
RLX_FN bool p_isnan_b(const bool x) { return false; }
RLX_FN bool p_isinf_b(const bool x) { return false; }
RLX_FN bool p_add_b(const bool a, const bool b) { return a || b; }
RLX_FN bool p_mul_b(const bool a, const bool b) { return a && b; }
RLX_FN bool p_max_b(const bool a, const bool b) { return a || b; }
RLX_FN bool p_min_b(const bool a, const bool b) { return a && b; }
RLX_FN bool p_and_b(const bool a, const bool b) { return a && b; }
RLX_FN bool p_or_b(const bool a, const bool b) { return a || b; }
RLX_FN bool p_xor_b(const bool a, const bool b) { return a != b; }
RLX_FN bool p_eq_b(const bool a, const bool b) { return a == b; }
RLX_FN bool p_ne_b(const bool a, const bool b) { return a != b; }
RLX_FN bool p_lt_b(const bool a, const bool b) { return !a && b; }
RLX_FN bool p_le_b(const bool a, const bool b) { return !a || b; }
RLX_FN bool p_gt_b(const bool a, const bool b) { return a && !b; }
RLX_FN bool p_ge_b(const bool a, const bool b) { return a || !b; }
RLX_FN bool p_select_b(const bool c, const bool a, const bool b) { return c ? a : b; }

// ---- casts: a float truncates and saturates to an integer, and NaN becomes 0; an integer keeps its low bits

RLX_FN int p_cast_f_i(const float x) {
    const bool high = x >= 2147483648.0f;
    const bool low = x <= -2147483648.0f;
    const float inside = high || low || m_is_nan(x) ? 0.0f : x;
    return high ? 2147483647 : (low ? -2147483647 - 1 : int(inside));
}
RLX_FN rlx_i64 p_cast_f_l(const float x) {
    const bool high = x >= 9223372036854775808.0f;
    const bool low = x <= -9223372036854775808.0f;
    const float inside = high || low || m_is_nan(x) ? 0.0f : x;
    const rlx_i64 most = rlx_i64((rlx_u64(0x7fffffffu) << 32u) | rlx_u64(0xffffffffu));
    return high ? most : (low ? -most - rlx_i64(1) : rlx_i64(inside));
}
RLX_FN int p_cast_f_u8(const float x) { return x >= 255.0f ? 255 : (x > 0.0f ? int(x) : 0); }
RLX_FN int p_cast_f_i8(const float x) {
    const float inside = m_is_nan(x) ? 0.0f : x;
    return inside >= 127.0f ? 127 : (inside <= -128.0f ? -128 : int(inside));
}
RLX_FN bool p_cast_f_b(const float x) { return !(x == 0.0f); }
RLX_FN float p_cast_i_f(const int x) { return float(x); }
RLX_FN rlx_i64 p_cast_i_l(const int x) { return rlx_i64(x); }
RLX_FN bool p_cast_i_b(const int x) { return x != 0; }
RLX_FN float p_cast_l_f(const rlx_i64 x) { return float(x); }
RLX_FN int p_cast_l_i(const rlx_i64 x) { return int(x); }
RLX_FN bool p_cast_l_b(const rlx_i64 x) { return x != rlx_i64(0); }
RLX_FN float p_cast_b_f(const bool x) { return x ? 1.0f : 0.0f; }
RLX_FN int p_cast_b_i(const bool x) { return x ? 1 : 0; }
RLX_FN rlx_i64 p_cast_b_l(const bool x) { return rlx_i64(x ? 1 : 0); }
#endif
