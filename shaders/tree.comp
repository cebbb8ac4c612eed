#version 460
// Template of the kernels that rlx/backends/gpu/emit_spirv.py makes: it keeps the functions a tree calls and puts the
// tree in the place of main. Grid: workgroups of 256, linear over X and Y, stride over n. Arguments: see TreeKernel.
// flags: --keep-uncalled
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_GOOGLE_include_directive : require
#include "types.glsl"
#include "prims.h"

layout(local_size_x = 256) in;

uint first_index() {
    return (gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x) * 256u + gl_LocalInvocationIndex;
}
uint index_step() { return gl_NumWorkGroups.x * gl_NumWorkGroups.y * 256u; }
uint word(const ptr_u32 meta, const uint i) { return meta.at[i]; }

void main() {}
