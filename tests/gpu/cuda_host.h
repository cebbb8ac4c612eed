// The words of CUDA C++ that the kernels use, for the host's C++ compiler. The threads are run by cuda_host.cpp. Neither
// this header nor those that it includes read a header of the system: those take longer to compile than a kernel.
#include "prelude_host.h"
#define RLX_EXACT_DIV 1
#define RLX_EXACT_FMA(a, b, c) __builtin_fmaf(a, b, c)
#undef RLX_MAD
#define RLX_MAD(a, b, c) __builtin_fmaf(a, b, c)
#define RLX_EXACT_FMA64(a, b, c) __builtin_fma(a, b, c)
#undef RLX_MAD64
#define RLX_MAD64(a, b, c) __builtin_fma(a, b, c)
static inline float sqrt(float x) { return __builtin_sqrtf(x); }
static inline double sqrt(double x) { return __builtin_sqrt(x); }
static inline float fmaxf(float x, float y) { return __builtin_fmaxf(x, y); }
static inline float fminf(float x, float y) { return __builtin_fminf(x, y); }
namespace std {
static inline float exp2(float x) { return __builtin_exp2f(x); }
}

struct uint2 { uint x, y; };
struct uint3 { uint x, y, z; };
struct uint4 { uint x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };
static inline float4 make_float4(float x, float y, float z, float w) { return float4{x, y, z, w}; }
static inline uint2 make_uint2(uint x, uint y) { return uint2{x, y}; }
struct alignas(8) float2 { float x, y; };
static inline float2 make_float2(float x, float y) { return float2{x, y}; }
static inline uint4 make_uint4(uint x, uint y, uint z, uint w) { return uint4{x, y, z, w}; }
static inline uint atomicAdd(uint* place, uint value) {
    const uint old = *place;
    *place = old + value;
    return old;
}
static inline uint atomicMax(uint* place, uint value) {
    const uint old = *place;
    if (value > old) *place = value;
    return old;
}
#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __fmaf_rn(a, b, c) __builtin_fmaf(a, b, c)
static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 32; i += 8) c += (signed char)(a >> i) * (signed char)(b >> i);
    return c;
}

enum { RLX_THREADS = 1024 };  // of a group, at most
extern uint3 threadIdx, blockIdx, gridDim;
void rlx_meet(int place);
void rlx_barrier(const char* file, int line);
float rlx_shuffle(float v, uint lane);
float rlx_shuffle_from(float v, uint lane);
uint rlx_ballot(bool yes);
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz((uint)x); }
#define __syncthreads() rlx_barrier(__FILE__, __LINE__)
#define __syncwarp() rlx_meet(-8)
#define __shfl_xor_sync(mask, v, lane) rlx_shuffle(v, lane)
#define __shfl_sync(mask, v, lane) rlx_shuffle_from(v, lane)
#define __ballot_sync(mask, yes) rlx_ballot(yes)
#include "mma_host.h"

// Runs every group of a grid, of `threads` threads each. Returns 0, or 1 where threads of one group waited at different
// barriers.
int rlx_grid(void (*body)(), bool backwards, int threads, uint x, uint y, uint z);
