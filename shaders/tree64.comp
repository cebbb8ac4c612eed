#version 460
// Template of the kernels that compute in f64: tree.comp with the functions of prims64.h.
// flags: --keep-uncalled
#extension GL_GOOGLE_include_directive : require
#include "tree.glsl"
#include "types64.glsl"
#include "prims64.h"

layout(buffer_reference, scalar, buffer_reference_align = 16) buffer ptr_dvec2 { dvec2 at[]; };

dvec4 load4_f64(const ptr_f64 p, const uint q) {
    return dvec4(ptr_dvec2(uvec2(p)).at[2u * q], ptr_dvec2(uvec2(p)).at[2u * q + 1u]);
}
void store4_f64(const ptr_f64 p, const uint q, const dvec4 x) {
    ptr_dvec2(uvec2(p)).at[2u * q] = x.xy;
    ptr_dvec2(uvec2(p)).at[2u * q + 1u] = x.zw;
}

void main() {}
