// Sums and products whose partial results may leave the range of a float although the whole result does not; whether
// they do must not depend on the order of the terms. N is the dtype (VAL(N) its arithmetic type), PRODUCT says which of
// the two is computed. The Part of a sum holds two sums: that of the terms, and that of the terms times 2^-64 (f64:
// 2^-256), which is used where the first is not finite. The Part of a product holds a mantissa in [1, 2) as high + low,
// so that rounding errors do not grow with the number of factors, and a power of two. The Part of an integer, and that
// of a maximum or minimum, is one number. In memory the Parts of floats are three planes, `plane` elements apart, and
// those of integers one.
#include "math32.h"
#ifdef RLX_GLSL
#define AS(T, p) PTR(T)(uvec2(p))
#else
#define AS(T, p) ((PTR(T))(p))
#endif
#define NUM VAL(N)
struct Part {
    NUM high;
    NUM low;
    int power;
};
RLX_FN Part part_of(const NUM high, const NUM low, const int power) {
    Part a;
    a.high = high;
    a.low = low;
    a.power = power;
    return a;
}

#define FLOAT_PARTS(T, PAIR, ABS_BITS, ORDINARY, INF_BITS, WITH_SIGN, MANTISSA, EXPONENT, TIMES, QUICK, SCALE, DOWN, UP) \
    RLX_FN Part lifted(const NUM v) {                                                                             \
        if (!PRODUCT) return part_of(v, v * DOWN, 0);                                                             \
        if (!ORDINARY(ABS_BITS(v))) return part_of(v, NUM(0), 0);                                                 \
        return part_of(WITH_SIGN(MANTISSA(ABS_BITS(v)), v), NUM(0), EXPONENT(ABS_BITS(v)));                       \
    }                                                                                                             \
    RLX_FN Part joined(const Part a, const Part b) {                                                              \
        if (!PRODUCT) return part_of(a.high + b.high, a.low + b.low, 0);                                          \
        const PAIR p = TIMES(a.high, b.high);                                                                     \
        if (!ORDINARY(ABS_BITS(p.x))) return part_of(p.x, NUM(0), 0);                                             \
        PAIR s = QUICK(p.x, p.y + (a.high * b.low + a.low * b.high));                                             \
        const bool large = s.x >= NUM(2) || s.x <= NUM(-2);                                                       \
        const int power = a.power + b.power + (large ? 1 : 0);                                                    \
        const NUM by = large ? NUM(0.5) : NUM(1);                                                                 \
        return part_of(s.x * by, s.y * by, power > 0x20000000 ? 0x20000000 : (power < -0x20000000 ? -0x20000000 : power)); \
    }                                                                                                             \
    RLX_FN NUM whole(const Part a) {                                                                              \
        if (PRODUCT) return SCALE(a.high + a.low, a.power);                                                       \
        return ABS_BITS(a.high) < INF_BITS ? a.high : a.low * UP;                                                 \
    }                                                                                                             \
    RLX_FN Part load_part(PTR(N) p, const uint i, const uint plane) {                                             \
        return part_of(LOAD(N, p, i), LOAD(N, p, i + plane), int(LOAD(N, p, i + 2u * plane)));                    \
    }                                                                                                             \
    RLX_FN void store_part(PTR(N) p, const uint i, const uint plane, const Part a) {                              \
        STORE(N, p, i, a.high);                                                                                   \
        STORE(N, p, i + plane, a.low);                                                                            \
        STORE(N, p, i + 2u * plane, NUM(a.power));                                                                \
    }
#define INTEGER_PARTS                                                                                             \
    RLX_FN Part lifted(const NUM v) { return part_of(v, NUM(0), 0); }                                             \
    RLX_FN Part joined(const Part a, const Part b) {                                                              \
        return part_of(PRODUCT ? a.high * b.high : a.high + b.high, NUM(0), 0);                                   \
    }                                                                                                             \
    RLX_FN NUM whole(const Part a) { return a.high; }                                                             \
    RLX_FN Part load_part(PTR(N) p, const uint i, const uint plane) { return lifted(LOAD(N, p, i)); }             \
    RLX_FN void store_part(PTR(N) p, const uint i, const uint plane, const Part a) { STORE(N, p, i, a.high); }
#define M_ORDINARY(u) ((u) - 1u < 0x7f7fffffu)
#define PARTS_f32                                                                                                 \
    FLOAT_PARTS(f32, RLX_F2, m_abs_bits, M_ORDINARY, 0x7f800000u, m_with_sign, m_mantissa, m_exponent, m_product, \
                m_quick_sum, m_scale, RLX_FLOAT(0x1f800000u), RLX_FLOAT(0x5f800000u))
#define PARTS_f64                                                                                                 \
    FLOAT_PARTS(f64, RLX_D2, d_abs_bits, d_ordinary, D_INF_BITS, d_with_sign, d_mantissa, d_exponent, d_product,  \
                d_quick_sum, d_scale, d_pow2(-256), d_pow2(256))
#define PARTS_i32 INTEGER_PARTS
#define PARTS_i64 INTEGER_PARTS
#define PARTS_OF_(T) PARTS_##T
#define PARTS_OF(T) PARTS_OF_(T)
PARTS_OF(N)
