// y[n, t, g, row] = act(sum over taps and channels of w[g, row, tap, channel] * x[n, t * step + tap, g, channel] + bias):
// convolution of halves (T: f16 or bf16) with channels last, as a product by matrix instructions: a row of A is what a
// pixel of y sees of x, never stored; B has the weights of an output channel in a row; products are exact, sums are f32.
// A unit is sixteen bytes, eight channels of one pixel or tap: every pixel of x has `deep` of them for each group of the
// convolution, and every tap of w has as many; those beyond the channels are zero in both.
// TILE: of BM pixels and BN channels; STAGES: see conv_tiles.h.
// PLACED: the pixels of a phase lie apart in y (else pixel after pixel); ACTIVATION, BIAS: see activation.h, bias.h;
// C_QUADS: y may be written four at a time; WIDE: y is f32. With several splits the sums of `chunk` slices each go to y
// one after another, without bias and activation. RESIDUAL: 1: `other`, which lies as y does, is added to the rounded
// result; 2: and what is negative then becomes zero.
// PARTS: T is bf16, and each element of x and w is the sum of so many parts (conv_parts.h), all first parts before all
// second ones. The products of 16 terms are added to the sums in f32; y and `other` are f32. A sum that is not finite is computed
// again, from whole elements: a part of an element may be infinite though the product is not, or a product no number.
// meta: input sizes (3), steps (3), units of a pixel of x, units of a row of w, elements of a pixel of y, pixels of an image
// of y, steps in pixels of y along t (3), pixels of y, units of a part of x, units of a part of w; then for each phase its
// taps, the first of them, positions (3), first pixel of y, 0, 0. taps[k]: which tap of w it is, and where it looks along
// the three axes, as i32.
// IN_TF32: T is f32, a unit is four channels, and elements are rounded to tf32 as they are multiplied; warpgroups, which
// read w from shared memory, take a w that is rounded already. A sum that is not finite is computed again here too.
#ifdef IN_PARTS
#define PART_A PART
#define PART_B PART
#endif
#if defined(IN_PARTS) || defined(IN_TF32)
#define WHOLE_RESULTS     // y and `other` are f32
#define FOUR uvec4  // channels of `other`
#else
#define FOUR uvec2
#endif
#define TA T
#define TB T
#ifdef IN_TF32
#define MATRIX tf32
#else
#define MATRIX T
#endif
#include "conv_tiles.h"
#define ACROSS (BK / 8u)  // units of a row of a slice
#ifdef WARPGROUPS
#define PART ((BM + BN) * ACROSS)
#define CELL_A(row, unit) PANEL_UNIT(row, unit)
#define CELL_B(row, unit) (BM * ACROSS + PANEL_UNIT(row, unit))
#else
#define ROW (ACROSS + 1u)
#define PART ((BM + BN) * ROW)
#define CELL_A(row, unit) ((row) * ROW + (unit))
#define CELL_B(row, unit) ((BM + (row)) * ROW + (unit))
#define PLACE_A(i, kk) (side * SLICE + CELL_A(WARP_ROW(i), kk * 2u))
#define PLACE_B(j, kk) (side * SLICE + CELL_B(WARP_COLUMN + j * 16u, kk * 2u))
#endif
#define SLICE (PARTS * PART)
#define LOADS_A (BM * ACROSS / THREADS)  // units of a part of a slice for each thread
#define LOADS_B (BN * ACROSS / THREADS)
#define LINES (THREADS / ACROSS)  // rows of a slice that the threads load at once
// Slices that are loaded ahead: of whole elements warpgroups still read the last one while the next is loaded.
#if defined(WARPGROUPS) && !defined(WHOLE_RESULTS)
#define AHEAD (STAGES - 2u)
#else
#define AHEAD (STAGES - 1u)
#endif
#ifdef IN_TF32
#define T_BYTES 4u  // bytes
#else
#define T_BYTES 2u
#endif
#define FOURS (4u / T_BYTES)  // of channels in a unit
#define PIXELS (128u / WARP_COLUMNS)  // that a warp puts at once
#define PUTS (16u / PIXELS)
#define NOWHERE 0xffffffffu
#define META(i) LOAD(u32, meta, i)
#define PHASE(i) LOAD(u32, meta, 16u + phase * 8u + (i))

#include "matmul_out.h"

UNITS(STAGES * SLICE > STAGE ? STAGES * SLICE : STAGE)

// Loads the next slice of this thread's units: into the part `side` of shared memory, or into registers, where bit f of
// `real` says which of them are not zero. Then moves on by a slice.
#define LOAD_SLICE(side)                                                                                           \
    {                                                                                                              \
        const bool inside = tap < tap_end && unit < deep;                                                          \
        real = 0u;                                                                                                 \
        UNROLL for (uint f = 0u; f < LOADS_A; f++) {                                                               \
            const uint q0 = at[f].x + place.y, q1 = at[f].y + place.z, q2 = at[f].z + place.w;                     \
            const bool there = inside && q0 < s0 && q1 < s1 && q2 < s2;                                            \
            const uint i = there ? at[f].w + ((q0 * s1 + q1) * s2 + q2) * pixel + unit : 0u;                       \
            UNROLL for (uint p = 0u; p < PARTS; p++) {                                                             \
                if (STAGES > 1u) {                                                                                 \
                    LOAD_NEAR(held_a[f * PARTS + p],                                                               \
                              (side) * SLICE + p * PART + CELL_A(line + f * LINES, across), x,                     \
                              UNIT_OF(i, p, 14u), there)                                                           \
                } else {                                                                                           \
                    held_a[f * PARTS + p] = LOAD_UNIT(x, UNIT_OF(i, p, 14u));                                      \
                }                                                                                                  \
            }                                                                                                      \
            if (STAGES == 1u) real |= there ? 1u << f : 0u;                                                        \
        }                                                                                                          \
        UNROLL for (uint f = 0u; f < LOADS_B; f++) {                                                               \
            const bool there = inside && n0 + line + f * LINES < rows;                                             \
            const uint i = there ? row_b + f * (LINES * w_row) + place.x * deep + unit : 0u;                       \
            UNROLL for (uint p = 0u; p < PARTS; p++) {                                                             \
                if (STAGES > 1u) {                                                                                 \
                    LOAD_AHEAD(held_b[f * PARTS + p],                                                              \
                               (side) * SLICE + p * PART + CELL_B(line + f * LINES, across), w,                    \
                               UNIT_OF(i, p, 15u), there)                                                          \
                } else {                                                                                           \
                    held_b[f * PARTS + p] = LOAD_UNIT(w, UNIT_OF(i, p, 15u));                                      \
                }                                                                                                  \
            }                                                                                                      \
            if (STAGES == 1u) real |= there ? 1u << (LOADS_A + f) : 0u;                                            \
        }                                                                                                          \
        if (by_taps) {                                                                                             \
            tap += 1u;                                                                                             \
            if (tap == tap_end) {                                                                                  \
                tap = tap_first;                                                                                   \
                unit += ACROSS;                                                                                    \
            }                                                                                                      \
            place = taps AT(tap);                                                                                  \
        } else {                                                                                                   \
            unit += ACROSS;                                                                                        \
            if (unit >= deep) {                                                                                    \
                tap += unit / deep;                                                                                \
                unit %= deep;                                                                                      \
                place = taps AT(tap < tap_end ? tap : tap_first);                                                  \
            }                                                                                                      \
        }                                                                                                          \
    }

// Four neighbours of a unit, its last ones or its first: the sums of their parts; zeros where the unit is not `there`.
RLX_FN vec4 whole_four(PTR(T) p, const uint at, const uint plane, const bool there, const bool last) {
    vec4 v = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    if (!there) return v;
#ifdef IN_TF32
    return LOAD4(f32, p, at);
#else
    UNROLL for (uint part = 0u; part < PARTS; part++) {
        const uvec4 u = LOAD_UNIT(p, at + part * plane);
        const uint xy = last ? u.z : u.x, zw = last ? u.w : u.y;
        const vec4 more = VEC4(low_value(xy), high_value(xy), low_value(zw), high_value(zw));
        ADD_QUAD(v, more)
    }
    return v;
#endif
}

// What slices `begin` to `end` - 1 contribute to pixel m, row `row` of w, by multiply-adds of whole elements.
RLX_FN float plain_sum(PTR(T) x, PTR(T) w, PTR(b16) taps, PTR(u32) meta, const uint phase, const uint deep, const uint g,
                       const uint m, const uint row, const uint begin, const uint end) {
    const uint count = PHASE(0u), first = PHASE(1u), t1 = PHASE(3u), t2 = PHASE(4u), positions = PHASE(2u) * t1 * t2;
    const uint s0 = META(0u), s1 = META(1u), s2 = META(2u), t = m % positions;
    const uint p0 = t / (t1 * t2) * META(3u), p1 = t / t2 % t1 * META(4u), p2 = t % t2 * META(5u);
    const uint start = m / positions * (s0 * s1 * s2) * META(6u) + g * deep;
    const bool by_taps = deep % ACROSS == 0u && count > 1u;
    float sum = 0.0f;
    ROLLED for (uint k = begin * ACROSS; k < end * ACROSS; k++) {
        const uint slice = k / ACROSS, tap = by_taps ? slice % count : k / deep;
        const uint unit = by_taps ? slice / count * ACROSS + k % ACROSS : k % deep;
        if (tap >= count) continue;
        const uvec4 place = taps AT(first + tap);
        const uint q0 = p0 + place.y, q1 = p1 + place.z, q2 = p2 + place.w;
        const uint i = start + ((q0 * s1 + q1) * s2 + q2) * META(6u) + unit;
        ROLLED for (uint side = 0u; side < FOURS; side++) {
            const vec4 a = whole_four(x, i, META(14u), q0 < s0 && q1 < s1 && q2 < s2, side != 0u);
            const vec4 b = whole_four(w, row * META(7u) + place.x * deep + unit, META(15u), true, side != 0u);
            sum = FMA(a.x, b.x, sum);
            sum = FMA(a.y, b.y, sum);
            sum = FMA(a.z, b.z, sum);
            sum = FMA(a.w, b.w, sum);
        }
    }
    return sum;
}

// Four halves, rounded by instructions in CUDA.
#if defined(RLX_GLSL) || defined(WHOLE_RESULTS)
#define STORE_FOUR(p, i, v) STORE4(T, p, i, v);
#else
#define STORE_FOUR(p, i, v) ((uint2*)(p))[i] = make_uint2(pair_bits(v.x, v.y), pair_bits(v.z, v.w));
#endif

// Puts four channels of a pixel of y from element `at` on, of which `left` are there.
RLX_FN void put_channels(PTR(T) y, const vec4 sum, const vec4 add, const FOUR other, const uint at, const uint left) {
    vec4 v = sum;
    if (HAS_BIAS) ADD_QUAD(v, add)
    v = VEC4(activated(v.x), activated(v.y), activated(v.z), activated(v.w));
    if (RESIDUAL != 0u) {
#ifdef WHOLE_RESULTS
        const vec4 more = VEC4(RLX_FLOAT(other.x), RLX_FLOAT(other.y), RLX_FLOAT(other.z), RLX_FLOAT(other.w));
#else
        const uint xy = pair_bits(v.x, v.y), zw = pair_bits(v.z, v.w);
        v = VEC4(low_value(xy), high_value(xy), low_value(zw), high_value(zw));
        const vec4 more = VEC4(low_value(other.x), high_value(other.x), low_value(other.y), high_value(other.y));
#endif
        ADD_QUAD(v, more)
        if (RESIDUAL == 2u) v = VEC4(p_max_f(v.x, 0.0f), p_max_f(v.y, 0.0f), p_max_f(v.z, 0.0f), p_max_f(v.w, 0.0f));
    }
    if (C_QUADS) {
        if (WIDE) {
            STORE4(f32, AS(f32, y), at / 4u, v);
        } else {
            STORE_FOUR(y, at / 4u, v)
        }
        return;
    }
    put_one(y, at, v.x);
    if (left > 1u) put_one(y, at + 1u, v.y);
    if (left > 2u) put_one(y, at + 2u, v.z);
    if (left > 3u) put_one(y, at + 3u, v.w);
}

// The four channels of `other` from element `at` on, of which `left` are there, as they lie.
#ifdef WHOLE_RESULTS
RLX_FN uvec4 other_channels(PTR(T) other, const uint at, const uint left) {
    if (C_QUADS) return AS(b16, other) AT(at / 4u);
    uvec4 v = UVEC4(LOAD(u32, AS(u32, other), at), 0u, 0u, 0u);
    if (left > 1u) v.y = LOAD(u32, AS(u32, other), at + 1u);
    if (left > 2u) v.z = LOAD(u32, AS(u32, other), at + 2u);
    if (left > 3u) v.w = LOAD(u32, AS(u32, other), at + 3u);
    return v;
}
#else
RLX_FN uvec2 other_channels(PTR(T) other, const uint at, const uint left) {
    if (C_QUADS) return AS(b8, other) AT(at / 4u);
    uvec2 v;
    v.x = uint(other AT(at));
    v.y = 0u;
    if (left > 1u) v.x |= uint(other AT(at + 1u)) << 16;
    if (left > 2u) v.y = uint(other AT(at + 2u));
    if (left > 3u) v.y |= uint(other AT(at + 3u)) << 16;
    return v;
}
#endif

// Where this lane puts its part of block i, and what it adds there.
#define PLACES(i)                                                                                                  \
    UNROLL for (uint e = 0u; e < PUTS; e++) {                                                                      \
        const uint k = (i) % 2u * PUTS + e, m = m0 + WARP_ROW(i) + e * PIXELS + LANE / (WARP_COLUMNS / 4u);        \
        to[k] = m < count && left != 0u ? m : NOWHERE;                                                             \
        if (PLACED && to[k] != NOWHERE) {                                                                          \
            const uint u = m % positions;                                                                          \
            to[k] = m / positions * META(9u) + PHASE(5u) + u / (t1 * t2) * META(10u) + u / t2 % t1 * META(11u) +   \
                    u % t2 * META(12u);                                                                            \
        }                                                                                                          \
        if (RESIDUAL != 0u && to[k] != NOWHERE) others[k] = other_channels(other, to[k] * pitch + channel, left);  \
    }

// Adds a set of sums that matrix units are done with.
#define ADD_SET(set)                                                                 \
    UNROLL for (uint i = 0u; i < BLOCKS; i++) {                                      \
        HOLD(set[i], BN / 2u)                                                        \
        UNROLL for (uint e = 0u; e < BN / 2u; e++) acc[i][e] += set[i][e];           \
    }
// Sixteen terms of a part of block i of A and of B.
#define PANEL_A(i, p) WG_MATRIX(side * SLICE + (p) * PART + (WARP / 4u * BLOCKS + (i)) * 512u + kk * 2u, 1u)
#define PANEL_B(q) WG_MATRIX(side * SLICE + (q) * PART + BM * ACROSS + kk * 2u, 1u)

RLX_FN void conv_mma_body(PTR(T) x, PTR(T) w, PTR(f32) bias, PTR(T) other, PTR(b16) taps, PTR(u32) meta, PTR(T) y,
                          const uint batch, const uint groups, const uint rows, const uint phases, const uint columns,
                          const uint deep, const uint chunk, const uint splits) {
    const uint tiles_m = (columns + BM - 1u) / BM, tiles_n = (rows + BN - 1u) / BN;
    // Tiles of the same pixels follow one another, so that they find x in the cache.
    const uint z = GROUP / (tiles_m * tiles_n), tile = GROUP % (tiles_m * tiles_n);
    const uint part = z % splits, phase = z / splits % phases, g = z / (splits * phases);
    if (g >= groups) return;
    const uint t1 = PHASE(3u), t2 = PHASE(4u), positions = PHASE(2u) * t1 * t2, count = batch * positions;
    const uint m0 = tile / tiles_n * BM, n0 = tile % tiles_n * BN;
    if (m0 >= count) return;
    const uint s0 = META(0u), s1 = META(1u), s2 = META(2u), pixel = META(6u), w_row = META(7u);

    const uint line = THREAD / ACROSS, across = THREAD % ACROSS;
    uvec4 at[LOADS_A];
    UNROLL for (uint f = 0u; f < LOADS_A; f++) {
        const uint m = m0 + line + f * LINES, image = m / positions, t = m % positions;
        at[f].x = m < count ? t / (t1 * t2) * META(3u) : 0x80000000u;  // beyond all pixels no tap is inside
        at[f].y = t / t2 % t1 * META(4u);
        at[f].z = t % t2 * META(5u);
        at[f].w = image * (s0 * s1 * s2) * pixel + g * deep;
    }
    const uint row_b = (g * rows + n0 + line) * w_row;
    const uint tap_first = PHASE(1u), tap_end = tap_first + PHASE(0u);
    const uint slices = (PHASE(0u) * deep + ACROSS - 1u) / ACROSS;
    const uint begin = part * chunk, end = slices < begin + chunk ? slices : begin + chunk;
    // Where channels fill slices, the taps of a slice of channels follow one another: neighbouring pixels see the same of x.
    const bool by_taps = deep % ACROSS == 0u && PHASE(0u) > 1u;
    uint unit = (begin * ACROSS + across) % deep, tap = tap_first + (begin * ACROSS + across) / deep;
    if (by_taps) {
        unit = begin / PHASE(0u) * ACROSS + across;
        tap = tap_first + begin % PHASE(0u);
    }
    uvec4 place = taps AT(tap < tap_end ? tap : tap_first);

    uvec4 held_a[LOADS_A * PARTS];
    uvec4 held_b[LOADS_B * PARTS];
    uint real = 0u, side = 0u, next = AHEAD;
    if (STAGES > 1u) {
        UNROLL for (uint s = 0u; s < AHEAD; s++) {
            if (begin + s < end) LOAD_SLICE(s)
            LOADS_END
        }
    } else {
        LOAD_SLICE(0u)
    }
#ifdef WARPGROUPS
    float acc[BLOCKS][BN / 2u];
    UNROLL for (uint i = 0u; i < BLOCKS; i++) {
        UNROLL for (uint e = 0u; e < BN / 2u; e++) acc[i][e] = 0.0f;
    }
#ifdef IN_PARTS
    // Sums of the first parts' products of 16 terms, and of the other products of a slice (MULTIPLY_SLICE).
    float great[BLOCKS][BN / 2u], small[BLOCKS][BN / 2u];
#endif
    ROLLED for (uint t = begin; t < end; t++) {
        LOADS_WAIT(AHEAD - 1u)
        COPIES_SEEN
        // The slice is there, and all have multiplied the one before the last, whose place the next load takes.
        BARRIER;
#ifdef IN_PARTS
        UNROLL for (uint kk = 0u; kk < BK / 16u; kk++) {
            WG_READY
            UNROLL for (uint i = 0u; i < BLOCKS; i++) { MULTIPLY_PANELS(great[i], PANEL_A(i, 0u), PANEL_B(0u), 0u); }
            WG_SENT
            UNROLL for (uint i = 0u; i < BLOCKS; i++) {
                UNROLL for (uint back = 0u; back < PARTS; back++) {
                    UNROLL for (uint p = 0u; p < PARTS - back; p++) {
                        const uint q = PARTS - 1u - back - p;
                        if (p + q != 0u) MULTIPLY_PANELS(small[i], PANEL_A(i, p), PANEL_B(q), kk + back + p);
                    }
                }
            }
            WG_SENT
            if (kk == 0u) {
                if (t + AHEAD < end) LOAD_SLICE(next)
                LOADS_END
            }
            WG_WAIT(1)
            ADD_SET(great)
        }
        WG_WAIT(0)
        ADD_SET(small)
#elif defined(IN_TF32)
        // Elements of A are rounded on their way into registers, where they stay until they are multiplied.
        Matrix ma[BLOCKS * BK / 16u];
        UNROLL for (uint k = 0u; k < BLOCKS * BK / 16u; k++) {
            const uint row = WARP_ROW(k / (BK / 16u)) + LANE % 16u, at = k % (BK / 16u) * 2u + LANE / 16u;
            rlx_ldmatrix(ma[k].r, &units[side * SLICE + CELL_A(row, at)]);
            TAKEN(ma[k])
        }
        WG_READY
        UNROLL for (uint k = 0u; k < BLOCKS * BK / 16u; k++) {
            MULTIPLY_HELD(acc[k / (BK / 16u)], ma[k].r,
                          WG_MATRIX(side * SLICE + BM * ACROSS + k % (BK / 16u) * 2u, 1u));
        }
        WG_SENT
        if (t + AHEAD < end) LOAD_SLICE(next)
        LOADS_END
        WG_WAIT(0)
        UNROLL for (uint k = 0u; k < BLOCKS * BK / 16u; k++) { HOLD_BITS(ma[k].r, 4u) }
#else
        WG_READY
        UNROLL for (uint i = 0u; i < BLOCKS; i++) {
            UNROLL for (uint kk = 0u; kk < BK / 16u; kk++) {
                MULTIPLY_PANELS(acc[i], PANEL_A(i, 0u), PANEL_B(0u), 1u);
            }
        }
        WG_SENT
        if (t + AHEAD < end) LOAD_SLICE(next)
        LOADS_END
        WG_WAIT(1)
#endif
        next = next + 1u == STAGES ? 0u : next + 1u;
        side = side + 1u == STAGES ? 0u : side + 1u;
    }
    WG_WAIT(0)
    UNROLL for (uint i = 0u; i < BLOCKS; i++) { HOLD(acc[i], BN / 2u) }
    LOADS_WAIT(0)
    BARRIER;
#else
    const uvec4 zero = UVEC4(0u, 0u, 0u, 0u);
    SUMS acc[BLOCKS * MATRICES];
    UNROLL for (uint i = 0u; i < BLOCKS * MATRICES; i++) { SUMS_ZERO(acc[i]) }
    ROLLED for (uint t = begin; t < end; t++) {
        if (STAGES > 1u) {
            LOADS_WAIT(AHEAD - 1u)
            BARRIER;
            if (t + AHEAD < end) LOAD_SLICE(next)
            LOADS_END
            next = next + 1u == STAGES ? 0u : next + 1u;
        } else {
            UNROLL for (uint f = 0u; f < LOADS_A; f++) {
                UNROLL for (uint p = 0u; p < PARTS; p++) {
                    units[p * PART + CELL_A(line + f * LINES, across)] =
                        (real >> f & 1u) != 0u ? held_a[f * PARTS + p] : zero;
                }
            }
            UNROLL for (uint f = 0u; f < LOADS_B; f++) {
                UNROLL for (uint p = 0u; p < PARTS; p++) {
                    units[p * PART + CELL_B(line + f * LINES, across)] =
                        (real >> (LOADS_A + f) & 1u) != 0u ? held_b[f * PARTS + p] : zero;
                }
            }
            BARRIER;
            LOAD_SLICE(0u)
        }
        MULTIPLY_SLICE(PLACE_A, ROW, false, PLACE_B, ROW, true)
        if (STAGES > 1u) {
            side = side + 1u == STAGES ? 0u : side + 1u;
        } else {
            BARRIER;
        }
    }
    if (STAGES > 1u) {
        LOADS_WAIT(0u)
        BARRIER;
    }
#endif

    // A lane puts the same four channels of every PIXELS-th pixel. What it adds to sixteen of the warp's pixels is loaded
    // before the sixteen before them are stored: the compiler cannot know that it is no element of y.
    const uint stage = WARP * 16u * ROW_C, quad = LANE % (WARP_COLUMNS / 4u), pitch = META(8u);
    const uint column = n0 + WARP_COLUMN + quad * 4u, left = column < rows ? rows - column : 0u;
    const uint channel = g * rows + column;
    PTR(T) py = SKIP(T, y, part, WIDE ? META(13u) * (4u / T_BYTES) : META(13u));
    vec4 add = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    if (HAS_BIAS && left != 0u) add = bias_quad(bias, channel, channel + left);
    uint to[2u * PUTS];
    FOUR others[2u * PUTS];
    PLACES(0u)
    UNROLL for (uint i = 0u; i < BLOCKS; i++) {
        UNROLL for (uint j = 0u; j < MATRICES; j++) {
#ifdef WARPGROUPS
            Sums sums;
            UNROLL for (uint e = 0u; e < 8u; e++) sums.c[e] = acc[i][j * 8u + e];
            STORE_SUMS(sums, stage + j * 4u, ROW_C)
#else
            STORE_SUMS(acc[i * MATRICES + j], stage + j * 4u, ROW_C)
#endif
        }
        SYNC_WARP;
#ifdef WHOLE_RESULTS
#ifndef RLX_GLSL
        uint most = 0u;
        UNROLL for (uint e = 0u; e < PUTS; e++) {
            most = most_bits(most, units[stage + (e * PIXELS + LANE / (WARP_COLUMNS / 4u)) * ROW_C + quad]);
        }
        if (most >= NOT_FINITE)
#endif
        {
            ROLLED for (uint e = 0u; e < 4u * PUTS; e++) {
                const uint up = e / 4u * PIXELS + LANE / (WARP_COLUMNS / 4u), c = e % 4u, m = m0 + WARP_ROW(i) + up;
                const uvec4 v = units[stage + up * ROW_C + quad];
                const uint bits = c == 0u ? v.x : c == 1u ? v.y : c == 2u ? v.z : v.w;
                if ((bits & 0x7f800000u) == 0x7f800000u && m < count && c < left) {
                    SET_WORD(units[stage + up * ROW_C + quad], c,
                             RLX_BITS(plain_sum(x, w, taps, meta, phase, deep, g, m, channel + c, begin, end)))
                }
            }
        }
#endif
        if (i + 1u < BLOCKS) {
            PLACES(i + 1u)
        }
        UNROLL for (uint e = 0u; e < PUTS; e++) {
            const uvec4 v = units[stage + (e * PIXELS + LANE / (WARP_COLUMNS / 4u)) * ROW_C + quad];
            const vec4 sum = VEC4(RLX_FLOAT(v.x), RLX_FLOAT(v.y), RLX_FLOAT(v.z), RLX_FLOAT(v.w));
            const uint k = i % 2u * PUTS + e;
            if (to[k] != NOWHERE) put_channels(py, sum, add, others[k], to[k] * pitch + channel, left);
        }
        SYNC_WARP;
    }
}
