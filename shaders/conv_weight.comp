#version 460
// y = gradient of a convolution's weights, of its input x and the gradient d of its result.
// Grid: a group of 256 for each tile of C0 rows x C1 columns of each group and split; X folds into Y.
// Arguments: x, d, meta (bodies/conv_weight.h), y, batch, groups, rows, columns, chunk, splits.
// variants: IO=f32_f32,f16_f16,bf16_bf16,f16_f32,bf16_f32
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 64u;
layout(constant_id = 1) const uint C1 = 64u;
#include "body.glsl"
#include "bodies/conv_weight.h"

layout(push_constant, scalar) uniform Args {
    PTR(TI) x;
    PTR(TI) d;
    PTR(u32) meta;
    PTR(TO) y;
    uint batch;
    uint groups;
    uint rows;
    uint columns;
    uint chunk;
    uint splits;
};

void main() { conv_weight_body(x, d, meta, y, batch, groups, rows, columns, chunk, splits); }
