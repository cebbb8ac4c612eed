// y[part, g, row, tap, c] = sum over pixels t of d[t, g, row] * x[t * step + tap, g, c]: the gradient of a convolution's
// weights by matrix instructions, for halves (T) with channels last; y is f32. A unit is sixteen bytes, eight channels of a
// pixel: pixels have `deep` of them in x and `high` in d for each group of the convolution, those beyond the channels are
// zero, and so are the elements of y there. A group computes a tile of BM rows and BN columns (tap, c) out of `chunk`
// slices of the pixels; TILE, STAGES: see conv_tiles.h.
// PARTS: T is bf16, and elements of x and d are sums of so many parts, as in conv_mma.h.
// meta: input sizes (3), positions (3), steps (3), dilations (3), padding (3), kernel (3), units of a pixel of x and of d,
// and of a part of x and of d.
#define MATRIX T
#ifdef IN_PARTS
#define PART_A PART
#define PART_B PART
#endif
#include "conv_tiles.h"
#define ACROSS_A (BM / 8u)  // units of a row of a slice
#define ACROSS_B (BN / 8u)
#define ROW_A (ACROSS_A + 1u)
#define ROW_B (ACROSS_B + 1u)
#define PART (BK * (ROW_A + ROW_B))
#define SLICE (PARTS * PART)
#define PLACE_A(i, kk) (side * SLICE + kk * 16u * ROW_A + WARP_ROW(i) / 8u)
#define PLACE_B(j, kk) (side * SLICE + BK * ROW_A + kk * 16u * ROW_B + (WARP_COLUMN + j * 16u) / 8u)
#define LINES_A (THREADS / ACROSS_A)  // pixels of a slice that the threads load at once
#define LINES_B (THREADS / ACROSS_B)
#define LOADS_A (BK / LINES_A)  // of a part
#define LOADS_B (BK / LINES_B)
#define META(i) LOAD(u32, meta, i)

UNITS(STAGES * SLICE > STAGE ? STAGES * SLICE : STAGE)

// Loads this thread's units of the slice from pixel t on, as LOAD_SLICE of conv_mma.h does.
#define LOAD_SLICE(side)                                                                                            \
    {                                                                                                               \
        real = 0u;                                                                                                  \
        UNROLL for (uint f = 0u; f < LOADS_A; f++) {                                                                \
            const uint m = from + line_a + f * LINES_A;                                                             \
            const bool there = m < last && row_unit < high;                                                         \
            const uint i = there ? m * pixel_d + g * high + row_unit : 0u;                                          \
            UNROLL for (uint p = 0u; p < PARTS; p++) {                                                              \
                if (STAGES > 1u) {                                                                                  \
                    LOAD_AHEAD(held_a[f * PARTS + p],                                                               \
                               (side) * SLICE + p * PART + (line_a + f * LINES_A) * ROW_A + across_a, d,            \
                               UNIT_OF(i, p, 21u), there)                                                           \
                } else {                                                                                            \
                    held_a[f * PARTS + p] = LOAD_UNIT(d, UNIT_OF(i, p, 21u));                                       \
                }                                                                                                   \
            }                                                                                                       \
            if (STAGES == 1u) real |= there ? 1u << f : 0u;                                                         \
        }                                                                                                           \
        UNROLL for (uint f = 0u; f < LOADS_B; f++) {                                                                \
            const uint q0 = at[f].x * step0 + tap0, q1 = at[f].y * step1 + tap1, q2 = at[f].z * step2 + tap2;       \
            const bool there = from + line_b + f * LINES_B < last && inside && q0 < s0 && q1 < s1 && q2 < s2;       \
            const uint i = there ? (((at[f].w * s0 + q0) * s1 + q1) * s2 + q2) * pixel_x + unit : 0u;               \
            UNROLL for (uint p = 0u; p < PARTS; p++) {                                                              \
                if (STAGES > 1u) {                                                                                  \
                    LOAD_AHEAD(held_b[f * PARTS + p],                                                               \
                               (side) * SLICE + p * PART + BK * ROW_A + (line_b + f * LINES_B) * ROW_B + across_b,  \
                               x, UNIT_OF(i, p, 20u), there)                                                        \
                } else {                                                                                            \
                    held_b[f * PARTS + p] = LOAD_UNIT(x, UNIT_OF(i, p, 20u));                                       \
                }                                                                                                   \
            }                                                                                                       \
            if (STAGES == 1u) real |= there ? 1u << (LOADS_A + f) : 0u;                                             \
            MOVE_ON(at[f].z, at[f].y, carry2, t2)                                                                   \
            MOVE_ON(at[f].y, at[f].x, carry1, t1)                                                                   \
            MOVE_ON(at[f].x, at[f].w, carry0, t0)                                                                   \
            at[f].w += carry;                                                                                       \
        }                                                                                                           \
        from += BK;                                                                                                 \
    }
// A digit of a pixel's place goes on by `by`, of `n`; the next digit takes what is carried.
#define MOVE_ON(digit, next, by, n) \
    digit += by;                    \
    if (digit >= n) {               \
        digit -= n;                 \
        next += 1u;                 \
    }

// Element c of a unit: the sum of its parts.
RLX_FN float whole_one(PTR(T) p, const uint at, const uint plane, const uint c) {
    float v = 0.0f;
    UNROLL for (uint part = 0u; part < PARTS; part++) {
        const uvec4 u = LOAD_UNIT(p, at + part * plane);
        const uint w = c / 2u == 0u ? u.x : c / 2u == 1u ? u.y : c / 2u == 2u ? u.z : u.w;
        v += c % 2u == 0u ? low_value(w) : high_value(w);
    }
    return v;
}
// What pixels `begin` to `end` - 1 contribute to an element of y, by multiply-adds of whole elements.
RLX_FN float plain_sum(PTR(T) x, PTR(T) d, PTR(u32) meta, const uint deep, const uint high, const uint g, const uint row,
                       const uint column, const uint begin, const uint end) {
    const uint s0 = META(0u), s1 = META(1u), s2 = META(2u), t0 = META(3u), t1 = META(4u), t2 = META(5u);
    const uint k1 = META(16u), k2 = META(17u), tap = column / 8u / deep, unit = g * deep + column / 8u % deep;
    const uint tap0 = tap / (k1 * k2) * META(9u) - META(12u), tap1 = tap / k2 % k1 * META(10u) - META(13u);
    const uint tap2 = tap % k2 * META(11u) - META(14u);
    float sum = 0.0f;
    ROLLED for (uint m = begin; m < end; m++) {
        const uint q0 = m / (t1 * t2) % t0 * META(6u) + tap0, q1 = m / t2 % t1 * META(7u) + tap1;
        const uint q2 = m % t2 * META(8u) + tap2;
        float v = 0.0f;
        if (q0 < s0 && q1 < s1 && q2 < s2) {
            v = whole_one(x, (((m / (t0 * t1 * t2) * s0 + q0) * s1 + q1) * s2 + q2) * META(18u) + unit, META(20u),
                          column % 8u);
        }
        sum = FMA(whole_one(d, m * META(19u) + g * high + row / 8u, META(21u), row % 8u), v, sum);
    }
    return sum;
}

RLX_FN void conv_weight_mma_body(PTR(T) x, PTR(T) d, PTR(u32) meta, PTR(f32) y, const uint batch, const uint groups,
                                 const uint rows, const uint deep, const uint high, const uint chunk,
                                 const uint splits) {
    const uint k0 = META(15u), k1 = META(16u), k2 = META(17u), columns = k0 * k1 * k2 * deep * 8u;
    const uint tiles_m = (rows + BM - 1u) / BM, tiles_n = (columns + BN - 1u) / BN;
    const uint z = GROUP / (tiles_m * tiles_n), tile = GROUP % (tiles_m * tiles_n);
    const uint part = z % splits, g = z / splits;
    if (g >= groups) return;
    const uint m0 = tile % tiles_m * BM, n0 = tile / tiles_m * BN;
    const uint s0 = META(0u), s1 = META(1u), s2 = META(2u), t0 = META(3u), t1 = META(4u), t2 = META(5u);
    const uint step0 = META(6u), step1 = META(7u), step2 = META(8u), pixel_x = META(18u), pixel_d = META(19u);
    const uint pixels = batch * t0 * t1 * t2;

    const uint line_a = THREAD / ACROSS_A, across_a = THREAD % ACROSS_A, row_unit = m0 / 8u + across_a;
    const uint line_b = THREAD / ACROSS_B, across_b = THREAD % ACROSS_B, column_unit = n0 / 8u + across_b;
    const bool inside = column_unit * 8u < columns;
    const uint tap = column_unit / deep, unit = g * deep + column_unit % deep;
    const uint tap0 = tap / (k1 * k2) * META(9u) - META(12u), tap1 = tap / k2 % k1 * META(10u) - META(13u);
    const uint tap2 = tap % k2 * META(11u) - META(14u);

    const uint slices = (pixels + BK - 1u) / BK;
    const uint begin = part * chunk, end = slices < begin + chunk ? slices : begin + chunk;
    const uint last = least(end * BK, pixels);
    uint from = begin * BK;
    uvec4 at[LOADS_B];  // a pixel's place along the axes, and its image
    UNROLL for (uint f = 0u; f < LOADS_B; f++) {
        const uint m = from + line_b + f * LINES_B;
        at[f].x = m / (t1 * t2) % t0;
        at[f].y = m / t2 % t1;
        at[f].z = m % t2;
        at[f].w = m / (t0 * t1 * t2);
    }
    const uint carry2 = BK % t2, carry1 = BK / t2 % t1, carry0 = BK / (t1 * t2) % t0, carry = BK / (t0 * t1 * t2);

    const uvec4 zero = UVEC4(0u, 0u, 0u, 0u);
    SUMS acc[BLOCKS * MATRICES];
    uvec4 held_a[LOADS_A * PARTS];
    uvec4 held_b[LOADS_B * PARTS];
    uint real = 0u;
    UNROLL for (uint i = 0u; i < BLOCKS * MATRICES; i++) { SUMS_ZERO(acc[i]) }
    if (STAGES > 1u) {
        UNROLL for (uint s = 0u; s < STAGES - 1u; s++) {
            LOAD_SLICE(s)
            LOADS_END
        }
    } else {
        LOAD_SLICE(0u)
    }
    uint side = 0u, next = STAGES - 1u;
    ROLLED for (uint t = begin; t < end; t++) {
        if (STAGES > 1u) {
            LOADS_WAIT(STAGES - 2u)
            BARRIER;
            LOAD_SLICE(next)
            LOADS_END
            next = next + 1u == STAGES ? 0u : next + 1u;
        } else {
            UNROLL for (uint f = 0u; f < LOADS_A; f++) {
                UNROLL for (uint p = 0u; p < PARTS; p++) {
                    units[p * PART + (line_a + f * LINES_A) * ROW_A + across_a] =
                        (real >> f & 1u) != 0u ? held_a[f * PARTS + p] : zero;
                }
            }
            UNROLL for (uint f = 0u; f < LOADS_B; f++) {
                UNROLL for (uint p = 0u; p < PARTS; p++) {
                    units[p * PART + BK * ROW_A + (line_b + f * LINES_B) * ROW_B + across_b] =
                        (real >> (LOADS_A + f) & 1u) != 0u ? held_b[f * PARTS + p] : zero;
                }
            }
            BARRIER;
            LOAD_SLICE(0u)
        }
        MULTIPLY_SLICE(PLACE_A, ROW_A, true, PLACE_B, ROW_B, false)
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

    const uint stage = WARP * 16u * ROW_C;
    PTR(f32) py = SKIP(f32, y, part * groups + g, rows * columns);
    UNROLL for (uint i = 0u; i < BLOCKS; i++) {
        UNROLL for (uint j = 0u; j < MATRICES; j++) {
            STORE_SUMS(acc[i * MATRICES + j], stage + j * 4u, ROW_C)
        }
        SYNC_WARP;
        if (PARTS > 1u) {
#ifndef RLX_GLSL
            uint most = 0u;
            UNROLL for (uint e = 0u; e < MATRICES * 2u; e++) {
                const uint q = e * 32u + LANE;
                most = most_bits(most, units[stage + q / (WARP_COLUMNS / 4u) * ROW_C + q % (WARP_COLUMNS / 4u)]);
            }
            if (most >= NOT_FINITE)
#endif
            {
                ROLLED for (uint e = 0u; e < MATRICES * 8u; e++) {
                    const uint q = e / 4u * 32u + LANE, c = e % 4u;
                    const uint row = m0 + WARP_ROW(i) + q / (WARP_COLUMNS / 4u);
                    const uint column = n0 + WARP_COLUMN + q % (WARP_COLUMNS / 4u) * 4u + c;
                    const uint to = stage + q / (WARP_COLUMNS / 4u) * ROW_C + q % (WARP_COLUMNS / 4u);
                    const uint bits = c == 0u ? units[to].x : c == 1u ? units[to].y : c == 2u ? units[to].z : units[to].w;
                    if ((bits & 0x7f800000u) == 0x7f800000u && row < rows && column < columns) {
                        SET_WORD(units[to], c, RLX_BITS(plain_sum(x, d, meta, deep, high, g, row, column, begin * BK, last)))
                    }
                }
            }
        }
        UNROLL for (uint e = 0u; e < MATRICES * 2u; e++) {
            const uint q = e * 32u + LANE;
            const uint row = m0 + WARP_ROW(i) + q / (WARP_COLUMNS / 4u);
            const uint column = n0 + WARP_COLUMN + q % (WARP_COLUMNS / 4u) * 4u;
            if (row < rows && column < columns) {
                const uvec4 v = units[stage + q / (WARP_COLUMNS / 4u) * ROW_C + q % (WARP_COLUMNS / 4u)];
                STORE4(f32, py, (row * columns + column) / 4u,
                       VEC4(RLX_FLOAT(v.x), RLX_FLOAT(v.y), RLX_FLOAT(v.z), RLX_FLOAT(v.w)));
            }
        }
        SYNC_WARP;
    }
}
