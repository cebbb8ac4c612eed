// What conv.h computes, for few rows a group (depthwise): each thread adds up one element of y. SPARSE: weights lie
// where `places` says; HAS_BIAS and ACTIVATION (neither in f64). AB, meta and taps are those of conv.h.
#include "pair.h"
#define A_f64_f64 f64
#define B_f64_f64 f64
#define META(i) LOAD(u32, meta, i)
#define PHASE(i) LOAD(u32, meta, 16u + phase * 8u + (i))

#include "activation.h"
#define END_f32(x) activated(x)
#define END_f16(x) activated(x)
#define END_bf16(x) activated(x)
#define END_f64(x) (x)
#define BIAS_f32(i) LOAD(f32, bias, i)
#define BIAS_f16(i) LOAD(f32, bias, i)
#define BIAS_bf16(i) LOAD(f32, bias, i)
#define BIAS_f64(i) VAL(f64)(0)

RLX_FN void conv_direct_body(PTR(TA) x, PTR(TB) w, PTR(f32) bias, PTR(b16) taps, PTR(u32) places, PTR(u32) meta,
                             PTR(TA) y, const uint batch, const uint groups, const uint rows, const uint phases,
                             const uint columns) {
    const uint id = GROUP * 256u + THREAD;
    const uint column = id % columns, row = id / columns % rows, z = id / columns / rows;
    const uint phase = z % phases, g = z / phases;
    if (g >= groups) return;
    const uint terms = PHASE(0u), first = PHASE(1u), t1 = PHASE(3u), t2 = PHASE(4u);
    const uint positions = PHASE(2u) * t1 * t2;
    if (column >= batch * positions) return;
    const uint s0 = META(0u), s1 = META(1u), s2 = META(2u);
    const uint image = column / positions, t = column % positions;
    const uint u0 = t / (t1 * t2), u1 = t / t2 % t1, u2 = t % t2;
    const uint p0 = u0 * META(3u), p1 = u1 * META(4u), p2 = u2 * META(5u);
    const uint base = image * META(6u) + g * META(7u) + (p0 * s1 + p1) * s2 + p2;
    PTR(TB) pw = SKIP(TB, SKIP(TB, w, g, META(12u)), row, META(13u));
    VAL(TA) total = VAL(TA)(0);
    for (uint k = 0u; k < terms; k++) {
        const uvec4 tap = taps AT(first + k);
        // Padding is multiplied too: zero times an infinite weight is NaN wherever the sum is computed.
        const bool inside = p0 + tap.y < s0 && p1 + tap.z < s1 && p2 + tap.w < s2;
        const VAL(TA) value = inside ? LOAD(TA, x, base + tap.x) : VAL(TA)(0);
        total = FMA_IN(TA, LOAD(TB, pw, SPARSE ? LOAD(u32, places, first + k) : k), value, total);
    }
    if (HAS_BIAS) total += RLX_JOIN(BIAS_, TA)(g * rows + row);
    const uint plane = META(8u);
    const uint at = (image * groups * rows + g * rows + row) * plane + PHASE(5u) + u0 * META(9u) + u1 * META(10u) +
                    u2 * META(11u);
    STORE(TA, y, at, RLX_JOIN(END_, TA)(total));
}
