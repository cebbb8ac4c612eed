#version 460
// y[b, r, c] = x[b, c, r], sixteen bytes at a time: `rows` by `cols` elements in y; x's rows lie `pitch` of sixteen bytes apart.
// Grid: a group for each of `tiles` = matrices * ceil(rows / 64) * ceil(cols / (256 / element bytes)); X folds into Y.
// Arguments: x, y, tiles, rows, cols, pitch, batch (sixteen bytes from one matrix of x to the next).
// variants: U=b2,b4
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
#include "body.glsl"
#include "bodies/transpose_wide.h"

layout(push_constant, scalar) uniform Args {
    PTR(b16) x;
    PTR(b16) y;
    uint tiles;
    uint rows;
    uint cols;
    uint pitch;
    uint batch;
};

void main() { transpose_wide_body(x, y, tiles, rows, cols, pitch, batch); }
