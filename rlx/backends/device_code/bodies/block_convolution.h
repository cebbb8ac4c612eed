// y (rows, n + taps - 1) = the convolution of x (rows, n) with a filter of `taps` numbers, whose transform of length N is
// `spectrum`, over N: lines of N pairs, `apart` pairs from that of one row to the next. A block of N samples, transformed,
// times the spectrum and transformed back, holds N - taps + 1 elements of y behind the first taps - 1 (overlap-save). Two
// blocks are one complex transform, which the spectrum of a real filter does not mix. Backwards, real and imaginary parts
// change places before and after it.
#include "bodies/fft_registers.h"

// The place in shared memory of a transform's k-th number. Both of frequency(t, i) and of t + i LANES it is the sum of that
// of the thread and that of the register, which is known when the kernel is compiled.
#define SPACED(k) int((k) + ((k) >> 5))

RLX_FN void block_convolution_body(PTR(f32) x, PTR(b8) spectrum, PTR(f32) turns, PTR(f32) y, const uint rows,
                                   const uint n, const uint taps, const uint apart) {
    const uint step = N - taps + 1u, size = n + taps - 1u, count = (size + step - 1u) / step;
    const uint groups = ((count + 1u) / 2u + ACROSS - 1u) / ACROSS;
    if (GROUP >= rows * groups) return;
    const uint row = GROUP / groups, t = THREAD % LANES, across = THREAD / LANES;
    const uint first = (GROUP % groups * ACROSS + across) * 2u * step;
    PTR(f32) p = SKIP(f32, x, row, n);
    PTR(b8) line = SKIP(b8, spectrum, row, apart);
    line = SKIP(b8, line, frequency(t, 0u), 1u);
    PTR(f32) here = SKIP(f32, turns, t, 4u);
    float zr[H], zi[H];
    if (first >= taps && first + 2u * step < n) {
        PTR(f32) a = SKIP(f32, p, first - taps + 1u + t, 1u);
        PTR(f32) b = SKIP(f32, a, step, 1u);
        UNROLL for (uint i = 0u; i < H; i++) {
            zr[i] = LOAD(f32, a, i * LANES);
            zi[i] = LOAD(f32, b, i * LANES);
        }
    } else {
        UNROLL for (uint i = 0u; i < H; i++) {
            const uint from = first + t + i * LANES - (taps - 1u), next = from + step;  // wraps before the signal
            const float va = LOAD(f32, p, from < n ? from : 0u), vb = LOAD(f32, p, next < n ? next : 0u);
            zr[i] = from < n ? va : 0.0f;
            zi[i] = next < n ? vb : 0.0f;
        }
    }
    const uint passes = 2u + (rows >> 31);  // 2, which no compiler knows: one loop is half the code
    for (uint pass = 0u; pass < passes; pass++) {
        UNROLL for (uint i = 0u; i < H / 2u; i++) PLAIN(i, i + H / 2u)
        TRANSFORM({ if (LANES <= 32u) { WARP_MEET; } else { BARRIER; } })
        if (pass == 0u) {
            UNROLL for (uint i = 0u; i < H; i++) {
                const uvec2 bits = line AT(frequency(0u, i));
                const float fr = RLX_FLOAT(bits.x), fi = RLX_FLOAT(bits.y), zx = zr[i], zy = zi[i];
                zi[i] = FMA(zx, fr, -(zy * fi));
                zr[i] = FMA(zx, fi, zy * fr);
            }
            const int to = int(across * AREA) + SPACED(frequency(t, 0u)), from = int(across * AREA) + SPACED(t);
            if (LANES <= 32u) {
                WARP_MEET;
                EXCHANGE(to + SPACED(frequency(0u, i)), from + SPACED(i * LANES), WARP_MEET)
            } else {
                BARRIER;
                EXCHANGE(to + SPACED(frequency(0u, i)), from + SPACED(i * LANES), BARRIER)
            }
        }
    }
    PTR(f32) made = SKIP(f32, y, row, size);
    UNROLL for (uint i = 0u; i < H; i++) {
        const uint m = frequency(t, i), to = first + m - (taps - 1u);
        if (m >= taps - 1u && to < size) STORE(f32, made, to, zi[i]);
        if (m >= taps - 1u && to + step < size) STORE(f32, made, to + step, zr[i]);
    }
}
