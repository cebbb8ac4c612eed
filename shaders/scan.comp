#version 460
// Running sums or products along n of x (outer, n, inner), in `splits` parts of `chunk`.
// Grid: a group for each 256 / (C0*C1) pairs (outer, part) and C0 places of inner; X folds into Y.
// Arguments: x, offsets (outer, splits, inner), y, outer, n, inner, chunk, splits.
// variants: IO=f32_f32,f64_f64,f16_f16,bf16_bf16,i32_i32,i64_i64
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 1u;
layout(constant_id = 1) const uint C1 = 256u;
layout(constant_id = 2) const uint C2 = 0u;
layout(constant_id = 3) const uint C3 = 0u;
layout(constant_id = 4) const uint C4 = 0u;
layout(constant_id = 5) const uint C5 = 0u;
#include "body.glsl"
#include "body64.glsl"
#include "bodies/scan.h"

layout(push_constant, scalar) uniform Args {
    PTR(TI) x;
    PTR(TP) offsets;
    PTR(TO) y;
    uint outer;
    uint n;
    uint inner;
    uint chunk;
    uint splits;
};

void main() { scan_body(x, offsets, y, outer, n, inner, chunk, splits); }
