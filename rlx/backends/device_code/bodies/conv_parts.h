// y[part, i0, i1, i2, c] = part of element i0 s0 + i1 s1 + i2 s2 + c step of x, for the channels c, then zeros up to whole
// units of eight elements of bf16: a thread for each unit. The PARTS of an element are bf16, each the rounded remainder of
// those before; three hold an f32. NEAR (1 or 2): the index along which neighbouring threads read. VECTORS: channels are
// neighbours, in whole units that may be read by fours.
#include "stream.h"

// The first part of v, which becomes the remainder: none of what is infinite or no number. A number that would be rounded
// to infinity is cut off instead.
RLX_FN uint take_part(RLX_OUT(float) v) {
    uint h = p_brain_bits(v);
    if ((h & 0x7fffu) == 0x7f80u) h = RLX_BITS(v) >> 16;
    v = (h & 0x7f80u) == 0x7f80u ? 0.0f : v - p_bf16_value(h);
    return h;
}
RLX_FN uint take_pair(RLX_OUT(float) x, RLX_OUT(float) y) {
    const uint low = take_part(x);
    return low | take_part(y) << 16;
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
        const uint first = take_pair(low.x, low.y), second = take_pair(low.z, low.w);
        const uint third = take_pair(high.x, high.y);
        y AT(to + p * plane) = UVEC4(first, second, third, take_pair(high.z, high.w));
    }
}
