#version 460
// Template of tree kernels for drivers whose fma() is known to round once: tree.comp, with shorter division.
// flags: --keep-uncalled
#extension GL_GOOGLE_include_directive : require
#define RLX_EXACT_FMA(a, b, c) fma(a, b, c)
#include "tree.glsl"

void main() {}
