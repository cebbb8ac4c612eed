#version 460
// y[b, r, c] = x[b, c, r]: matrices of `rows` by `cols` in y; x's rows lie `pitch`, its matrices `batch` elements apart.
// Grid: a group for each of `tiles` = matrices * ceil(rows / 32) * ceil(cols / 32); X folds into Y.
// Arguments: x, y, tiles, rows, cols, pitch, batch.
// variants: U=b1,b2,b4,b8
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 256) in;
#include "body.glsl"
#include "bodies/transpose.h"

layout(push_constant, scalar) uniform Args {
    PTR(U) x;
    PTR(U) y;
    uint tiles;
    uint rows;
    uint cols;
    uint pitch;
    uint batch;
};

void main() { transpose_body(x, y, tiles, rows, cols, pitch, batch); }
