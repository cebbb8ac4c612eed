#version 460
// Template of tree kernels for devices whose fma rounds once and whose conversion to bfloat16 is to nearest even.
// flags: --keep-uncalled -DRLX_NEAREST=1
// compiler: new
#extension GL_GOOGLE_include_directive : require
#include "tree.glsl"

void main() {}
