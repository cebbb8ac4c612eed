// y[i0, i1, i2, c] = element i0 s0 + i1 s1 + i2 s2 + c step of x, for the channels c, then zeros up to whole units of eight
// elements of sixteen bits: a thread for each unit. NEAR (1 or 2): the index along which neighbouring threads read.
RLX_FN uint channel_bits(PTR(b2) x, const uint at, const uint step, const uint c, const uint channels) {
    uint w = 0u;
    if (c < channels) w = uint(x AT(at + c * step));
    if (c + 1u < channels) w |= uint(x AT(at + (c + 1u) * step)) << 16;
    return w;
}
#ifdef RLX_GLSL
#define UVEC4(a, b, c, d) uvec4(a, b, c, d)
#else
#define UVEC4(a, b, c, d) make_uint4(a, b, c, d)
#endif

RLX_FN void conv_units_body(PTR(b2) x, PTR(b16) y, const uint n0, const uint n1, const uint n2, const uint channels,
                            const uint s0, const uint s1, const uint s2, const uint step) {
    const uint id = GROUP * 256u + THREAD, deep = (channels + 7u) / 8u;
    const uint near = NEAR == 1u ? n1 : n2, far = NEAR == 1u ? n2 : n1;
    const uint a = id % near, u = id / near % deep, b = id / (near * deep) % far, i0 = id / (near * deep * far);
    if (i0 >= n0) return;
    const uint i1 = NEAR == 1u ? a : b, i2 = NEAR == 1u ? b : a;
    const uint at = i0 * s0 + i1 * s1 + i2 * s2, c = u * 8u;
    y AT(((i0 * n1 + i1) * n2 + i2) * deep + u) =
        UVEC4(channel_bits(x, at, step, c, channels), channel_bits(x, at, step, c + 2u, channels),
              channel_bits(x, at, step, c + 4u, channels), channel_bits(x, at, step, c + 6u, channels));
}
