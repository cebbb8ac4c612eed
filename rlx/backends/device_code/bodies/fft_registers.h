// Transforms of N complex numbers, N a power of two from 256 to 4096, by LANES threads that hold H of them each in zr and
// zi. Thread t begins with the numbers t + i LANES. A stage transforms K of them within a thread, by butterflies of two
// (decimation in time) which multiply by their factor as they add: six fused operations for a + w b and a - w b. The
// stages are of H, without factors; of H or of N / H; and where LANES > H of R = LANES / H. Between two stages numbers are
// exchanged through shared memory: by all threads of a transform, then by R neighbours.
//
// turns: for each later stage, H / 4 times four floats for each thread: the factors w^(K/m) exp(-2 pi i q / m) of the
// layers m = 2, 4, ..., K with q below m / 4 (those from there on are -i times the others), of each set of K numbers.
#if HELD == 32
#define H 32u
#define AREA (H * PITCH + (LANES < 32u ? LANES : 0u))
#define PLACES 4736u
#else
#define H 16u
#define AREA (H * PITCH)
#define PLACES 2176u
#endif
#define LANES (N / H)
#define ACROSS (128u / LANES)
#define SETS_OF (LANES < H ? LANES : H)
#define R (LANES / H)
#define PITCH (LANES > H ? LANES + R : LANES + 1u)

// SPREAD: 0 real and imaginary parts are exchanged in turn, in the same places, 1 in places of their own, 2 as pairs.
SHARED RLX_F2 both[SPREAD == 2u ? PLACES : 1u];
SHARED float held[SPREAD == 2u ? 1u : SPREAD == 1u ? 2u * PLACES : PLACES];

// A complex number in shared memory, where that has places for both parts: SPREAD is 1 or 2.
RLX_FN void put_number(const int at, const float a, const float b) {
    if (SPREAD == 2u) {
        RLX_F2 z;
        z.x = a;
        z.y = b;
        both[at] = z;
    } else {
        held[at] = a;
        held[at + int(PLACES)] = b;
    }
}
RLX_FN RLX_F2 number_at(const int at) {
    RLX_F2 z;
    if (SPREAD == 2u) {
        z = both[at];
    } else {
        z.x = held[at];
        z.y = held[at + int(PLACES)];
    }
    return z;
}

// Waits for the other threads of a subgroup of 32, where that is known to be one.
#ifdef RLX_GLSL
#ifdef RLX_SUBGROUPS
#define WARP_MEET { if (SUBGROUP >= 32u) subgroupBarrier(); else barrier(); }
#else
#define WARP_MEET barrier()
#endif
#else
#define WARP_MEET __syncwarp()
#endif

#define REV1(i) 0u
#define REV2(i) (i)
#define REV4(i) (((i) & 1u) << 1 | (i) >> 1)
#define REV8(i) (((i) & 1u) << 2 | ((i) & 2u) | (i) >> 2)
#define REV16(i) (((i) & 1u) << 3 | ((i) & 2u) << 1 | ((i) & 4u) >> 1 | (i) >> 3)
#define REV32(i) (REV16((i) & 15u) << 1 | (i) >> 4)
#if HELD == 32
#define REV_H(i) REV32(i)
#else
#define REV_H(i) REV16(i)
#endif

#define PLAIN(a, b)                                         \
    {                                                       \
        const float dr = zr[a] - zr[b], di = zi[a] - zi[b]; \
        zr[a] += zr[b];                                     \
        zi[a] += zi[b];                                     \
        zr[b] = dr;                                         \
        zi[b] = di;                                         \
    }
#define QUARTER(a, b)                                       \
    {                                                       \
        const float ur = zr[a] + zi[b], ui = zi[a] - zr[b]; \
        const float dr = zr[a] - zi[b], di = zi[a] + zr[b]; \
        zr[a] = ur;                                         \
        zi[a] = ui;                                         \
        zr[b] = dr;                                         \
        zi[b] = di;                                         \
    }
#define BUTTERFLY(a, b, wr, wi)                                     \
    {                                                               \
        const float ur = FMA(-(wi), zi[b], FMA(wr, zr[b], zr[a]));  \
        const float ui = FMA(wi, zr[b], FMA(wr, zi[b], zi[a]));     \
        zr[b] = FMA(2.0f, zr[a], -ur);                              \
        zi[b] = FMA(2.0f, zi[a], -ui);                              \
        zr[a] = ur;                                                 \
        zi[a] = ui;                                                 \
    }
// The cosine of e / 32 of a turn, e < 8.
#define COS32(e) \
    ((e) == 0u ? 1.0f : (e) == 1u ? 0.98078528040323043f : (e) == 2u ? 0.92387953251128674f                    \
     : (e) == 3u ? 0.83146961230254524f : (e) == 4u ? 0.70710678118654752f : (e) == 5u ? 0.55557023301960218f \
     : (e) == 6u ? 0.38268343236508977f : 0.19509032201612827f)
#define SIN32(e) ((e) == 0u ? 0.0f : COS32(8u - (e)))
// A layer of the first stage: transforms of m from those of m / 2.
#define FIXED(m, REV)                                                                            \
    UNROLL for (uint j = 0u; j < H / 2u; j++) {                                                  \
        const uint r = j / (H / m), a = j % (H / m) + 2u * (H / m) * r, b = a + H / m;           \
        const uint e = REV(r) * (32u / m), f = e % 8u;                                           \
        if (e == 0u) PLAIN(a, b)                                                                 \
        else if (e == 8u) QUARTER(a, b)                                                          \
        else if (e < 8u) BUTTERFLY(a, b, COS32(f), -SIN32(f))                                    \
        else BUTTERFLY(a, b, -SIN32(f), -COS32(f))                                               \
    }
// A layer of the later stages, of which each thread has H / K sets.
#define TURNED(K, m, REV)                                                                         \
    UNROLL for (uint j = 0u; j < H / 2u; j++) {                                                   \
        const uint i = j % (K / 2u), r = i / (K / m), q = REV(r), quarter = m / 4u;               \
        const uint a = j / (K / 2u) * K + i % (K / m) + 2u * (K / m) * r, b = a + K / m;          \
        const uint c = j / (K / 2u) * (K / 2u) + (m == 2u ? 0u : quarter + q % (m == 2u ? 1u : quarter)); \
        if (m != 2u && q >= quarter) BUTTERFLY(a, b, ti[c], -tr[c])                               \
        else BUTTERFLY(a, b, tr[c], ti[c])                                                        \
    }
#define STAGE2(K) TURNED(K, 2u, REV1)
#define STAGE4(K) STAGE2(K) TURNED(K, 4u, REV2)
#define STAGE8(K) STAGE4(K) TURNED(K, 8u, REV4)
#define STAGE16(K) STAGE8(K) TURNED(K, 16u, REV8)
#if HELD == 32
#define FIRST_STAGE FIXED(4u, REV2) FIXED(8u, REV4) FIXED(16u, REV8) FIXED(32u, REV16)
#define FULL_STAGE STAGE16(32u) TURNED(32u, 32u, REV16)
#else
#define FIRST_STAGE FIXED(4u, REV2) FIXED(8u, REV4) FIXED(16u, REV8)
#define FULL_STAGE STAGE16(16u)
#endif
#define LOAD_TURNS(stage)                                                                    \
    UNROLL for (uint i = 0u; i < H / 4u; i++) {                                              \
        const vec4 w = LOAD4(f32, here, (stage * (H / 4u) + i) * LANES);                     \
        tr[2u * i] = w.x;                                                                    \
        ti[2u * i] = w.y;                                                                    \
        tr[2u * i + 1u] = w.z;                                                               \
        ti[2u * i + 1u] = w.w;                                                               \
    }
// Register i goes to place TO of shared memory, and is read anew from place FROM; both are expressions in i. Places are
// signed, so that what is constant in them becomes a part of the instruction.
#define EXCHANGE(TO, FROM, MEET)                                                             \
    if (SPREAD == 2u) {                                                                      \
        UNROLL for (uint i = 0u; i < H; i++) {                                               \
            RLX_F2 z;                                                                        \
            z.x = zr[i];                                                                     \
            z.y = zi[i];                                                                     \
            both[TO] = z;                                                                    \
        }                                                                                    \
        MEET;                                                                                \
        UNROLL for (uint i = 0u; i < H; i++) {                                               \
            const RLX_F2 z = both[FROM];                                                     \
            zr[i] = z.x;                                                                     \
            zi[i] = z.y;                                                                     \
        }                                                                                    \
    } else {                                                                                 \
        UNROLL for (uint i = 0u; i < H; i++) held[TO] = zr[i];                               \
        if (SPREAD == 0u) {                                                                  \
            MEET;                                                                            \
            UNROLL for (uint i = 0u; i < H; i++) zr[i] = held[FROM];                         \
            MEET;                                                                            \
        }                                                                                    \
        const int more = SPREAD == 1u ? int(PLACES) : 0;                                     \
        UNROLL for (uint i = 0u; i < H; i++) held[more + TO] = zi[i];                        \
        MEET;                                                                                \
        if (SPREAD == 1u) {                                                                  \
            UNROLL for (uint i = 0u; i < H; i++) zr[i] = held[FROM];                         \
        }                                                                                    \
        UNROLL for (uint i = 0u; i < H; i++) zi[i] = held[more + FROM];                      \
    }
// All stages after the first layer, which the caller computes with its window. FREE says that no thread of the transform
// reads what it exchanged before.
#define TRANSFORM(FREE)                                                                                    \
    {                                                                                                      \
        FIRST_STAGE                                                                                        \
        float tr[H / 2u], ti[H / 2u];                                                                      \
        const int base = int(across * AREA), to = base + int(t);                                           \
        FREE;                                                                                              \
        if (LANES <= H) {                                                                                  \
            const int from = base + int(t * PITCH);                                                        \
            EXCHANGE(to + int(REV_H(i) * PITCH), from + int(i / LANES * LANES * PITCH + i % LANES), WARP_MEET) \
            LOAD_TURNS(0u)                                                                                 \
            if (LANES == H) { FULL_STAGE }                                                                 \
            else if (LANES == 8u) { STAGE8(8u) }                                                           \
            else { STAGE16(16u) }                                                                          \
        } else {                                                                                           \
            const uint p = t / R, t1 = t % R;                                                              \
            const int from = base + int(p * PITCH + t1);                                                   \
            if (LANES <= 32u) {                                                                            \
                EXCHANGE(to + int(REV_H(i) * PITCH), from + int(i * R), WARP_MEET)                         \
            } else {                                                                                       \
                EXCHANGE(to + int(REV_H(i) * PITCH), from + int(i * R), BARRIER)                           \
            }                                                                                              \
            LOAD_TURNS(0u)                                                                                 \
            FULL_STAGE                                                                                     \
            const int to2 = base + int(p * PITCH + t1 * (H + 1u));                                         \
            WARP_MEET;                                                                                     \
            EXCHANGE(to2 + int(REV_H(i)), from + int(i / R * R + i % R * (H + 1u)), WARP_MEET)             \
            LOAD_TURNS(1u)                                                                                 \
            if (R == 2u) { STAGE2(2u) }                                                                    \
            else if (R == 4u) { STAGE4(4u) }                                                               \
            else { STAGE8(8u) }                                                                            \
        }                                                                                                  \
    }
// The frequency that register i of thread t holds then.
RLX_FN uint frequency(const uint t, const uint i) {
    if (LANES == H) return t + H * REV_H(i);
    if (LANES < H) return t + LANES * (i / LANES) + H * (LANES == 8u ? REV8(i % 8u) : REV16(i % 16u));
    const uint q2 = R == 8u ? REV8(i % 8u) : R == 4u ? REV4(i % 4u) : i % 2u;
    return t / R + H * (t % R + i / R * R + H * q2);
}
