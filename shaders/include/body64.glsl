// f64 for kernel bodies, after body.glsl; bodies/body64.h is the same for CUDA C++. A variant of another dtype uses none
// of it, and asks nothing of the device.
#include "types64.glsl"
#include "math64.h"
const uint log2_size_f64 = 3u;
#define INFINITE64 D_INF
#define IS_NAN64(x) d_is_nan(x)
// a b + c in the arithmetic type of T.
#define FMA_f32(a, b, c) FMA(a, b, c)
#define FMA_f16(a, b, c) FMA(a, b, c)
#define FMA_bf16(a, b, c) FMA(a, b, c)
#define FMA_f64(a, b, c) RLX_MAD64(a, b, c)
#define FMA_IN(T, a, b, c) RLX_JOIN(FMA_, T)(a, b, c)
