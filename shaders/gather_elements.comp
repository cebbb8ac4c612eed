#version 460
// y[o, j, t] = x[o, index[o, j, t], t]: x (outer, axis, trail), m places; bits are copied in units of U.
// Grid: a thread for each of `total` = outer * m * trail elements; X folds into Y.
// Arguments: x, index, y, total, m, axis, trail.
// variants: U=b1,b2,b4,b8;I=i32,i64
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
#include "body.glsl"
#include "bodies/gather_elements.h"

layout(push_constant, scalar) uniform Args {
    PTR(U) x;
    PTR(i32) index;
    PTR(U) y;
    uint total;
    uint m;
    uint axis;
    uint trail;
};

void main() { gather_elements_body(x, index, y, total, m, axis, trail); }
