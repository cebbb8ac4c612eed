// What pool.h computes with channels last, of which there are 8 deep: KIND = 0 the largest elements of
// windows, 1 their means, PADDING_COUNTS with the padding counted; a thread for eight channels of a window. meta: that of
// pool.h.
#define META(i) LOAD(u32, meta, i)
#include "prims.h"
#include "eights.h"

#include "pool_count.h"
RLX_FN float larger(const float best, const float v) { return v > best || (IS_NAN(v) && !IS_NAN(best)) ? v : best; }
RLX_FN vec4 joined(const vec4 a, const vec4 v) {
    if (KIND == 0u) return VEC4(larger(a.x, v.x), larger(a.y, v.y), larger(a.z, v.z), larger(a.w, v.w));
    return VEC4(a.x + v.x, a.y + v.y, a.z + v.z, a.w + v.w);
}
RLX_FN vec4 divided(const vec4 v, const float n) {
    return VEC4(p_div_f(v.x, n), p_div_f(v.y, n), p_div_f(v.z, n), p_div_f(v.w, n));
}

RLX_FN void pool_units_body(PTR(T) x, PTR(u32) meta, PTR(T) y, const uint total, const uint deep) {
    const uint id = GROUP * 256u + THREAD;
    if (id >= total) return;
    const uint s0 = META(0u), s1 = META(1u), s2 = META(2u), t1 = META(4u), t2 = META(5u);
    const uint positions = META(3u) * t1 * t2, unit = id % deep, t = id / deep % positions;
    const uint image = id / deep / positions;
    const uint b0 = t / (t1 * t2) * META(6u) - META(12u), b1 = t / t2 % t1 * META(7u) - META(13u);
    const uint b2 = t % t2 * META(8u) - META(14u);
    const uint d0 = META(9u), d1 = META(10u), d2 = META(11u), k0 = META(15u), k1 = META(16u), k2 = META(17u);
    const float start = KIND == 0u ? -INFINITE : 0.0f;
    const vec4 first = VEC4(start, start, start, start);
    vec4 low = first, high = first;
    for (uint i0 = 0u; i0 < k0; i0++) {
        const uint p0 = b0 + i0 * d0;
        if (p0 >= s0) continue;
        for (uint i1 = 0u; i1 < k1; i1++) {
            const uint p1 = b1 + i1 * d1;
            if (p1 >= s1) continue;
            vec4 row_low = first, row_high = first;
            for (uint i2 = 0u; i2 < k2; i2++) {
                const uint p2 = b2 + i2 * d2;
                if (p2 >= s2) continue;
                vec4 va, vb;
                LOAD8(T, x, (((image * s0 + p0) * s1 + p1) * s2 + p2) * deep + unit, va, vb);
                row_low = joined(row_low, va);
                row_high = joined(row_high, vb);
            }
            low = joined(low, row_low);
            high = joined(high, row_high);
        }
    }
    if (KIND == 1u) {
        const uint n = counted(b0, k0, s0, META(12u), META(18u)) * counted(b1, k1, s1, META(13u), META(19u)) *
                       counted(b2, k2, s2, META(14u), META(20u));
        low = divided(low, float(n));
        high = divided(high, float(n));
    }
    STORE8(T, y, id, low, high);
}
