// A token's row of each sequence as blocks of 32 integers from -127 to 127 with a scale each, four integers in a word, in
// the row of a cache that is its position modulo `rows`. A scale is the largest magnitude over 127, rounded to f16;
// magnitudes are compared as integers, in which NaN is the largest. n: quads of x in all; quads: of a token; X_QUADS: x
// may be read four at a time.
#include "quads.h"

RLX_FN float larger(const float a, const float b) { return RLX_BITS(a) > RLX_BITS(b) ? a : b; }
LANES_OP(block_top, 8u, larger)
RLX_QUAD(quad_of_x, T, X_QUADS)

RLX_FN float magnitude(const float x) { return RLX_FLOAT(RLX_BITS(x) & 0x7fffffffu); }
RLX_FN uint byte_of(const float x, const float by) {
    return uint(p_cast_f_i8(p_min_f(p_max_f(p_round_f(p_div_f(x, by)), -127.0f), 127.0f))) & 0xffu;
}

RLX_FN void q8_0_update_body(PTR(T) x, PTR(i32) position, PTR(u32) codes, PTR(f16) scales, const uint n,
                             const uint quads, const uint rows) {
    const uint i = GROUP * 256u + THREAD;
    const vec4 v = quad_of_x(x, 0u, 4u * i, i < n ? 1u : 0u, 4u * n, 4u * n);
    const float top = block_top(larger(larger(magnitude(v.x), magnitude(v.y)), larger(magnitude(v.z), magnitude(v.w))));
    const float scale = p_round_f16(top * 0.007874015748031496f), by = scale == 0.0f ? 1.0f : scale;
    if (i >= n) return;
    const int at = LOAD(i32, position, i / quads);
    const uint to = (i / quads * rows + uint(at > 0 ? at : 0) % rows) * quads + i % quads;
    codes AT(to) = byte_of(v.x, by) | byte_of(v.y, by) << 8 | byte_of(v.z, by) << 16 | byte_of(v.w, by) << 24;
    if (i % 8u == 0u) STORE(f16, scales, to / 8u, scale);
}
