// y[row, s] = the sum over segments of x (rows, N / 2 + 1, count) pairs, transformed back, times the window: sample s of
// `size` is sample s + start of a signal whose segments lie `hop` samples apart and are `length` long, N or less. A
// workgroup transforms 2 ACROSS segments and writes `blocks` times hop samples, those that no other segment reaches.
// Two spectra A, B are one complex transform, of A + i B, whose real and imaginary parts change places before and after it.
#include "bodies/fft_registers.h"

#define ROW (N + N / 256u)

RLX_FN void segment_signal_body(PTR(b8) x, PTR(f32) window, PTR(f32) turns, PTR(f32) y, const uint rows, const uint count,
                                const uint length, const uint hop, const uint start, const uint size, const uint blocks) {
    const uint groups = (start + size + blocks * hop - 1u) / (blocks * hop);
    if (GROUP >= rows * groups) return;
    const uint row = GROUP / groups, t = THREAD % LANES, across = THREAD / LANES;
    const uint before = 2u * ACROSS - blocks;
    // The first segment of the workgroup, plus `before`, which are segments that earlier workgroups transform too.
    const uint first = GROUP % groups * blocks;
    PTR(f32) here = SKIP(f32, turns, t, 4u);
    const uint c = THREAD % ACROSS, a = first + 2u * c - before, b = a + 1u;  // wraps before segment 0
    for (uint k = THREAD / ACROSS; k <= N / 2u; k += 128u / ACROSS) {
        PTR(b8) line = SKIP(b8, x, row * (N / 2u + 1u) + k, count);
        const uvec2 u = line AT(a < count ? a : 0u), v = line AT(b < count ? b : 0u);
        const bool real = k == 0u || k == N / 2u;
        const float ar = a < count ? RLX_FLOAT(u.x) : 0.0f, ai = a < count && !real ? RLX_FLOAT(u.y) : 0.0f;
        const float br = b < count ? RLX_FLOAT(v.x) : 0.0f, bi = b < count && !real ? RLX_FLOAT(v.y) : 0.0f;
        const int one = int(c * ROW + k), other = int(c * ROW + (N - k) % N);
        if (SPREAD == 2u) {
            RLX_F2 z;
            z.x = ai + br;
            z.y = ar - bi;
            both[one] = z;
            z.x = br - ai;
            z.y = ar + bi;
            both[other] = z;
        } else {
            held[one] = ai + br;
            held[one + int(PLACES)] = ar - bi;
            held[other] = br - ai;
            held[other + int(PLACES)] = ar + bi;
        }
    }
    BARRIER;
    float zr[H], zi[H];
    UNROLL for (uint i = 0u; i < H; i++) {
        const int from = int(across * ROW + t) + int(i * LANES);
        if (SPREAD == 2u) {
            const RLX_F2 z = both[from];
            zr[i] = z.x;
            zi[i] = z.y;
        } else {
            zr[i] = held[from];
            zi[i] = held[from + int(PLACES)];
        }
    }
    UNROLL for (uint i = 0u; i < H / 2u; i++) PLAIN(i, i + H / 2u)
    TRANSFORM(BARRIER)
    BARRIER;
    UNROLL for (uint i = 0u; i < H; i++) {
        const uint at = frequency(t, i);
        const float w = !PADDED || at < length ? LOAD(f32, window, at) * (1.0f / float(N)) : 0.0f;
        const int to = int(across * ROW + at);
        if (SPREAD == 2u) {
            RLX_F2 z;
            z.x = zi[i] * w;
            z.y = zr[i] * w;
            both[to] = z;
        } else {
            held[to] = zi[i] * w;
            held[to + int(PLACES)] = zr[i] * w;
        }
    }
    BARRIER;
    PTR(f32) made = SKIP(f32, y, row, size);
    for (uint block = before; block < 2u * ACROSS; block++) {
        for (uint r = THREAD; r < hop; r += 128u) {
            float sum = 0.0f;
            for (uint s = block - before; s <= block; s++) {
                const uint at = (block - s) * hop + r;
                if (at < length) {
                    const int from = int(s / 2u * ROW + at);
                    if (SPREAD == 2u) sum += s % 2u == 0u ? both[from].x : both[from].y;
                    else sum += held[from + int(s % 2u * PLACES)];
                }
            }
            const uint to = (first + block - before) * hop + r - start;
            if (to < size) STORE(f32, made, to, sum);
        }
    }
}
