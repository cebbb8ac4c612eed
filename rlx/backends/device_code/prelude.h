// What prims.h and half.h are written in, for CUDA C++. shaders/include/prelude.glsl is the same for GLSL.
// Requires -fmad=false -ftz=false -prec-div=true -prec-sqrt=true; in GLSL every operation is decorated NoContraction.
#ifndef RLX_FN
#define RLX_FN static __device__ __forceinline__
#define RLX_TABLE static __device__ const
typedef unsigned int uint;
typedef long long rlx_i64;
#define RLX_I64(x) x##LL
#define RLX_BITS(x) __float_as_uint(x)
#define RLX_FLOAT(u) __uint_as_float(u)
#define RLX_UMULHI(a, b) __umulhi(a, b)
#define RLX_FLOOR(x) floorf(x)
#define RLX_CEIL(x) ceilf(x)
#define RLX_TRUNC(x) truncf(x)
#define RLX_ROUND(x) rintf(x)
#define RLX_ABS(x) fabsf(x)
#define RLX_SQRT(x) sqrtf(x)
#define RLX_MSB(u) (31 - __clz(int(u)))
#define RLX_OUT(T) T&
#define RLX_F2 float2
#define RLX_MAKE_F2(a, b) make_float2(a, b)
#define RLX_EXACT_FMA(a, b, c) __fmaf_rn(a, b, c)
#define RLX_MAD(a, b, c) __fmaf_rn(a, b, c)  // a b + c, fused or not: for sums that need not know
#define RLX_EXACT_DIV 1
typedef unsigned long long rlx_u64;
RLX_FN float rlx_half_value(const uint h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((unsigned short)h));
    return x;
}
RLX_FN uint rlx_half_bits(const float x) {
    unsigned short h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
#define RLX_HALF_VALUE(h) rlx_half_value(h)
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
RLX_FN uint rlx_brain_bits(const float x) {
    unsigned short h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
#define RLX_BRAIN_BITS(x) rlx_brain_bits(x)
#endif
// 2^x within 2^-21 of it; 1 / x, of x from 1 to 2^100, within 2^-22; a / b within 2^-22.
RLX_FN float rlx_quick_exp2(const float x) {
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
RLX_FN float rlx_flushed_exp2(const float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#define RLX_FLUSHED_EXP2(x) rlx_flushed_exp2(x)
RLX_FN float rlx_quick_recip(const float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
RLX_FN float rlx_quick_div(const float a, const float b) {
    float y;
    asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
#define RLX_QUICK_DIV(a, b) rlx_quick_div(a, b)
#define RLX_QUICK_EXP2(x) rlx_quick_exp2(x)
#define RLX_QUICK_RECIP(x) rlx_quick_recip(x)
#define RLX_HALF_BITS(x) rlx_half_bits(x)
#endif
