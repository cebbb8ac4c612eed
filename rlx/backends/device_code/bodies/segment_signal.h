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
    const uint c = THREAD % ACROSS, begin = THREAD / ACROSS, a = first + 2u * c - before, b = a + 1u;  // wraps before 0
    const bool has_a = a < count, has_b = b < count;
    PTR(b8) line = SKIP(b8, x, row * (N / 2u + 1u) + begin, count);
    // Frequencies begin, begin + 128 / ACROSS, ...: those of a register lie at constant distances.
    const int place = int(c * ROW), up = place + int(begin), down = place + int(N - begin);
    const uint apart = 128u / ACROSS * count, from_a = has_a ? a : 0u, from_b = has_b ? b : 0u;
    UNROLL for (uint i = 0u; i <= H / 2u; i++) {
        if (i < H / 2u || begin == 0u) {
            const uvec2 u = line AT(i * apart + from_a), v = line AT(i * apart + from_b);
            const bool real = (i == 0u || i == H / 2u) && begin == 0u;
            const float ar = has_a ? RLX_FLOAT(u.x) : 0.0f, ai = has_a && !real ? RLX_FLOAT(u.y) : 0.0f;
            const float br = has_b ? RLX_FLOAT(v.x) : 0.0f, bi = has_b && !real ? RLX_FLOAT(v.y) : 0.0f;
            put_number(up + int(i * (128u / ACROSS)), ai + br, ar - bi);
            if (i > 0u || begin > 0u) put_number(down - int(i * (128u / ACROSS)), br - ai, ar + bi);
        }
    }
    BARRIER;
    float zr[H], zi[H];
    UNROLL for (uint i = 0u; i < H; i++) {
        const RLX_F2 z = number_at(int(across * ROW + t) + int(i * LANES));
        zr[i] = z.x;
        zi[i] = z.y;
    }
    UNROLL for (uint i = 0u; i < H / 2u; i++) PLAIN(i, i + H / 2u)
    TRANSFORM(BARRIER)
    BARRIER;
    UNROLL for (uint i = 0u; i < H; i++) {
        const uint at = frequency(t, i);
        const float w = !PADDED || at < length ? LOAD(f32, window, at) * (1.0f / float(N)) : 0.0f;
        put_number(int(across * ROW + at), zi[i] * w, zr[i] * w);
    }
    BARRIER;
    PTR(f32) made = SKIP(f32, y, row, size);
    for (uint block = before; block < 2u * ACROSS; block++) {
        for (uint r = THREAD; r < hop; r += 128u) {
            float sum = 0.0f;
            for (uint s = block - before; s <= block; s++) {
                const uint at = (block - s) * hop + r;
                if (at < length) {
                    const RLX_F2 z = number_at(int(s / 2u * ROW + at));
                    sum += s % 2u == 0u ? z.x : z.y;
                }
            }
            const uint to = (first + block - before) * hop + r - start;
            if (to < size) STORE(f32, made, to, sum);
        }
    }
}
