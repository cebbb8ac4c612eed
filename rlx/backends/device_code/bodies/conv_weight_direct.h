// What conv_weight.h computes, for few rows and columns a group (depthwise): a group of 256 adds up one element of y,
// in a fixed order. T is the storage of all; meta is that of conv_weight.h.
#define META(i) LOAD(u32, meta, i)
RLX_FN float sum_of(const float a, const float b) { return a + b; }
#define GROUP_SUM_f32 LANES_OP(group_sum, 256u, sum_of)
#define GROUP_SUM_f16 GROUP_SUM_f32
#define GROUP_SUM_bf16 GROUP_SUM_f32
#define GROUP_SUM_f64                                                      \
    SHARED double part[256];                                               \
    RLX_FN double group_sum(const double v) {                              \
        part[THREAD] = v;                                                  \
        for (uint s = 128u; s > 0u; s /= 2u) {                             \
            BARRIER;                                                       \
            if (THREAD < s) part[THREAD] += part[THREAD + s];              \
        }                                                                  \
        return part[THREAD];                                               \
    }
#define GROUP_SUM_OF_(T) GROUP_SUM_##T
#define GROUP_SUM_OF(T) GROUP_SUM_OF_(T)
GROUP_SUM_OF(T)

RLX_FN void conv_weight_direct_body(PTR(T) x, PTR(T) d, PTR(u32) meta, PTR(T) y, const uint batch, const uint groups,
                                    const uint rows, const uint columns) {
    const uint column = GROUP % columns, row = GROUP / columns % rows, g = GROUP / columns / rows;
    const bool all = g < groups;
    const uint s0 = META(0u), s1 = META(1u), s2 = META(2u), t1 = META(4u), t2 = META(5u);
    const uint positions = META(3u) * t1 * t2;
    const uint terms = all ? batch * positions : 0u;
    const uint k1 = META(16u), k2 = META(17u), taps = META(15u) * k1 * k2, tap = column % taps;
    const uint o0 = tap / (k1 * k2) * META(9u) - META(12u), o1 = tap / k2 % k1 * META(10u) - META(13u);
    const uint o2 = tap % k2 * META(11u) - META(14u);
    const uint place = ((column / taps * s0 + o0) * s1 + o1) * s2 + o2;
    VAL(T) total = VAL(T)(0);
    for (uint term = THREAD; term < terms; term += 256u) {
        const uint image = term / positions, t = term % positions;
        const uint p0 = t / (t1 * t2) * META(6u), p1 = t / t2 % t1 * META(7u), p2 = t % t2 * META(8u);
        const bool inside = p0 + o0 < s0 && p1 + o1 < s1 && p2 + o2 < s2;
        const uint at = image * META(18u) + g * META(19u) + (p0 * s1 + p1) * s2 + p2 + place;
        const VAL(T) value = inside ? LOAD(T, x, at) : VAL(T)(0);
        total = FMA_IN(T, LOAD(T, d, (image * groups * rows + g * rows + row) * positions + t), value, total);
    }
    total = group_sum(total);
    if (all && THREAD == 0u) STORE(T, y, GROUP, total);
}
