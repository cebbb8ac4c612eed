// y[row, k, part] = the one-sided power at frequency k, 0 to N / 2, of the segments that a workgroup transforms, added
// up. A segment is `length` samples of x, each times the window; N samples are transformed. N = 256 R, R a power of two
// up to 16. DETREND: less their mean. PADDED: length < N. WHOLE: shared memory holds real and imaginary parts at once.
// Two segments are one complex transform, z = a + i b: |Z[k]|^2 + |Z[N - k]|^2 is twice the power of both at k, so that
// nothing has to be taken apart. N / 16 threads share a transform and hold 16 of its numbers each, in registers:
// transforms of 16, of 16 and of R, with exchanges through shared memory in between (Stockham, by decimation in
// frequency). The powers stay in registers from pair to pair. `first` samples are subtracted before a mean is taken.
// turns: for each thread exp(-2 pi i m t / N) for m = 1, 2, 4, 8, then, R times, exp(-2 pi i m t / (N / 16)).
#define R (N / 256u)
#define LANES (N / 16u)
#define ACROSS (4096u / N)
#define PITCH (LANES + R)
#define PLACE (272u + 16u / R)
#define HELD 4480u
#define SIN8 0.38268343236508977f
#define COS8 0.92387953251128674f
#define ROOT 0.70710678118654752f

SHARED RLX_F2 both[WHOLE ? HELD : 1u];
SHARED float held[WHOLE ? 1u : HELD];

RLX_FN float plus(const float a, const float b) { return a + b; }
LANES_OP(lanes_sum, LANES, plus)

// The place of the k-th result of a transform of 16 in the registers, and back.
#define TURNED(k) ((k) / 4u + 4u * ((k) % 4u))
#define FOUR(i0, i1, i2, i3)                                                                   \
    {                                                                                          \
        const float ar = zr[i0] + zr[i2], ai = zi[i0] + zi[i2], br = zr[i0] - zr[i2], bi = zi[i0] - zi[i2]; \
        const float cr = zr[i1] + zr[i3], ci = zi[i1] + zi[i3], dr = zr[i1] - zr[i3], di = zi[i1] - zi[i3]; \
        zr[i0] = ar + cr; zi[i0] = ai + ci; zr[i2] = ar - cr; zi[i2] = ai - ci;                \
        zr[i1] = br + di; zi[i1] = bi - dr; zr[i3] = br - di; zi[i3] = bi + dr;                \
    }
#define TIMES(i, wr, wi)                                   \
    {                                                      \
        const float tr = FMA(zr[i], wr, -(zi[i] * (wi)));  \
        zi[i] = FMA(zr[i], wi, zi[i] * (wr));              \
        zr[i] = tr;                                        \
    }
// Times exp(-i pi / 4), -i and exp(-3 i pi / 4).
#define EIGHTH(i) { const float tr = (zr[i] + zi[i]) * ROOT; zi[i] = (zi[i] - zr[i]) * ROOT; zr[i] = tr; }
#define QUARTER(i) { const float tr = zi[i]; zi[i] = -zr[i]; zr[i] = tr; }
#define THREE_EIGHTHS(i) { const float tr = (zi[i] - zr[i]) * ROOT; zi[i] = -((zr[i] + zi[i]) * ROOT); zr[i] = tr; }
#define SIXTEEN                                                          \
    FOUR(0, 4, 8, 12) FOUR(1, 5, 9, 13) FOUR(2, 6, 10, 14) FOUR(3, 7, 11, 15) \
    TIMES(5, COS8, -SIN8) EIGHTH(6) TIMES(7, SIN8, -COS8)                \
    EIGHTH(9) QUARTER(10) THREE_EIGHTHS(11)                              \
    TIMES(13, SIN8, -COS8) THREE_EIGHTHS(14) TIMES(15, -COS8, SIN8)      \
    FOURS
#define FOURS FOUR(0, 1, 2, 3) FOUR(4, 5, 6, 7) FOUR(8, 9, 10, 11) FOUR(12, 13, 14, 15)
#define PRODUCT(c, a, b) \
    const float c##r = FMA(a##r, b##r, -(a##i * b##i)), c##i = FMA(a##r, b##i, a##i * b##r);
// The k-th of sixteen results times the k-th power of the first factor at `row` of turns.
#define TURN(row)                                                                              \
    {                                                                                          \
        const vec4 u = LOAD4(f32, turns, 2u * (row)), v = LOAD4(f32, turns, 2u * (row) + 1u);  \
        const float p1r = u.x, p1i = u.y, p2r = u.z, p2i = u.w, p4r = v.x, p4i = v.y, p8r = v.z, p8i = v.w; \
        PRODUCT(p3, p1, p2) PRODUCT(p5, p1, p4) PRODUCT(p6, p2, p4) PRODUCT(p7, p3, p4)        \
        PRODUCT(p9, p1, p8) PRODUCT(p10, p2, p8) PRODUCT(p11, p3, p8) PRODUCT(p12, p4, p8)     \
        PRODUCT(p13, p5, p8) PRODUCT(p14, p6, p8) PRODUCT(p15, p7, p8)                         \
        TIMES(4, p1r, p1i) TIMES(8, p2r, p2i) TIMES(12, p3r, p3i) TIMES(1, p4r, p4i) TIMES(5, p5r, p5i) \
        TIMES(9, p6r, p6i) TIMES(13, p7r, p7i) TIMES(2, p8r, p8i) TIMES(6, p9r, p9i) TIMES(10, p10r, p10i) \
        TIMES(14, p11r, p11i) TIMES(3, p12r, p12i) TIMES(7, p13r, p13i) TIMES(11, p14r, p14i)  \
        TIMES(15, p15r, p15i)                                                                  \
    }
// Register i goes to place TO of shared memory, and is read anew from place FROM; both are expressions in i. Places are
// signed, so that what is constant in them becomes a part of the instruction.
#define EXCHANGE(TO, FROM)                                                    \
    BARRIER;                                                                  \
    if (WHOLE) {                                                              \
        UNROLL for (uint i = 0u; i < 16u; i++) {                              \
            RLX_F2 z;                                                         \
            z.x = zr[i];                                                      \
            z.y = zi[i];                                                      \
            both[TO] = z;                                                     \
        }                                                                     \
        BARRIER;                                                              \
        UNROLL for (uint i = 0u; i < 16u; i++) {                              \
            const RLX_F2 z = both[FROM];                                      \
            zr[i] = z.x;                                                      \
            zi[i] = z.y;                                                      \
        }                                                                     \
    } else {                                                                  \
        UNROLL for (uint i = 0u; i < 16u; i++) held[TO] = zr[i];              \
        BARRIER;                                                              \
        UNROLL for (uint i = 0u; i < 16u; i++) zr[i] = held[FROM];            \
        BARRIER;                                                              \
        UNROLL for (uint i = 0u; i < 16u; i++) held[TO] = zi[i];              \
        BARRIER;                                                              \
        UNROLL for (uint i = 0u; i < 16u; i++) zi[i] = held[FROM];            \
    }

RLX_FN void segment_power_body(PTR(f32) x, PTR(f32) window, PTR(f32) turns, PTR(f32) y, const uint rows,
                               const uint parts, const uint n, const uint count, const uint length, const uint hop,
                               const uint each, const float share) {
    if (GROUP >= rows * parts) return;
    const uint row = GROUP / parts, t = THREAD % LANES, across = THREAD / LANES;
    const uint begin = GROUP % parts * each, pairs = (count + 1u) / 2u;
    const uint end = begin + each < pairs ? begin + each : pairs;
    PTR(f32) p = SKIP(f32, x, row, n);
    PTR(f32) weights = SKIP(f32, window, t, 1u);
    const int to1 = int(across * 16u * PITCH + t), from1 = int(across * 16u * PITCH + t / R * PITCH + t % R);
    const int to2 = int(across * R * PLACE + t % R * PLACE + t / R * 17u);
    const int from2 = int(across * R * PLACE + t / 16u * 17u + t % 16u);
    float zr[16], zi[16], total[16];
    UNROLL for (uint i = 0u; i < 16u; i++) total[i] = 0.0f;
    for (uint at = begin; at < end; at += ACROSS) {
        const uint pair = at + across;
        const bool has_a = pair < end, has_b = has_a && 2u * pair + 1u < count;
        PTR(f32) a = SKIP(f32, p, has_a ? 2u * pair : 0u, hop);
        PTR(f32) b = SKIP(f32, a, has_b ? 1u : 0u, hop);
        float near_a = DETREND ? LOAD(f32, a, 0u) : 0.0f, near_b = DETREND ? LOAD(f32, b, 0u) : 0.0f;
        a = SKIP(f32, a, t, 1u);
        b = SKIP(f32, b, t, 1u);
        UNROLL for (uint i = 0u; i < 16u; i++) {
            const bool inside = !PADDED || t + i * LANES < length;
            zr[i] = has_a && inside ? LOAD(f32, a, i * LANES) - near_a : 0.0f;
            zi[i] = has_b && inside ? LOAD(f32, b, i * LANES) - near_b : 0.0f;
        }
        if (DETREND) {
            float sum_a = 0.0f, sum_b = 0.0f;
            UNROLL for (uint i = 0u; i < 16u; i++) {
                sum_a += zr[i];
                sum_b += zi[i];
            }
            near_a = lanes_sum(sum_a) * share;
            near_b = lanes_sum(sum_b) * share;
        }
        UNROLL for (uint i = 0u; i < 16u; i++) {
            const float w = !PADDED || t + i * LANES < length ? LOAD(f32, weights, i * LANES) : 0.0f;
            zr[i] = (DETREND ? zr[i] - near_a : zr[i]) * w;
            zi[i] = (DETREND ? zi[i] - near_b : zi[i]) * w;
        }
        SIXTEEN
        TURN(t)
        EXCHANGE(to1 + int(TURNED(i) * PITCH), from1 + int(i * R))
        SIXTEEN
        if (R > 1u) {
            TURN(LANES + t % R)
            EXCHANGE(to2 + int(TURNED(i)), from2 + int(i % R * PLACE + i / R * R * 17u))
            if (R == 16u) {
                SIXTEEN
            } else if (R == 8u) {
                UNROLL for (uint i = 0u; i < 8u; i++) {
                    const uint a = i % 4u + i / 4u * 8u, b = a + 4u;
                    const float br = zr[a] - zr[b], bi = zi[a] - zi[b];
                    zr[a] += zr[b];
                    zi[a] += zi[b];
                    zr[b] = br;
                    zi[b] = bi;
                }
                EIGHTH(5) QUARTER(6) THREE_EIGHTHS(7) EIGHTH(13) QUARTER(14) THREE_EIGHTHS(15)
                FOURS
            } else if (R == 4u) {
                FOURS
            } else {
                UNROLL for (uint i = 0u; i < 16u; i += 2u) {
                    const float br = zr[i] - zr[i + 1u], bi = zi[i] - zi[i + 1u];
                    zr[i] += zr[i + 1u];
                    zi[i] += zi[i + 1u];
                    zr[i + 1u] = br;
                    zi[i + 1u] = bi;
                }
            }
        }
        UNROLL for (uint i = 0u; i < 16u; i++) total[i] = FMA(zr[i], zr[i], FMA(zi[i], zi[i], total[i]));
    }
    BARRIER;
    UNROLL for (uint i = 0u; i < 16u; i++) {
        const uint c = t + i / R * LANES;
        const uint last = R == 16u ? TURNED(i) : R == 8u ? i % 4u * 2u + i % 8u / 4u : i % R;
        const uint k = R == 1u ? t + 16u * TURNED(i) : c / 16u + 16u * (c % 16u) + 256u * last;
        if (WHOLE) both[across * N + k].x = total[i];
        else held[across * N + k] = total[i];
    }
    BARRIER;
    for (uint k = THREAD; k <= N / 2u; k += 256u) {
        float sum = 0.0f;
        for (uint a = k; a < 4096u; a += N) sum += WHOLE ? both[a].x : held[a];
        if (k > 0u && k < N / 2u) {
            for (uint a = N - k; a < 4096u; a += N) sum += WHOLE ? both[a].x : held[a];
        }
        STORE(f32, y, (row * (N / 2u + 1u) + k) * parts + GROUP % parts, sum);
    }
}
