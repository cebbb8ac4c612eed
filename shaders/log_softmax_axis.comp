#version 460
// log_softmax (C1 = 0) or logsumexp (C1 = 1) over n of x (outer, n, inner).
// Grid: a group for each outer and C0 places of inner; X folds into Y.
// Arguments: x, y, outer, n, inner.
// variants: T=f32,f16,bf16
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint C0 = 32u;
layout(constant_id = 1) const uint C1 = 0u;
#include "body.glsl"
#include "prims.h"
#include "bodies/log_softmax_axis.h"

layout(push_constant, scalar) uniform Args {
    PTR(T) x;
    PTR(T) y;
    uint outer;
    uint n;
    uint inner;
};

void main() { log_softmax_axis_body(x, y, outer, n, inner); }
