// y[i0, i1, i2, c] = element i0 s0 + i1 s1 + i2 s2 + c step of x, for the channels c, rounded to tf32, then zeros up to
// whole units of four elements: a thread for each unit. NEAR (1 or 2): the index along which neighbouring threads read.
// VECTORS: channels are neighbours, in whole units.
#include "stream.h"
#include "tf32.h"

RLX_FN uint channel_at(PTR(f32) x, const uint at, const uint step, const uint c, const uint channels) {
    return c < channels ? tf32_finite(RLX_BITS(LOAD(f32, x, at + c * step))) : 0u;
}

RLX_FN void conv_fours_body(PTR(f32) x, PTR(b16) y, const uint n0, const uint n1, const uint n2, const uint channels,
                            const uint s0, const uint s1, const uint s2, const uint step) {
    const uint id = GROUP * 256u + THREAD, deep = (channels + 3u) / 4u;
    const uint near = NEAR == 1u ? n1 : n2, far = NEAR == 1u ? n2 : n1;
    const uint a = id % near, u = id / near % deep, b = id / (near * deep) % far, i0 = id / (near * deep * far);
    if (i0 >= n0) return;
    const uint i1 = NEAR == 1u ? a : b, i2 = NEAR == 1u ? b : a;
    const uint at = i0 * s0 + i1 * s1 + i2 * s2, c = u * 4u;
    const uint to = ((i0 * n1 + i1) * n2 + i2) * deep + u;
    if (VECTORS) {
        const vec4 v = LOAD4(f32, x, (at + c) / 4u);
        y AT(to) = UVEC4(tf32_finite(RLX_BITS(v.x)), tf32_finite(RLX_BITS(v.y)), tf32_finite(RLX_BITS(v.z)),
                         tf32_finite(RLX_BITS(v.w)));
    } else {
        y AT(to) = UVEC4(channel_at(x, at, step, c, channels), channel_at(x, at, step, c + 1u, channels),
                         channel_at(x, at, step, c + 2u, channels), channel_at(x, at, step, c + 3u, channels));
    }
}
