// What rlx/backends/device_code/math64.h and prims64.h are written in beside prelude.glsl, for GLSL.
#ifndef RLX_DOUBLE
#extension GL_EXT_shader_explicit_arithmetic_types_float64 : require
#define RLX_D(x) double(x)  // of literals that f32 has, or nearly has where that is enough
#define RLX_D64(high, low) RLX_DOUBLE(RLX_U64(high, low))
#define RLX_U64(high, low) ((rlx_u64(high) << 32) | rlx_u64(low))
#define RLX_DBITS(x) doubleBitsToUint64(x)
#define RLX_DOUBLE(u) uint64BitsToDouble(u)
#define RLX_DFLOOR(x) floor(x)
#define RLX_DCEIL(x) ceil(x)
#define RLX_DTRUNC(x) p_trunc_by_floor(x)
#define RLX_DROUND(x) p_round_by_floor(x)
#define RLX_DABS(x) abs(x)
#define RLX_DSQRT(x) sqrt(x)
#define RLX_MAD64(a, b, c) fma(a, b, c)
#define RLX_D2 dvec2
#define RLX_MAKE_D2(a, b) dvec2(a, b)
// Of trunc and roundEven in f64, llvmpipe (Mesa 22.3, on processors without AVX-512) gives other integers, and fractions
// above 2^24: 1 for roundEven(1.5). Its floor is right.
double p_sign_of(const double value, const double x) {
    return RLX_DOUBLE(RLX_DBITS(value) | (RLX_DBITS(x) & RLX_U64(0x80000000u, 0u)));
}
double p_trunc_by_floor(const double x) { return p_sign_of(floor(abs(x)), x); }
double p_round_by_floor(const double x) {
    const double low = floor(abs(x));
    const double rest = abs(x) - low;
    const bool odd = floor(low * double(0.5)) * double(2.0) != low;
    return p_sign_of(rest > double(0.5) || (rest == double(0.5) && odd) ? low + double(1.0) : low, x);
}
#endif
