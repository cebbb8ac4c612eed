// y[row, part, k] = the one-sided power at frequency k, 0 to N / 2, of the segments that a workgroup transforms, added
// up. A segment is `length` samples of x, each times the window; N samples are transformed. DETREND: less their mean.
// PADDED: length < N. HALVES: segments overlap by half, so that a half is read once for both. Two segments are one complex
// transform, z = a + i b: |Z[k]|^2 + |Z[N - k]|^2 is twice the power of both at k, so that nothing has to be taken apart.
// The powers stay in registers from pair to pair. A sample in their middle is subtracted before a mean is taken.
#include "bodies/fft_registers.h"

SHARED float sums[8];

RLX_FN float plus(const float a, const float b) { return a + b; }
LANES_OP(lanes_sum, (LANES < 32u ? LANES : 32u), plus)

RLX_FN void segment_power_body(PTR(f32) x, PTR(f32) window, PTR(f32) turns, PTR(f32) y, const uint rows,
                               const uint parts, const uint n, const uint count, const uint length, const uint hop,
                               const uint each, const float share) {
    if (GROUP >= rows * parts) return;
    const uint row = GROUP / parts, t = THREAD % LANES, across = THREAD / LANES;
    const uint begin = GROUP % parts * each, pairs = (count + 1u) / 2u;
    const uint end = begin + each < pairs ? begin + each : pairs;
    PTR(f32) p = SKIP(f32, x, row, n);
    PTR(f32) weights = SKIP(f32, window, t, 1u);
    PTR(f32) here = SKIP(f32, turns, t, 4u);
    float zr[H], zi[H], total[H];
    UNROLL for (uint i = 0u; i < H; i++) total[i] = 0.0f;
    const uint none = rows >> 31;  // 0, which no compiler knows
    uint kept = 0u;
    for (uint at = begin; at < end; at += ACROSS) {
        // Of what the next pairs read first a word in each 32 bytes is read now, so that it is near when it is needed.
        uint ahead[4];
        const uint next = (2u * at + 2u * ACROSS - 1u) * hop + length + THREAD * 8u;
        UNROLL for (uint i = 0u; i < 4u; i++) {
            const uint place = next + i * 1024u;
            ahead[i] = AHEAD ? RLX_BITS(LOAD(f32, p, place < n ? place : 0u)) : 0u;
        }
        const uint pair = at + across;
        const bool has_a = pair < end, has_b = has_a && 2u * pair + 1u < count;
        PTR(f32) a = SKIP(f32, p, has_a ? 2u * pair : 0u, hop);
        PTR(f32) b = SKIP(f32, a, has_b ? 1u : 0u, hop);
        const float near_b = DETREND ? LOAD(f32, b, 0u) : 0.0f;
        const float near_a = DETREND && !HALVES ? LOAD(f32, a, 0u) : near_b;
        a = SKIP(f32, a, t, 1u);
        b = SKIP(f32, b, t, 1u);
        float mean_a = 0.0f, mean_b = 0.0f;
        UNROLL for (uint i = 0u; i < H; i++) {
            const bool inside = !PADDED || t + i * LANES < length;
            zr[i] = inside ? LOAD(f32, a, i * LANES) - near_a : 0.0f;
            if (!HALVES || i >= H / 2u) zi[i] = inside ? LOAD(f32, b, i * LANES) - near_b : 0.0f;
        }
        if (HALVES) {
            UNROLL for (uint i = 0u; i < H / 2u; i++) zi[i] = zr[i + H / 2u];
        }
        if (!has_b) {
            UNROLL for (uint i = 0u; i < H; i++) {
                zr[i] = has_a ? zr[i] : 0.0f;
                zi[i] = 0.0f;
            }
        }
        if (DETREND) {
            UNROLL for (uint i = 0u; i < H / 2u; i++) {
                mean_a += zr[i];
                mean_b += zi[i + H / 2u];
            }
            float middle_a = 0.0f, middle_b = 0.0f;
            UNROLL for (uint i = 0u; i < H / 2u; i++) {
                middle_a += zr[i + H / 2u];
                if (!HALVES) middle_b += zi[i];
            }
            mean_a = lanes_sum(mean_a + middle_a);
            mean_b = lanes_sum(mean_b + (HALVES ? middle_a : middle_b));
            if (LANES > 32u) {
                const uint warp = THREAD / 32u, first = THREAD / LANES * (LANES / 32u);
                if (THREAD % 32u == 0u) {
                    sums[warp] = mean_a;
                    sums[4u + warp] = mean_b;
                }
                BARRIER;
                mean_a = sums[first];
                mean_b = sums[4u + first];
                UNROLL for (uint i = 1u; i < LANES / 32u; i++) {
                    mean_a += sums[first + i];
                    mean_b += sums[4u + first + i];
                }
            }
            mean_a *= share;
            mean_b = has_b ? mean_b * share : 0.0f;
        }
        // The first layer, of numbers half a segment apart, with the window.
        UNROLL for (uint i = 0u; i < H / 2u; i++) {
            const uint j = i + H / 2u;
            const float v = !PADDED || t + i * LANES < length ? LOAD(f32, weights, i * LANES) : 0.0f;
            const float w = !PADDED || t + j * LANES < length ? LOAD(f32, weights, j * LANES) : 0.0f;
            const float ar = (zr[i] - mean_a) * v, ai = (zi[i] - mean_b) * v;
            const float br = zr[j] - mean_a, bi = zi[j] - mean_b;
            zr[i] = FMA(br, w, ar);
            zi[i] = FMA(bi, w, ai);
            zr[j] = FMA(-br, w, ar);
            zi[j] = FMA(-bi, w, ai);
        }
        TRANSFORM({ if (LANES <= 32u) { WARP_MEET; } else if (!DETREND) { BARRIER; } })
        UNROLL for (uint i = 0u; i < H; i++) total[i] = FMA(zr[i], zr[i], FMA(zi[i], zi[i], total[i]));
        UNROLL for (uint i = 0u; i < 4u; i++) kept |= ahead[i] & none;
    }
    if (kept != 0u) total[0] = 0.0f;
    BARRIER;
    UNROLL for (uint i = 0u; i < H; i++) {
        const uint k = across * N + frequency(t, i);
        if (SPREAD == 2u) both[k].x = total[i];
        else held[k] = total[i];
    }
    BARRIER;
    for (uint k = THREAD; k <= N / 2u; k += 128u) {
        float sum = 0.0f;
        for (uint a = k; a < ACROSS * N; a += N) sum += SPREAD == 2u ? both[a].x : held[a];
        if (k > 0u && k < N / 2u) {
            for (uint a = N - k; a < ACROSS * N; a += N) sum += SPREAD == 2u ? both[a].x : held[a];
        }
        STORE(f32, y, GROUP * (N / 2u + 1u) + k, sum);
    }
}
