// Windows of x (lines, S): KIND = 0 their largest elements; 1 their means, PADDING_COUNTS with the padding counted; 2
// the flat place of the largest element, written to `index`, 2^32 - 1 where there is none. T is the storage of x and y.
// meta: input sizes (3), positions (3), steps (3), dilations (3), padding before (3), kernel (3), padding after (3).
#define META(i) LOAD(u32, meta, i)
#include "prims.h"
#define ACC VAL(T)
#define LOWEST_f32 (-INFINITE)
#define LOWEST_f16 (-INFINITE)
#define LOWEST_bf16 (-INFINITE)
#define LOWEST_f64 (-INFINITE64)
#define NAN_f32(x) IS_NAN(x)
#define NAN_f16(x) IS_NAN(x)
#define NAN_bf16(x) IS_NAN(x)
#define NAN_f64(x) IS_NAN64(x)
#define DIVIDE_f32(x, n) p_div_f(x, float(n))
#define DIVIDE_f16(x, n) p_div_f(x, float(n))
#define DIVIDE_bf16(x, n) p_div_f(x, float(n))
#define DIVIDE_f64(x, n) d_div(x, double(n))

#include "pool_count.h"

RLX_FN void pool_body(PTR(T) x, PTR(u32) meta, PTR(T) y, PTR(u32) index, const uint total) {
    const uint id = GROUP * 256u + THREAD;
    if (id >= total) return;
    const uint s0 = META(0u), s1 = META(1u), s2 = META(2u), t1 = META(4u), t2 = META(5u);
    const uint positions = META(3u) * t1 * t2, t = id % positions;
    const uint b0 = t / (t1 * t2) * META(6u) - META(12u), b1 = t / t2 % t1 * META(7u) - META(13u);
    const uint b2 = t % t2 * META(8u) - META(14u);
    const uint d0 = META(9u), d1 = META(10u), d2 = META(11u), k0 = META(15u), k1 = META(16u), k2 = META(17u);
    PTR(T) p = SKIP(T, x, id / positions, s0 * s1 * s2);
    ACC best = ACC(RLX_JOIN(LOWEST_, T)), sum = ACC(0);
    uint chosen = 0xffffffffu;
    for (uint i0 = 0u; i0 < k0; i0++) {
        const uint p0 = b0 + i0 * d0;
        if (p0 >= s0) continue;
        for (uint i1 = 0u; i1 < k1; i1++) {
            const uint p1 = b1 + i1 * d1;
            if (p1 >= s1) continue;
            ACC row = ACC(0);
            for (uint i2 = 0u; i2 < k2; i2++) {
                const uint p2 = b2 + i2 * d2;
                if (p2 >= s2) continue;
                const uint at = (p0 * s1 + p1) * s2 + p2;
                const ACC v = LOAD(T, p, at);
                row += v;
                if (chosen == 0xffffffffu || v > best || (RLX_JOIN(NAN_, T)(v) && !RLX_JOIN(NAN_, T)(best))) {
                    best = v;
                    chosen = at;
                }
            }
            sum += row;
        }
    }
    if (KIND == 0u) STORE(T, y, id, best);
    if (KIND == 1u) {
        const uint n = counted(b0, k0, s0, META(12u), META(18u)) * counted(b1, k1, s1, META(13u), META(19u)) *
                       counted(b2, k2, s2, META(14u), META(20u));
        STORE(T, y, id, RLX_JOIN(DIVIDE_, T)(sum, n));
    }
    if (KIND == 2u) index AT(id) = chosen;
}
