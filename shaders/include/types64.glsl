// Storage of f64, for shaders whose device computes in it: PTR(f64), LOAD and STORE, as types.glsl has the others.
#ifndef RLX_TYPES64_GLSL
#define RLX_TYPES64_GLSL
#include "prelude64.glsl"
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer ptr_f64 { double at[]; };
double load_f64(const ptr_f64 p, const uint i) { return p.at[i]; }
void store_f64(const ptr_f64 p, const uint i, const double x) { p.at[i] = x; }
#define val_f64 double
#endif
