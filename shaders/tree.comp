#version 460
// Template of the kernels that rlx/backends/gpu/elementwise/emit_spirv.py makes: it keeps the functions a tree calls and puts the
// tree in the place of main. Grid: workgroups of 256, linear over X and Y, stride over n. Arguments: see TreeKernel.
// flags: --keep-uncalled
#extension GL_GOOGLE_include_directive : require
#include "tree.glsl"

void main() {}
