// CUDA: how each storage dtype lies in memory (raw_<dtype>), becomes a value (v_<dtype>) and back (r_<dtype>), and packs
// of neighbouring elements that are read and written 16 bytes at a time. shaders/include/types.glsl is the GLSL of it.
#include "half.h"
#ifndef RLX_STORAGE_H
#define RLX_STORAGE_H

typedef float raw_f32;
typedef double raw_f64;
typedef unsigned short raw_f16;
typedef unsigned short raw_bf16;
typedef unsigned short raw_u16;
typedef int raw_i32;
typedef rlx_i64 raw_i64;
typedef signed char raw_i8;
typedef unsigned char raw_u8;
typedef unsigned char raw_bool;

RLX_FN float v_f32(const raw_f32 x) { return x; }
RLX_FN double v_f64(const raw_f64 x) { return x; }
RLX_FN float v_f16(const raw_f16 x) { return p_f16_value(x); }
RLX_FN float v_bf16(const raw_bf16 x) { return p_bf16_value(x); }
RLX_FN int v_u16(const raw_u16 x) { return int(x); }
RLX_FN int v_i32(const raw_i32 x) { return x; }
RLX_FN rlx_i64 v_i64(const raw_i64 x) { return x; }
RLX_FN int v_i8(const raw_i8 x) { return int(x); }
RLX_FN int v_u8(const raw_u8 x) { return int(x); }
RLX_FN bool v_bool(const raw_bool x) { return x != 0; }

RLX_FN raw_f32 r_f32(const float x) { return x; }
RLX_FN raw_f64 r_f64(const double x) { return x; }
RLX_FN raw_f16 r_f16(const float x) { return raw_f16(RLX_HALF_BITS(x)); }
RLX_FN raw_bf16 r_bf16(const float x) { return raw_bf16(p_brain_bits(x)); }
RLX_FN raw_u16 r_u16(const int x) { return raw_u16(x); }
RLX_FN raw_i32 r_i32(const int x) { return x; }
RLX_FN raw_i64 r_i64(const rlx_i64 x) { return x; }
RLX_FN raw_i8 r_i8(const int x) { return raw_i8(x); }
RLX_FN raw_u8 r_u8(const int x) { return raw_u8(x); }
RLX_FN raw_bool r_bool(const bool x) { return raw_bool(x ? 1 : 0); }

template <typename T, int V>
struct alignas(sizeof(T) * V > 16 ? 16 : sizeof(T) * V) Pack {
    T at[V];
};
template <int V, typename T>
static __device__ __forceinline__ Pack<T, V> load_pack(const T* p, const uint q) {
    return reinterpret_cast<const Pack<T, V>*>(p)[q];
}
template <int V, typename T>
static __device__ __forceinline__ void store_pack(T* p, const uint q, const Pack<T, V>& x) {
    reinterpret_cast<Pack<T, V>*>(p)[q] = x;
}
// Whether packs of V elements of p are aligned.
template <int V, typename T>
static __device__ __forceinline__ bool packed(const T* p) {
    return (reinterpret_cast<size_t>(p) & (alignof(Pack<T, V>) - 1)) == 0;
}
#endif
