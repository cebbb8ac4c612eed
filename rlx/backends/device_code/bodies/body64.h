// f64 for kernel bodies; included after body.h. shaders/include/body64.glsl defines the same for GLSL.
#include "math64.h"
typedef double* ptr_f64;
typedef double val_f64;
RLX_FN double load_f64(const double* p, const uint i) { return p[i]; }
RLX_FN void store_f64(double* p, const uint i, const double x) { p[i] = x; }
#define INFINITE64 D_INF
#define IS_NAN64(x) d_is_nan(x)
// a * b + c in the arithmetic type of T.
#define FMA_f32(a, b, c) FMA(a, b, c)
#define FMA_f16(a, b, c) FMA(a, b, c)
#define FMA_bf16(a, b, c) FMA(a, b, c)
#define FMA_f64(a, b, c) RLX_MAD64(a, b, c)
#define FMA_IN(T, a, b, c) RLX_JOIN(FMA_, T)(a, b, c)
