// y[line, s] = the sum of d over the windows whose largest element lies at s, as `index` says (pool.h, KIND 2), in the
// order of the window's places. T is the storage of d and y; meta is that of pool.h.
#define META(i) LOAD(u32, meta, i)

RLX_FN void pool_back_body(PTR(T) d, PTR(u32) index, PTR(u32) meta, PTR(T) y, const uint total) {
    const uint id = GROUP * 256u + THREAD;
    if (id >= total) return;
    const uint s0 = META(0u), s1 = META(1u), s2 = META(2u), t0 = META(3u), t1 = META(4u), t2 = META(5u);
    const uint step0 = META(6u), step1 = META(7u), step2 = META(8u);
    const uint size = s0 * s1 * s2, place = id % size, line = id / size * (t0 * t1 * t2);
    VAL(T) sum = VAL(T)(0);
    for (uint i0 = 0u; i0 < META(15u); i0++) {
        // The window whose place i0 this is, where there is one.
        const uint q0 = place / (s1 * s2) + META(12u) - i0 * META(9u);
        if (int(q0) < 0 || q0 % step0 != 0u || q0 / step0 >= t0) continue;
        for (uint i1 = 0u; i1 < META(16u); i1++) {
            const uint q1 = place / s2 % s1 + META(13u) - i1 * META(10u);
            if (int(q1) < 0 || q1 % step1 != 0u || q1 / step1 >= t1) continue;
            for (uint i2 = 0u; i2 < META(17u); i2++) {
                const uint q2 = place % s2 + META(14u) - i2 * META(11u);
                if (int(q2) < 0 || q2 % step2 != 0u || q2 / step2 >= t2) continue;
                const uint at = line + (q0 / step0 * t1 + q1 / step1) * t2 + q2 / step2;
                if (LOAD(u32, index, at) == place) sum += LOAD(T, d, at);
            }
        }
    }
    STORE(T, y, id, sum);
}
