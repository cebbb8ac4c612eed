// What the kernel bodies of rlx/backends/gpu/bodies are written in, for GLSL; bodies/body.h is the same for CUDA C++.
// Included after #version and the constants' declarations.
#ifndef RLX_BODY_H
#define RLX_BODY_H
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"

#define RLX_JOIN_(a, b) a##b
#define RLX_JOIN(a, b) RLX_JOIN_(a, b)
#define LOAD4(T, p, i) RLX_JOIN(load4_, T)(p, i)
#define STORE4(T, p, i, x) RLX_JOIN(store4_, T)(p, i, x)
#define SKIP(T, p, count, stride) PTR(T)(rlx_skip(uvec2(p), count, stride, RLX_JOIN(log2_size_, T)))
#define AT(i) .at[i]
#define SET4(v, c, x) v[c] = (x)
#define ELEMENT(quads, i) quads[(i) / 4u][(i) % 4u]
// acc += s * v, each product and sum rounded once.
#define FMA_ROW(acc, s, v)          \
    acc.x = FMA(s, v.x, acc.x);     \
    acc.y = FMA(s, v.y, acc.y);     \
    acc.z = FMA(s, v.z, acc.z);     \
    acc.w = FMA(s, v.w, acc.w);
#define LANES_OP(NAME, LANES, COMBINE) RLX_LANES_OP(NAME, LANES, COMBINE)

#define THREAD gl_LocalInvocationID.x
#define GROUP (gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x)
#define BARRIER barrier()
#define SHARED shared
#define UNROLL [[unroll]]
#define FMA(a, b, c) fma(a, b, c)
#define UINT(x) uint(x)
#define INFINITE uintBitsToFloat(0x7f800000u)
#define IS_NAN(x) ((floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u)
#define VEC4(a, b, c, d) vec4(a, b, c, d)

const uint log2_size_f32 = 2u, log2_size_f16 = 1u, log2_size_bf16 = 1u, log2_size_i32 = 2u, log2_size_u32 = 2u,
           log2_size_i64 = 3u, log2_size_bool = 0u, log2_size_b1 = 0u, log2_size_b2 = 1u, log2_size_b4 = 2u, log2_size_b8 = 3u,
           log2_size_b16 = 4u;
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer ptr_uvec2 { uvec2 at[]; };
#define ptr_b1 ptr_u8
#define ptr_b2 ptr_f16
#define ptr_b4 ptr_u32
#define ptr_b8 ptr_uvec2
#define ptr_b16 ptr_uvec4

// The address `count` strides of `stride` elements further on, without 64-bit integers.
uvec2 rlx_skip(const uvec2 a, const uint count, const uint stride, const uint log2_size) {
    uint high, low, carry;
    umulExtended(count, stride, high, low);
    high = high << log2_size | (log2_size == 0u ? 0u : low >> (32u - log2_size));
    low = uaddCarry(a.x, low << log2_size, carry);
    return uvec2(low, a.y + high + carry);
}

vec4 load4_f32(const ptr_f32 p, const uint i) { return ptr_vec4(uvec2(p)).at[i]; }
vec4 load4_f16(const ptr_f16 p, const uint i) {
    const uvec2 u = ptr_uvec2(uvec2(p)).at[i];
    return vec4(unpackHalf2x16(u.x), unpackHalf2x16(u.y));
}
vec4 load4_bf16(const ptr_bf16 p, const uint i) {
    const uvec2 u = ptr_uvec2(uvec2(p)).at[i];
    return uintBitsToFloat(uvec4(u.x << 16, u.x & 0xffff0000u, u.y << 16, u.y & 0xffff0000u));
}
void store4_f32(const ptr_f32 p, const uint i, const vec4 v) { ptr_vec4(uvec2(p)).at[i] = v; }
void store4_f16(const ptr_f16 p, const uint i, const vec4 v) {
    ptr_uvec2(uvec2(p)).at[i] = uvec2(p_f16_bits(v.x) | p_f16_bits(v.y) << 16, p_f16_bits(v.z) | p_f16_bits(v.w) << 16);
}
void store4_bf16(const ptr_bf16 p, const uint i, const vec4 v) {
    ptr_uvec2(uvec2(p)).at[i] = uvec2(p_brain_pair(v.x, v.y), p_brain_pair(v.z, v.w));
}

// NAME(v): v combined over the LANES neighbouring threads that share a row, the same value in each; a fixed tree.
// Every thread of the group calls it. LANES is a power of two up to 256; local_size_x is 256.
#ifdef RLX_SUBGROUPS
// Through registers where the pipeline is made with full subgroups of SUBGROUP neighbouring threads: the same tree as
// on CUDA where SUBGROUP is 32.
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
layout(constant_id = 31) const uint SUBGROUP = 32u;
// Whether fma() is known to round once.
layout(constant_id = 30) const bool FUSED = false;
#define RLX_FUSED FUSED
shared float rlx_parts[64];
#define RLX_LANES_OP(NAME, LANES, COMBINE)                                                            \
    float NAME(float v) {                                                                             \
        UNROLL for (uint s = 1u; s < LANES && s < SUBGROUP; s *= 2u) v = COMBINE(v, subgroupShuffleXor(v, s)); \
        if (LANES > SUBGROUP) {                                                                       \
            barrier();                                                                                \
            if (THREAD % SUBGROUP == 0u) rlx_parts[THREAD / SUBGROUP] = v;                            \
            barrier();                                                                                \
            const uint first = THREAD / LANES * (LANES / SUBGROUP);                                   \
            v = rlx_parts[first];                                                                     \
            UNROLL for (uint s = 1u; s < LANES / SUBGROUP; s++) v = COMBINE(v, rlx_parts[first + s]); \
        }                                                                                             \
        return v;                                                                                     \
    }
#else
shared float rlx_lane[256];
shared float rlx_part[256];
#define RLX_LANES_OP(NAME, LANES, COMBINE)                                                            \
    float NAME(float v) {                                                                             \
        const uint parts = LANES < 16u ? LANES : 16u;                                                 \
        const uint first = THREAD / LANES * LANES, lane = THREAD % LANES;                             \
        barrier();                                                                                    \
        rlx_lane[THREAD] = v;                                                                         \
        barrier();                                                                                    \
        if (lane < parts) {                                                                           \
            for (uint s = lane + parts; s < LANES; s += parts) v = COMBINE(v, rlx_lane[first + s]);   \
            rlx_part[first + lane] = v;                                                               \
        }                                                                                             \
        barrier();                                                                                    \
        v = rlx_part[first];                                                                          \
        for (uint s = 1u; s < parts; s++) v = COMBINE(v, rlx_part[first + s]);                        \
        return v;                                                                                     \
    }
#endif
#endif
