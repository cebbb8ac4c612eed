// Storage types: PTR(T) is a pointer to elements of dtype T (f32 f16 bf16 i32 i64 i8 u8 bool), held in push constants;
// LOAD(T, p, i) and STORE(T, p, i, x) convert to and from the type the arithmetic is done in: float for the floats,
// int for i32, i8 and u8, int64_t for i64, bool for bool. f16 and bf16 round to nearest even and keep NaN.
// prims.h may be included after this file.
// A module needs 8-bit storage, 16-bit storage or 64-bit integers only when it uses such a pointer.
#ifndef RLX_TYPES_GLSL
#define RLX_TYPES_GLSL
#extension GL_EXT_shader_8bit_storage : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#include "prelude.glsl"
#include "half.h"

#define PTR_(T) ptr_##T
#define PTR(T) PTR_(T)
#define LOAD_(T, p, i) load_##T(p, i)
#define LOAD(T, p, i) LOAD_(T, p, i)
#define STORE_(T, p, i, x) store_##T(p, i, x)
#define STORE(T, p, i, x) STORE_(T, p, i, x)

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer ptr_f32 { float at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) buffer ptr_f16 { uint16_t at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) buffer ptr_bf16 { uint16_t at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer ptr_i32 { int at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer ptr_u32 { uint at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) buffer ptr_u16 { uint16_t at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer ptr_i64 { int64_t at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 1) buffer ptr_i8 { uint8_t at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 1) buffer ptr_u8 { uint8_t at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 1) buffer ptr_bool { uint8_t at[]; };
// Sixteen bytes at a time, for pointers known to be aligned so.
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer ptr_vec4 { vec4 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer ptr_uvec4 { uvec4 at[]; };

float load_f32(const ptr_f32 p, const uint i) { return p.at[i]; }
float load_f16(const ptr_f16 p, const uint i) { return p_f16_value(uint(p.at[i])); }
float load_bf16(const ptr_bf16 p, const uint i) { return p_bf16_value(uint(p.at[i])); }
int load_i32(const ptr_i32 p, const uint i) { return p.at[i]; }
uint load_u32(const ptr_u32 p, const uint i) { return p.at[i]; }
int64_t load_i64(const ptr_i64 p, const uint i) { return p.at[i]; }
int load_i8(const ptr_i8 p, const uint i) { return int(uint(p.at[i]) ^ 0x80u) - 0x80; }
int load_u16(const ptr_u16 p, const uint i) { return int(uint(p.at[i])); }
int load_u8(const ptr_u8 p, const uint i) { return int(p.at[i]); }
bool load_bool(const ptr_bool p, const uint i) { return uint(p.at[i]) != 0u; }

void store_f32(const ptr_f32 p, const uint i, const float x) { p.at[i] = x; }
void store_f16(const ptr_f16 p, const uint i, const float x) { p.at[i] = uint16_t(p_f16_bits(x)); }
void store_bf16(const ptr_bf16 p, const uint i, const float x) { p.at[i] = uint16_t(p_brain_bits(x)); }
void store_i32(const ptr_i32 p, const uint i, const int x) { p.at[i] = x; }
void store_u32(const ptr_u32 p, const uint i, const uint x) { p.at[i] = x; }
void store_i64(const ptr_i64 p, const uint i, const int64_t x) { p.at[i] = x; }
void store_i8(const ptr_i8 p, const uint i, const int x) { p.at[i] = uint8_t(uint(x)); }
void store_u16(const ptr_u16 p, const uint i, const int x) { p.at[i] = uint16_t(uint(x)); }
void store_u8(const ptr_u8 p, const uint i, const int x) { p.at[i] = uint8_t(uint(x)); }
void store_bool(const ptr_bool p, const uint i, const bool x) { p.at[i] = uint8_t(x ? 1u : 0u); }

// The arithmetic type of dtype T: VAL(T).
#define val_f32 float
#define val_f16 float
#define val_bf16 float
#define val_i32 int
#define val_u32 uint
#define val_i64 int64_t
#define val_i8 int
#define val_u8 int
#define val_bool bool
#define VAL_(T) val_##T
#define VAL(T) VAL_(T)
#endif
