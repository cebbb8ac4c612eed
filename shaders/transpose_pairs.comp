#version 460
// y[b, r, c] = x[b, c, r] of two-byte elements, in words of two: 2 `rows` by 2 `cols` in y; x's rows lie `pitch` words apart.
// Grid: a group for each of `tiles` = matrices * ceil(rows / 32) * ceil(cols / 32); X folds into Y.
// Arguments: x, y, tiles, rows, cols, pitch, batch (words from one matrix of x to the next).
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
#include "body.glsl"
#include "bodies/transpose_pairs.h"

layout(push_constant, scalar) uniform Args {
    PTR(b4) x;
    PTR(b4) y;
    uint tiles;
    uint rows;
    uint cols;
    uint pitch;
    uint batch;
};

void main() { transpose_pairs_body(x, y, tiles, rows, cols, pitch, batch); }
