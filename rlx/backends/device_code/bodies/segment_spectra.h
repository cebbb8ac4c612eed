// y[row, k, segment] = the transform at frequency k, 0 to N / 2, of `count` segments of x, each `hop` samples after the one
// before, the first one `start` samples before the signal, which has zeros around it. A segment is `length` samples, each
// times the window; N samples are transformed. PADDED: length < N. HALVES: segments overlap by half, so that a half is
// read once for both. Two segments a, b are one complex transform, z = a + i b, of which Z[k] and Z[N - k] make both at k.
// Each is scaled by a power of two first, so that the rounding errors of a loud one do not reach a quiet one; one that is
// not finite is left out and written as NaN.
// Threads that write are neighbours by segment, and a workgroup writes 2 ACROSS neighbours.
#include "bodies/fft_registers.h"

#define ROW (N + N / 256u)
#ifdef RLX_GLSL
#define ATOMIC_MAX(place, value) atomicMax(place, value)
#else
#define ATOMIC_MAX(place, value) atomicMax(&(place), value)
#endif
SHARED uint loudest[2u * ACROSS];  // the bits of the largest magnitude of each segment: larger numbers have larger bits

// The exponent of the scale of a segment, whose factor is 2^(127 - e), and the factor that undoes it: infinity for one that
// is not finite, whose zeros it makes NaN.
RLX_FN uint level(const uint bits) {
    const uint e = bits >> 23;
    return e == 0u ? 1u : e > 253u ? 253u : e;
}
RLX_FN float restore(const uint bits) { return RLX_FLOAT((bits >= 0x7f800000u ? 255u : level(bits)) << 23); }

RLX_FN void segment_spectra_body(PTR(f32) x, PTR(f32) window, PTR(f32) turns, PTR(b8) y, const uint rows, const uint n,
                                 const uint count, const uint length, const uint hop, const uint start) {
    const uint groups = ((count + 1u) / 2u + ACROSS - 1u) / ACROSS;
    if (GROUP >= rows * groups) return;
    const uint row = GROUP / groups, t = THREAD % LANES, across = THREAD / LANES;
    const uint segment = (GROUP % groups * ACROSS + across) * 2u;
    PTR(f32) p = SKIP(f32, x, row, n);
    PTR(f32) weights = SKIP(f32, window, t, 1u);
    PTR(f32) here = SKIP(f32, turns, t, 4u);
    const uint first = segment * hop;  // in a signal with `start` zeros before it
    if (THREAD < 2u * ACROSS) loudest[THREAD] = 0u;
    BARRIER;
    float zr[H], zi[H];
    if (segment + 1u < count && first >= start && first - start + hop + length <= n) {
        PTR(f32) a = SKIP(f32, p, first - start + t, 1u);
        PTR(f32) b = SKIP(f32, a, hop, 1u);
        UNROLL for (uint i = 0u; i < H; i++) {
            const bool inside = !PADDED || t + i * LANES < length;
            zr[i] = inside ? LOAD(f32, a, i * LANES) : 0.0f;
            if (!HALVES || i >= H / 2u) zi[i] = inside ? LOAD(f32, b, i * LANES) : 0.0f;
        }
        if (HALVES) {
            UNROLL for (uint i = 0u; i < H / 2u; i++) zi[i] = zr[i + H / 2u];
        }
    } else {
        UNROLL for (uint i = 0u; i < H; i++) {
            const uint at = t + i * LANES, from = first + at - start, next = from + hop;
            const bool a = segment < count && at < length && from < n;
            const bool b = segment + 1u < count && at < length && next < n;
            const float va = LOAD(f32, p, a ? from : 0u), vb = LOAD(f32, p, b ? next : 0u);
            zr[i] = a ? va : 0.0f;
            zi[i] = b ? vb : 0.0f;
        }
    }
    uint largest_a = 0u, largest_b = 0u;
    UNROLL for (uint i = 0u; i < H; i++) {
        const uint a = RLX_BITS(zr[i]) & 0x7fffffffu, b = RLX_BITS(zi[i]) & 0x7fffffffu;
        largest_a = a > largest_a ? a : largest_a;
        largest_b = b > largest_b ? b : largest_b;
    }
    ATOMIC_MAX(loudest[2u * across], largest_a);
    ATOMIC_MAX(loudest[2u * across + 1u], largest_b);
    BARRIER;
    const uint bits_a = loudest[2u * across], bits_b = loudest[2u * across + 1u];
    const float scale_a = RLX_FLOAT((254u - level(bits_a)) << 23), scale_b = RLX_FLOAT((254u - level(bits_b)) << 23);
    UNROLL for (uint i = 0u; i < H; i++) {
        zr[i] = bits_a < 0x7f800000u ? zr[i] * scale_a : 0.0f;
        zi[i] = bits_b < 0x7f800000u ? zi[i] * scale_b : 0.0f;
    }
    // The first layer, of numbers half a segment apart, with the window, of which half is taken for the sums below.
    UNROLL for (uint i = 0u; i < H / 2u; i++) {
        const uint j = i + H / 2u;
        const float v = 0.5f * (!PADDED || t + i * LANES < length ? LOAD(f32, weights, i * LANES) : 0.0f);
        const float w = 0.5f * (!PADDED || t + j * LANES < length ? LOAD(f32, weights, j * LANES) : 0.0f);
        const float ar = zr[i] * v, ai = zi[i] * v, br = zr[j], bi = zi[j];
        zr[i] = FMA(br, w, ar);
        zi[i] = FMA(bi, w, ai);
        zr[j] = FMA(-br, w, ar);
        zi[j] = FMA(-bi, w, ai);
    }
    TRANSFORM({})
    BARRIER;
    UNROLL for (uint i = 0u; i < H; i++) {
        const int k = int(across * ROW + frequency(t, i));
        if (SPREAD == 2u) {
            RLX_F2 z;
            z.x = zr[i];
            z.y = zi[i];
            both[k] = z;
        } else {
            held[k] = zr[i];
            held[k + int(PLACES)] = zi[i];
        }
    }
    BARRIER;
    const uint column = GROUP % groups * (2u * ACROSS) + THREAD % (2u * ACROSS), c = THREAD % (2u * ACROSS) / 2u;
    if (column >= count) return;
    const float back = restore(loudest[THREAD % (2u * ACROSS)]);
    for (uint k = THREAD / (2u * ACROSS); k <= N / 2u; k += 64u / ACROSS) {
        const int one = int(c * ROW + k), other = int(c * ROW + (N - k) % N);
        RLX_F2 u, v, z;
        if (SPREAD == 2u) {
            u = both[one];
            v = both[other];
        } else {
            u.x = held[one];
            u.y = held[one + int(PLACES)];
            v.x = held[other];
            v.y = held[other + int(PLACES)];
        }
        const bool second = THREAD % 2u != 0u;
        z.x = second ? u.y + v.y : u.x + v.x;
        z.y = second ? v.x - u.x : u.y - v.y;
        uvec2 bits;
        bits.x = RLX_BITS(z.x * back);
        bits.y = RLX_BITS(z.y * back);
        PTR(b8) line = SKIP(b8, y, row * (N / 2u + 1u) + k, count);
        line AT(column) = bits;
    }
}
