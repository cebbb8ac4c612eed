// What the tiles share: how results leave, with bias and activation. Uses BIAS, ACTIVATION, C_QUADS
// and WIDE of the file that includes it; C is stored as TA, or as f32 where WIDE.
#include "activation.h"
#include "bias.h"
#include "quads.h"
#ifdef RLX_GLSL
#define FMA_QUAD(acc, s, v) acc = fma(vec4(s), v, acc);
#define ADD_QUAD(acc, v) acc += v;
#else
#define FMA_QUAD(acc, s, v) {FMA_ROW(acc, s, v)}
#define ADD_QUAD(acc, v)                                                                   \
    {                                                                                      \
        acc.x += v.x;                                                                      \
        acc.y += v.y;                                                                      \
        acc.z += v.z;                                                                      \
        acc.w += v.w;                                                                      \
    }
#endif

RLX_FN vec4 bias_quad(PTR(f32) bias, const uint column, const uint n) {
    vec4 add = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    if (HAS_BIAS) {
        add.x = bias_at(bias, column);
        if (column + 1u < n) add.y = bias_at(bias, column + 1u);
        if (column + 2u < n) add.z = bias_at(bias, column + 2u);
        if (column + 3u < n) add.w = bias_at(bias, column + 3u);
    }
    return add;
}

RLX_FN void put_one(PTR(TA) c, const uint at, const float v) {
    if (WIDE) {
        STORE(f32, AS(f32, c), at, v);
    } else {
        STORE(TA, c, at, v);
    }
}

// Requires: row and column lie within C, whose rows are n long.
RLX_FN void put_quad(PTR(TA) c, const vec4 sum, const vec4 add, const uint row, const uint column, const uint n) {
    vec4 v = sum;
    if (HAS_BIAS) ADD_QUAD(v, add)
    v = VEC4(activated(v.x), activated(v.y), activated(v.z), activated(v.w));
    const uint at = row * n + column;
    if (C_QUADS) {
        if (WIDE) {
            STORE4(f32, AS(f32, c), at / 4u, v);
        } else {
            STORE4(TA, c, at / 4u, v);
        }
        return;
    }
    put_one(c, at, v.x);
    if (column + 1u < n) put_one(c, at + 1u, v.y);
    if (column + 2u < n) put_one(c, at + 2u, v.z);
    if (column + 3u < n) put_one(c, at + 3u, v.w);
}
