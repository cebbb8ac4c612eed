// What math64.h and prims64.h are written in beside prelude.h, for CUDA C++; shaders/include/prelude64.glsl is the same
// for GLSL. Devices that compute in f64 have 64-bit integers.
#include "prelude.h"
#ifndef RLX_DOUBLE
#define RLX_D(x) x
#define RLX_D64(high, low) RLX_DOUBLE(RLX_U64(high, low))
#define RLX_U64(high, low) ((rlx_u64(high) << 32) | rlx_u64(low))
#define RLX_DBITS(x) rlx_u64(__double_as_longlong(x))
#define RLX_DOUBLE(u) __longlong_as_double(rlx_i64(u))
#define RLX_DFLOOR(x) floor(x)
#define RLX_DCEIL(x) ceil(x)
#define RLX_DTRUNC(x) trunc(x)
#define RLX_DROUND(x) rint(x)
#define RLX_DABS(x) fabs(x)
#define RLX_DSQRT(x) sqrt(x)
#define RLX_MAD64(a, b, c) __fma_rn(a, b, c)
#define RLX_D2 double2
#define RLX_MAKE_D2(a, b) make_double2(a, b)
#define RLX_EXACT_FMA64(a, b, c) __fma_rn(a, b, c)
#endif
