// prims.h and prims64.h as plain C++, for the tests: a third language beside CUDA and GLSL. Compile with
// -ffp-contract=off.
typedef __SIZE_TYPE__ size_t;
#define RLX_FN static inline
#define RLX_TABLE static const
typedef unsigned int uint;
typedef long long rlx_i64;
typedef unsigned long long rlx_u64;
struct Pair {
    float x, y;
};
static inline uint host_bits(float x) {
    uint u;
    __builtin_memcpy(&u, &x, 4);
    return u;
}
static inline float host_float(uint u) {
    float x;
    __builtin_memcpy(&x, &u, 4);
    return x;
}
static inline float host_half(uint h) {
    const uint e = (h >> 10) & 31u, m = h & 1023u, s = (h & 0x8000u) << 16;
    const float small = float(m) * 5.9604644775390625e-08f;
    return host_float(s | (e == 0u ? host_bits(small) : e == 31u ? 0x7f800000u | (m << 13) : ((e + 112u) << 23) | (m << 13)));
}
#define RLX_BITS(x) host_bits(x)
#define RLX_FLOAT(u) host_float(u)
#define RLX_UMULHI(a, b) uint((rlx_u64(a) * rlx_u64(b)) >> 32)
#define RLX_FLOOR(x) __builtin_floorf(x)
#define RLX_CEIL(x) __builtin_ceilf(x)
#define RLX_TRUNC(x) __builtin_truncf(x)
#define RLX_ROUND(x) __builtin_nearbyintf(x)
#define RLX_ABS(x) __builtin_fabsf(x)
#define RLX_SQRT(x) __builtin_sqrtf(x)
#define RLX_MAD(a, b, c) ((a) * (b) + (c))
#define RLX_MSB(u) (31 - __builtin_clz(u))
#define RLX_OUT(T) T &
#define RLX_F2 Pair
#define RLX_MAKE_F2(a, b) Pair{a, b}
#define RLX_HALF_VALUE(h) host_half(h)
#define RLX_QUICK_EXP2(x) __builtin_exp2f(x)
#define RLX_QUICK_RECIP(x) (1.0f / (x))
struct Pair64 {
    double x, y;
};
static inline rlx_u64 host_bits64(double x) {
    rlx_u64 u;
    __builtin_memcpy(&u, &x, 8);
    return u;
}
static inline double host_double(rlx_u64 u) {
    double x;
    __builtin_memcpy(&x, &u, 8);
    return x;
}
#define RLX_D(x) x
#define RLX_D64(high, low) RLX_DOUBLE(RLX_U64(high, low))
#define RLX_U64(high, low) ((rlx_u64(high) << 32) | rlx_u64(low))
#define RLX_DBITS(x) host_bits64(x)
#define RLX_DOUBLE(u) host_double(u)
#define RLX_DFLOOR(x) __builtin_floor(x)
#define RLX_DCEIL(x) __builtin_ceil(x)
#define RLX_DTRUNC(x) __builtin_trunc(x)
#define RLX_DROUND(x) __builtin_nearbyint(x)
#define RLX_DABS(x) __builtin_fabs(x)
#define RLX_DSQRT(x) __builtin_sqrt(x)
#define RLX_MAD64(a, b, c) ((a) * (b) + (c))
#define RLX_D2 Pair64
#define RLX_MAKE_D2(a, b) Pair64{a, b}
