// y[part, i0, i1, i2, c] = part of element i0 s0 + i1 s1 + i2 s2 + c step of x, for the channels c, then zeros up to whole
// units of eight elements of bf16: a thread for each unit. The PARTS of an element are bf16, each the rounded remainder of
// those before; three hold an f32. NEAR (1 or 2): the index along which neighbouring threads read. VECTORS: channels are
// neighbours, in whole units that may be read by fours.
#include "stream.h"

// The first part of v: a number that would be rounded to infinity is cut off instead.
RLX_FN uint first_part(const float v) {
    const uint h = p_brain_bits(v);
    return (h & 0x7fffu) == 0x7f80u ? RLX_BITS(v) >> 16 : h;
}
// v less its first part: nothing of what is infinite or no number.
RLX_FN float less_part(const float v, const uint h) {
    return (h & 0x7f80u) == 0x7f80u ? 0.0f : v - p_bf16_value(h);
}
#define TAKE_PAIR(w, a, b)                                 \
    {                                                      \
        const uint ha = first_part(a), hb = first_part(b); \
        w = ha | hb << 16;                                 \
        a = less_part(a, ha);                              \
        b = less_part(b, hb);                              \
    }

RLX_FN void conv_parts_body(PTR(f32) x, PTR(b16) y, const uint n0, const uint n1, const uint n2, const uint channels,
                            const uint s0, const uint s1, const uint s2, const uint step) {
    const uint id = GROUP * 256u + THREAD, deep = (channels + 7u) / 8u;
    const uint near = NEAR == 1u ? n1 : n2, far = NEAR == 1u ? n2 : n1;
    const uint a = id % near, u = id / near % deep, b = id / (near * deep) % far, i0 = id / (near * deep * far);
    if (i0 >= n0) return;
    const uint i1 = NEAR == 1u ? a : b, i2 = NEAR == 1u ? b : a;
    const uint at = i0 * s0 + i1 * s1 + i2 * s2, c = u * 8u;
    vec4 low, high;
    if (VECTORS) {
        low = LOAD4(f32, x, (at + c) / 4u);
        high = LOAD4(f32, x, (at + c) / 4u + 1u);
    } else {
        low = VEC4(c < channels ? LOAD(f32, x, at + c * step) : 0.0f,
                   c + 1u < channels ? LOAD(f32, x, at + (c + 1u) * step) : 0.0f,
                   c + 2u < channels ? LOAD(f32, x, at + (c + 2u) * step) : 0.0f,
                   c + 3u < channels ? LOAD(f32, x, at + (c + 3u) * step) : 0.0f);
        high = VEC4(c + 4u < channels ? LOAD(f32, x, at + (c + 4u) * step) : 0.0f,
                    c + 5u < channels ? LOAD(f32, x, at + (c + 5u) * step) : 0.0f,
                    c + 6u < channels ? LOAD(f32, x, at + (c + 6u) * step) : 0.0f,
                    c + 7u < channels ? LOAD(f32, x, at + (c + 7u) * step) : 0.0f);
    }
    const uint to = ((i0 * n1 + i1) * n2 + i2) * deep + u, plane = n0 * n1 * n2 * deep;
    UNROLL for (uint p = 0u; p < PARTS; p++) {
        uvec4 unit;
        TAKE_PAIR(unit.x, low.x, low.y)
        TAKE_PAIR(unit.y, low.z, low.w)
        TAKE_PAIR(unit.z, high.x, high.y)
        TAKE_PAIR(unit.w, high.z, high.w)
        y AT(to + p * plane) = unit;
    }
}
