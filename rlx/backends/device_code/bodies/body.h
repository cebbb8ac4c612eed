// The language of the kernel bodies in this folder, for CUDA C++; shaders/include/body.glsl defines the same for GLSL.
// A body is one function whose pointers have type PTR(T). LOAD and STORE read and write one element, with arithmetic in
// VAL(T); LOAD4 and STORE4 access four aligned neighbours; SKIP moves a pointer by a 64-bit number of elements. A
// kernel's constants are known when it is compiled.
#ifndef RLX_BODY_H
#define RLX_BODY_H
#include "half.h"

#define RLX_JOIN_(a, b) a##b
#define RLX_JOIN(a, b) RLX_JOIN_(a, b)
#define PTR(T) RLX_JOIN(ptr_, T)
#define VAL(T) RLX_JOIN(val_, T)
#define LOAD(T, p, i) RLX_JOIN(load_, T)(p, i)
#define STORE(T, p, i, x) RLX_JOIN(store_, T)(p, i, x)
#define LOAD4(T, p, i) RLX_JOIN(load4_, T)(p, i)
#define STORE4(T, p, i, x) RLX_JOIN(store4_, T)(p, i, x)
#define SKIP(T, p, count, stride) ((p) + (size_t)(count) * (size_t)(stride))
#define AT(i) [i]
#define SET4(v, c, x) ((float*)&(v))[c] = (x)
#define ELEMENT(quads, i) ((float*)(quads))[i]
// acc += s * v, where each product and each sum is rounded once.
#define FMA_ROW(acc, s, v)          \
    acc.x = FMA(s, v.x, acc.x);     \
    acc.y = FMA(s, v.y, acc.y);     \
    acc.z = FMA(s, v.z, acc.z);     \
    acc.w = FMA(s, v.w, acc.w);
#define LANES_OP(NAME, LANES, COMBINE) RLX_LANES_OP(NAME, LANES, COMBINE)

#define THREAD threadIdx.x
#define GROUP (blockIdx.x + blockIdx.y * gridDim.x)
#define BARRIER __syncthreads()
#define SHARED __shared__
#define UNROLL _Pragma("unroll")
#define FMA(a, b, c) __fmaf_rn(a, b, c)
#define UINT(x) ((uint)(x))
#define INFINITE RLX_FLOAT(0x7f800000u)
#define IS_NAN(x) ((RLX_BITS(x) & 0x7fffffffu) > 0x7f800000u)

typedef float4 vec4;
typedef uint2 uvec2;
typedef uint4 uvec4;
#define VEC4(a, b, c, d) make_float4(a, b, c, d)

typedef float* ptr_f32;
typedef unsigned short* ptr_f16;
typedef unsigned short* ptr_bf16;
typedef int* ptr_i32;
typedef uint* ptr_u32;
typedef long long* ptr_i64;
typedef unsigned char* ptr_bool;
typedef unsigned char* ptr_b1;
typedef unsigned short* ptr_b2;
typedef uint* ptr_b4;
typedef uint2* ptr_b8;
typedef uint4* ptr_b16;
typedef float val_f32;
typedef float val_f16;
typedef float val_bf16;
typedef int val_i32;
typedef long long val_i64;

RLX_FN float bf16_value(const uint h) { return RLX_FLOAT(h << 16); }
RLX_FN uint f16_bits(const float x) {
#ifdef RLX_HALF_BITS
    return RLX_HALF_BITS(x);
#else
    return p_f16_bits(x);
#endif
}
RLX_FN uint bf16_bits(const float x) { return p_brain_bits(x); }

RLX_FN float load_f32(const float* p, const uint i) { return p[i]; }
RLX_FN float load_f16(const unsigned short* p, const uint i) { return p_f16_value(p[i]); }
RLX_FN float load_bf16(const unsigned short* p, const uint i) { return bf16_value(p[i]); }
RLX_FN int load_i32(const int* p, const uint i) { return p[i]; }
RLX_FN uint load_u32(const uint* p, const uint i) { return p[i]; }
RLX_FN long long load_i64(const long long* p, const uint i) { return p[i]; }
RLX_FN bool load_bool(const unsigned char* p, const uint i) { return p[i] != 0; }
RLX_FN void store_f32(float* p, const uint i, const float x) { p[i] = x; }
RLX_FN void store_f16(unsigned short* p, const uint i, const float x) { p[i] = (unsigned short)f16_bits(x); }
RLX_FN void store_bf16(unsigned short* p, const uint i, const float x) { p[i] = (unsigned short)bf16_bits(x); }
RLX_FN void store_i32(int* p, const uint i, const int x) { p[i] = x; }
RLX_FN void store_i64(long long* p, const uint i, const long long x) { p[i] = x; }

RLX_FN vec4 load4_f32(const float* p, const uint i) { return ((const float4*)p)[i]; }
RLX_FN vec4 load4_f16(const unsigned short* p, const uint i) {
    const uint2 u = ((const uint2*)p)[i];
    return VEC4(p_f16_value(u.x & 0xffffu), p_f16_value(u.x >> 16), p_f16_value(u.y & 0xffffu),
                p_f16_value(u.y >> 16));
}
RLX_FN vec4 load4_bf16(const unsigned short* p, const uint i) {
    const uint2 u = ((const uint2*)p)[i];
    return VEC4(bf16_value(u.x & 0xffffu), bf16_value(u.x >> 16), bf16_value(u.y & 0xffffu), bf16_value(u.y >> 16));
}
RLX_FN void store4_f32(float* p, const uint i, const vec4 v) { ((float4*)p)[i] = v; }
RLX_FN void store4_f16(unsigned short* p, const uint i, const vec4 v) {
    ((uint2*)p)[i] = make_uint2(f16_bits(v.x) | f16_bits(v.y) << 16, f16_bits(v.z) | f16_bits(v.w) << 16);
}
RLX_FN void store4_bf16(unsigned short* p, const uint i, const vec4 v) {
    ((uint2*)p)[i] = make_uint2(bf16_bits(v.x) | bf16_bits(v.y) << 16, bf16_bits(v.z) | bf16_bits(v.w) << 16);
}

// NAME(v): combines v over the LANES neighbouring threads that share a row by a fixed tree; all get the same value.
// Every thread of the group calls it. LANES is a power of two up to 256.
__shared__ float rlx_warps[8];
#define RLX_LANES_OP(NAME, LANES, COMBINE)                                                    \
    RLX_FN float NAME(float v) {                                                              \
        UNROLL for (uint s = 1u; s < UINT(LANES) && s < 32u; s *= 2u) {                       \
            const float o = __shfl_xor_sync(0xffffffffu, v, s);                               \
            v = COMBINE(v, o);                                                                \
        }                                                                                     \
        if (UINT(LANES) > 32u) {                                                              \
            BARRIER;                                                                          \
            if (THREAD % 32u == 0u) rlx_warps[THREAD / 32u] = v;                              \
            BARRIER;                                                                          \
            const uint first = THREAD / UINT(LANES) * (UINT(LANES) / 32u);                    \
            v = rlx_warps[first];                                                             \
            UNROLL for (uint s = 1u; s < UINT(LANES) / 32u; s++) v = COMBINE(v, rlx_warps[first + s]); \
        }                                                                                     \
        return v;                                                                             \
    }
#endif
