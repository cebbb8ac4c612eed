// What rlx/backends/device_code/prims.h and half.h are written in, for GLSL. Include this (or types.glsl) before them.
#ifndef RLX_FN
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#define RLX_FN
#define RLX_GLSL 1
#define RLX_TABLE const
#define rlx_i64 int64_t
#define RLX_I64(x) x##l
#define RLX_BITS(x) floatBitsToUint(x)
#define RLX_FLOAT(u) uintBitsToFloat(u)
uint rlx_umulhi(const uint a, const uint b) {
    uint high, low;
    umulExtended(a, b, high, low);
    return high;
}
#define RLX_UMULHI(a, b) rlx_umulhi(a, b)
#define RLX_FLOOR(x) floor(x)
#define RLX_CEIL(x) ceil(x)
#define RLX_TRUNC(x) trunc(x)
#define RLX_ROUND(x) roundEven(x)
#define RLX_ABS(x) abs(x)
#define RLX_MAD(a, b, c) fma(a, b, c)
#define RLX_MSB(u) findMSB(u)
#define RLX_OUT(T) out T
#define RLX_F2 vec2
#define RLX_MAKE_F2(a, b) vec2(a, b)
#define rlx_u64 uint64_t
#define RLX_QUICK_EXP2(x) exp2(x)  // within 3 + 2 |x| ULP
#define RLX_QUICK_RECIP(x) (1.0 / (x))
#define RLX_HALF_VALUE(h) unpackHalf2x16((h) & 0xffffu).x
#endif
