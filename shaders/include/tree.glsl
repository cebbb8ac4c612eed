// What the templates of tree kernels are made of: see tree.comp.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_scalar_block_layout : require
#include "types.glsl"
#include "prims.h"
#include "odd.h"
#include "rounding.glsl"
#include "tree8.glsl"

layout(local_size_x = 256) in;

uint first_index() {
    return (gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x) * 256u + gl_LocalInvocationIndex;
}
uint index_step() { return gl_NumWorkGroups.x * gl_NumWorkGroups.y * 256u; }
uint word(const ptr_u32 meta, const uint i) { return meta.at[i]; }

// Four neighbours at once, read and written in words, where the pointer is aligned to them.
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer ptr_ivec4 { ivec4 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer ptr_i64vec2 { i64vec2 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer ptr_uvec2 { uvec2 at[]; };

// Of batched kernels: the set of operands that a workgroup takes, and address i of the table.
uint set_index() { return gl_WorkGroupID.z; }
uvec2 address(const ptr_u32 table, const uint i) { return ptr_uvec2(uvec2(table)).at[i]; }

uvec4 bytes_of(const uint w) { return uvec4(w, w >> 8, w >> 16, w >> 24) & 0xffu; }
uint word_of(const uvec4 b) {
    return (b.x & 0xffu) | ((b.y & 0xffu) << 8) | ((b.z & 0xffu) << 16) | ((b.w & 0xffu) << 24);
}
uvec4 halves_of(const uvec2 w) { return uvec4(w.x & 0xffffu, w.x >> 16, w.y & 0xffffu, w.y >> 16); }
uvec2 words_of(const uvec4 h) { return uvec2((h.x & 0xffffu) | (h.y << 16), (h.z & 0xffffu) | (h.w << 16)); }

vec4 load4_f32(const ptr_f32 p, const uint q) { return ptr_vec4(uvec2(p)).at[q]; }
vec4 load4_f16(const ptr_f16 p, const uint q) {
    const uvec2 w = ptr_uvec2(uvec2(p)).at[q];
    return vec4(unpackHalf2x16(w.x), unpackHalf2x16(w.y));
}
vec4 load4_bf16(const ptr_bf16 p, const uint q) {
    const uvec2 w = ptr_uvec2(uvec2(p)).at[q];
    return uintBitsToFloat(uvec4(w.x << 16, w.x & 0xffff0000u, w.y << 16, w.y & 0xffff0000u));
}
ivec4 load4_u16(const ptr_u16 p, const uint q) { return ivec4(halves_of(ptr_uvec2(uvec2(p)).at[q])); }
ivec4 load4_i32(const ptr_i32 p, const uint q) { return ptr_ivec4(uvec2(p)).at[q]; }
i64vec4 load4_i64(const ptr_i64 p, const uint q) {
    return i64vec4(ptr_i64vec2(uvec2(p)).at[2u * q], ptr_i64vec2(uvec2(p)).at[2u * q + 1u]);
}
ivec4 load4_i8(const ptr_i8 p, const uint q) { return ivec4(bytes_of(ptr_u32(uvec2(p)).at[q]) ^ 0x80u) - 0x80; }
ivec4 load4_u8(const ptr_u8 p, const uint q) { return ivec4(bytes_of(ptr_u32(uvec2(p)).at[q])); }
bvec4 load4_bool(const ptr_bool p, const uint q) { return notEqual(bytes_of(ptr_u32(uvec2(p)).at[q]), uvec4(0u)); }

void store4_f32(const ptr_f32 p, const uint q, const vec4 x) { ptr_vec4(uvec2(p)).at[q] = x; }
void store4_f16(const ptr_f16 p, const uint q, const vec4 x) {
    ptr_uvec2(uvec2(p)).at[q] = words_of(uvec4(p_f16_bits(x.x), p_f16_bits(x.y), p_f16_bits(x.z), p_f16_bits(x.w)));
}
void store4_bf16(const ptr_bf16 p, const uint q, const vec4 x) {
    ptr_uvec2(uvec2(p)).at[q] = uvec2(p_brain_pair(x.x, x.y), p_brain_pair(x.z, x.w));
}
void store4_u16(const ptr_u16 p, const uint q, const ivec4 x) { ptr_uvec2(uvec2(p)).at[q] = words_of(uvec4(x)); }
void store4_i32(const ptr_i32 p, const uint q, const ivec4 x) { ptr_ivec4(uvec2(p)).at[q] = x; }
void store4_i64(const ptr_i64 p, const uint q, const i64vec4 x) {
    ptr_i64vec2(uvec2(p)).at[2u * q] = x.xy;
    ptr_i64vec2(uvec2(p)).at[2u * q + 1u] = x.zw;
}
void store4_i8(const ptr_i8 p, const uint q, const ivec4 x) { ptr_u32(uvec2(p)).at[q] = word_of(uvec4(x)); }
void store4_u8(const ptr_u8 p, const uint q, const ivec4 x) { ptr_u32(uvec2(p)).at[q] = word_of(uvec4(x)); }
void store4_bool(const ptr_bool p, const uint q, const bvec4 x) { ptr_u32(uvec2(p)).at[q] = word_of(uvec4(x)); }
