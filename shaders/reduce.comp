#version 460
// Sum, product, maximum or minimum over n of x (outer, n, inner), in `splits` parts of `chunk`.
// Grid: a group for each 256 / (C0*C1) of (outer, split) and C0 places (pairs, C3 = 2) of inner; X folds into Y.
// Arguments: x, y (outer, splits, inner), outer, n, inner, chunk, splits, divisor.
// variants: IO=f32_f32,f64_f64,f16_f32,bf16_f32,f32_f16,f32_bf16,f16_f16,bf16_bf16,i32_i32,i64_i64
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 1u;
layout(constant_id = 1) const uint C1 = 256u;
layout(constant_id = 2) const uint C2 = 0u;
layout(constant_id = 3) const uint C3 = 0u;
layout(constant_id = 4) const uint C4 = 0u;
#include "body.glsl"
#include "rounding.glsl"
#include "body64.glsl"
#include "prims.h"
#include "bodies/reduce.h"

layout(push_constant, scalar) uniform Args {
    PTR(TI) x;
    PTR(TO) y;
    uint outer;
    uint n;
    uint inner;
    uint chunk;
    uint splits;
    float divisor;
};

void main() { reduce_body(x, y, outer, n, inner, chunk, splits, divisor); }
