// Blocks of 32 elements of x as integers from -127 to 127, four in a word of q, and their scales in d. A scale is the
// largest magnitude over 127; NaN for a block with an infinity or NaN, 0 for one of numbers below 2^-100. n: quads in
// all; X_QUADS: x may be read four at a time. Magnitudes are compared as integers, in which NaN is the largest.
#include "quads.h"

RLX_FN float larger(const float a, const float b) { return RLX_BITS(a) > RLX_BITS(b) ? a : b; }
LANES_OP(block_top, 8u, larger)
RLX_QUAD(quad_of_x, T, X_QUADS)

RLX_FN float magnitude(const float x) { return RLX_FLOAT(RLX_BITS(x) & 0x7fffffffu); }
RLX_FN uint byte_of(const float x, const float by) { return uint(int(RLX_ROUND(x * by))) & 0xffu; }

RLX_FN void int8_blocks_body(PTR(T) x, PTR(u32) q, PTR(f32) d, const uint n) {
    const uint i = GROUP * 256u + THREAD;
    const vec4 v = quad_of_x(x, 0u, 4u * i, i < n ? 1u : 0u, 4u * n, 4u * n);
    const float top = block_top(larger(larger(magnitude(v.x), magnitude(v.y)), larger(magnitude(v.z), magnitude(v.w))));
    const bool finite = RLX_BITS(top) < 0x7f800000u, kept = finite && top >= 7.888609052210118e-31f;
    const float by = kept ? p_div_f(127.0f, top) : 0.0f;
    if (i >= n) return;
    q AT(i) = kept ? byte_of(v.x, by) | byte_of(v.y, by) << 8 | byte_of(v.z, by) << 16 | byte_of(v.w, by) << 24 : 0u;
    if (i % 8u == 0u) d AT(i / 8u) = kept ? p_div_f(top, 127.0f) : RLX_FLOAT(finite ? 0u : 0x7fc00000u);
}
