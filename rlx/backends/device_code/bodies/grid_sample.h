// y[n, c, o] = x[n, c] interpolated at the coordinates grid[n, o]. MODE: 0 linear, 1 nearest, 2 cubic. PADDING says
// what elements outside the image are: 0 zeros, 1 the nearest element of the border, 2 the reflection. ALIGNED: -1 and
// 1 are the centres of the outermost elements, not their edges. DIMS is the number of spatial axes, 2 or 3. T is the
// storage dtype of x and y; the grid is f32. A thread computes one output position of eight channels. meta holds the
// number of images, of channels, three input sizes (the first is 1 for two axes) and the number of output positions of
// an image.
#define TAPS (MODE == 1u ? 1u : MODE == 0u ? 2u : 4u)
#define META(i) LOAD(u32, meta, i)
#include "prims.h"

RLX_FN float between(const float c, const float low, const float high) {
    return c < low ? low : c > high ? high : c;
}

RLX_FN float padded(const float c, const float size) {
    if (PADDING == 1u) return between(c, 0.0f, size - 1.0f);
    if (PADDING == 2u) {
        const float low = ALIGNED ? 0.0f : -0.5f, span = ALIGNED ? size - 1.0f : size;
        if (span == 0.0f) return 0.0f;
        const float away = RLX_ABS(c - low);
        const float flips = RLX_FLOOR(p_div_f(away, span));
        const float rest = away - flips * span;
        const bool even = flips - RLX_FLOOR(flips * 0.5f) * 2.0f == 0.0f;
        return between((even ? rest : span - rest) + low, 0.0f, size - 1.0f);
    }
    return c;
}

// A coordinate of the grid as a position in elements along an axis of that size.
RLX_FN float located(const float given, const float size) {
    const float g = IS_NAN(given) ? -1.0f : given;
    const float c = ALIGNED ? (g + 1.0f) * (0.5f * (size - 1.0f)) : ((g + 1.0f) * size - 1.0f) * 0.5f;
    const float near = between(c, -4194304.0f, 4194304.0f);
    return MODE == 2u ? near : padded(near, size);
}

RLX_FN float first_place(const float c) {
    if (MODE == 1u) return RLX_ROUND(c);
    return MODE == 0u ? RLX_FLOOR(c) : RLX_FLOOR(c) - 1.0f;
}

// The weights of cubic convolution (Keys, 1981) at a distance of 1 to 2, then of 0 to 1.
RLX_FN float cubic_far(const float t) { return ((t * -0.75f + 3.75f) * t - 6.0f) * t + 3.0f; }
RLX_FN float cubic_near(const float t) { return (t * 1.25f - 2.25f) * t * t + 1.0f; }

RLX_FN float tap_weight(const float c, const uint k) {
    if (MODE == 1u) return 1.0f;
    const float t = c - RLX_FLOOR(c);
    if (MODE == 0u) return k == 0u ? 1.0f - t : t;
    return k == 0u ? cubic_far(t + 1.0f) : k == 1u ? cubic_near(t) : k == 2u ? cubic_near(1.0f - t) : cubic_far(2.0f - t);
}

// The element at integer coordinates, and whether it lies in the image or is padded.
RLX_FN uint tap_index(const float place, const float size, RLX_OUT(bool) inside) {
    const float p = MODE == 2u ? padded(place, size) : place;
    inside = PADDING != 0u || (p >= 0.0f && p <= size - 1.0f);
    return uint(between(p, 0.0f, size - 1.0f));
}

RLX_FN void grid_sample_body(PTR(T) x, PTR(f32) grid, PTR(u32) meta, PTR(T) y, const uint total) {
    const uint id = GROUP * 256u + THREAD;
    if (id >= total) return;
    const uint channels = META(1u), places = META(5u), blocks = (channels + 7u) / 8u;
    const uint o = id % places, block = id / places % blocks, n = id / places / blocks;
    const uint s0 = META(2u), s1 = META(3u), s2 = META(4u);
    const float f0 = float(s0), f1 = float(s1), f2 = float(s2);
    const uint g = (n * places + o) * DIMS;
    const float c2 = located(LOAD(f32, grid, g), f2), c1 = located(LOAD(f32, grid, g + 1u), f1);
    const float c0 = DIMS == 3u ? located(LOAD(f32, grid, g + 2u), f0) : 0.0f;
    const float a0 = DIMS == 3u ? first_place(c0) : 0.0f, a1 = first_place(c1), a2 = first_place(c2);
    const uint slab = s0 * s1 * s2, most = channels - block * 8u < 8u ? channels - block * 8u : 8u;
    const uint first = n * channels + block * 8u;
    float sums[8];
    UNROLL for (uint c = 0u; c < 8u; c++) sums[c] = 0.0f;
    UNROLL for (uint k0 = 0u; k0 < (DIMS == 3u ? TAPS : 1u); k0++) {
        UNROLL for (uint k1 = 0u; k1 < TAPS; k1++) {
            UNROLL for (uint k2 = 0u; k2 < TAPS; k2++) {
                bool in0 = true, in1 = true, in2 = true;
                uint i0 = 0u;
                if (DIMS == 3u) i0 = tap_index(a0 + float(k0), f0, in0);
                const uint i1 = tap_index(a1 + float(k1), f1, in1), i2 = tap_index(a2 + float(k2), f2, in2);
                if (in0 && in1 && in2) {
                    float w = tap_weight(c1, k1) * tap_weight(c2, k2);
                    if (DIMS == 3u) w = tap_weight(c0, k0) * tap_weight(c1, k1) * tap_weight(c2, k2);
                    const uint at = (i0 * s1 + i1) * s2 + i2;
                    UNROLL for (uint c = 0u; c < 8u; c++) {
                        if (c < most) {
                            const float v = LOAD(T, x, (first + c) * slab + at);
                            sums[c] = MODE == 1u ? v : FMA(w, v, sums[c]);
                        }
                    }
                }
            }
        }
    }
    UNROLL for (uint c = 0u; c < 8u; c++) {
        if (c < most) STORE(T, y, (first + c) * places + o, sums[c]);
    }
}
