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
#define RLX_DTRUNC(x) trunc(x)
#define RLX_DROUND(x) roundEven(x)
#define RLX_DABS(x) abs(x)
#define RLX_DSQRT(x) sqrt(x)
#define RLX_MAD64(a, b, c) fma(a, b, c)
#define RLX_D2 dvec2
#define RLX_MAKE_D2(a, b) dvec2(a, b)
#endif
