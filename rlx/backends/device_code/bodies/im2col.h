// y[n, c, tap, t] = x[n, c, t * step + tap], zero in the padding: bits, in units of U bytes (b1, b2, b4), `units` of
// them an element. meta: input sizes (3), positions (3), steps (3), dilations (3), padding (3), kernel (3).
#define META(i) LOAD(u32, meta, i)
#ifdef __cplusplus
#define NOTHING(U) 0u
#else
#define NOTHING_b1 uint8_t(0u)
#define NOTHING_b2 uint16_t(0u)
#define NOTHING_b4 0u
#define NOTHING(U) RLX_JOIN(NOTHING_, U)
#endif

RLX_FN void im2col_body(PTR(U) x, PTR(u32) meta, PTR(U) y, const uint total, const uint units) {
    const uint id = GROUP * 256u + THREAD;
    if (id >= total) return;
    const uint s0 = META(0u), s1 = META(1u), s2 = META(2u), t1 = META(4u), t2 = META(5u);
    const uint positions = META(3u) * t1 * t2, k1 = META(16u), k2 = META(17u), taps = META(15u) * k1 * k2;
    const uint element = id / units, t = element % positions, line = element / positions;
    const uint tap = line % taps, channel = line / taps;
    const uint p0 = t / (t1 * t2) * META(6u) + tap / (k1 * k2) * META(9u) - META(12u);
    const uint p1 = t / t2 % t1 * META(7u) + tap / k2 % k1 * META(10u) - META(13u);
    const uint p2 = t % t2 * META(8u) + tap % k2 * META(11u) - META(14u);
    if (p0 < s0 && p1 < s1 && p2 < s2) {
        y AT(id) = x AT((((channel * s0 + p0) * s1 + p1) * s2 + p2) * units + id % units);
    } else {
        y AT(id) = NOTHING(U);
    }
}
