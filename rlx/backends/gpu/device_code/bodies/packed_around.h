// What packed_line and packed_vector share: a row of x in shared memory, its norm, and the end of a product. NORMED: x is
// divided by its root mean square and multiplied by gamma. GATED: q has twice n rows, and y is act(row i) times row i + n.
// BIAS: see bias.h; y is rounded after the bias. PARTS of the eight warps share ROWS packed rows at a time. SLAB chunks of
// x lie in shared memory, chunk i in place PLACE(i). IN_CHUNKS holds, and x may be read four at a time.
#define TA T
#include "activation.h"
#include "bias.h"
#define TABLED
#include "packed.h"
#define TEAMS (8u / PARTS)
#define MADE (GATED ? ROWS / 2u : ROWS)  // elements of y that a team makes
#define ROWS_HELD (TEAMS * MADE)
#define LIST (8u * PARTS)  // threads that add up a row
RLX_FN vec4 times_four(const vec4 a, const vec4 b) { return VEC4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }
RLX_FN vec4 scaled_four(const vec4 a, const float b) { return VEC4(a.x * b, a.y * b, a.z * b, a.w * b); }
RLX_FN float squares_of(const vec4 a, const float sum) {
    return FMA(a.x, a.x, FMA(a.y, a.y, FMA(a.z, a.z, FMA(a.w, a.w, sum))));
}
RLX_FN vec4 x_four(PTR(T) x, PTR(f32) gamma, const uint i, const float down) {
    const vec4 v = LOAD4(T, x, i);
    if (!NORMED) return v;
    return times_four(scaled_four(v, down), LOAD4(f32, gamma, i));
}
#define DOT_MORE PTR(f32) gamma, const float down,
#define DOT_X(i) x_four(x, gamma, i, down)
#include "packed_dot.h"
#define NARROWED (!NORMED)  // of a norm, no one power of two places all elements
#include "packed_lifted.h"

SHARED vec4 given[RUNS * 4u * SLAB];
SHARED float given_sums[RUNS * SLAB];
SHARED float given_back[RUNS * SLAB];
SHARED float parts[256u * ROWS];
SHARED float joined[64u * ROWS];
RLX_FN float plus(const float a, const float b) { return a + b; }
LANES_OP(row_sum, 256u, plus)

// Places the chunks of x from `slab` on, times `down` and gamma; chunks that are not there have zeros. Gives `squares` and
// the squares of what this thread has placed.
RLX_FN float placed_x(PTR(T) x, PTR(f32) gamma, const uint slab, const uint chunks, const float down, const float squares) {
    float sum_of_squares = squares;
    for (uint i = THREAD; i < RUNS * SLAB; i += 256u) {
        const uint run = i / SLAB, from = slab + i % SLAB, to = run * SLAB + PLACE(i % SLAB);
        vec4 v[4];
        float size = 0.0f, sum = 0.0f;
        UNROLL for (uint w = 0u; w < 4u; w++) {
            vec4 four = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
            if (from < chunks) {
                const uint e = element_of(from / UNITS, from % UNITS, run) / 4u + w;
                four = LOAD4(T, x, e);
                if (NORMED) {
                    four = scaled_four(four, down);
                    sum_of_squares = squares_of(four, sum_of_squares);
                    four = times_four(four, LOAD4(f32, gamma, e));
                }
            }
            v[w] = four;
            sum += (four.x + four.y) + (four.z + four.w);
            if (!NARROW) size += (RLX_ABS(four.x) + RLX_ABS(four.y)) + (RLX_ABS(four.z) + RLX_ABS(four.w));
        }
        given_sums[to] = sum * ALL_DOWN;
        const uint kept = exponent_kept(size);
        if (!NARROW) given_back[to] = back_of(kept);
        UNROLL for (uint w = 0u; w < 4u; w++) given[run * 3u * SLAB + w * SLAB + to] = placed_four(v[w], scale_of_x(kept), run);
    }
    return sum_of_squares;
}

// What the sum of a run, whose x is in place `to`, is multiplied by.
RLX_FN float back_at(const uint to) { return NARROW ? 1.0f : given_back[to] * power_left(); }

// What x was multiplied by where its squares overflow.
#define LESS 7.8886090522101181e-31f  // 2^-100
RLX_FN float inverse_of(const float total, const uint k, const float eps, const float down) {
    return p_rsqrt_f(total * p_recip_f(float(k)) + eps * down * down);
}

// The sum of a run or two added to what a row has: `all` is that of x.
RLX_FN float with_scale(const float acc, const Scale s, const float sum, const float all) {
    if (HAS_LOW) return FMA(s.s, sum, FMA(s.m, all, acc));
    return FMA(s.s, FMA(-s.zero, all, sum), acc);
}

// What a thread has of row r of its team's, for `row_made`.
RLX_FN float part_made(const float acc, const uint special) {
    return IS_FP8 && (special & 0x80808080u) != 0u ? RLX_FLOAT(0x7fc00000u) : acc * ALL_BACK;
}
// Between two barriers: four of the numbers of each list.
RLX_FN void join_parts() {
    const uint row = THREAD / LIST, among = THREAD % LIST;
    if (THREAD < 64u * ROWS) {
        const uint own = row % ROWS * 256u + (row / ROWS * PARTS + among / 8u) * 32u + among % 8u;
        joined[THREAD] = (parts[own] + parts[own + 8u]) + (parts[own + 16u] + parts[own + 24u]);
    }
}
// The sum of a row, whose parts LIST threads have added up.
RLX_FN float row_made(const uint row) {
    float sum = 0.0f;
    for (uint j = 0u; j < LIST; j++) sum += joined[row * LIST + j];
    return sum;
}
// Writes the elements of y from `first` on. `again`: sums are to be computed once more, since x overflows without `down`.
RLX_FN float checked_sum(const float v, PTR(T) x, PTR(f32) gamma, const float down, PTR(u32) q, const uint row,
                         const uint pitch, const Planes at, const uint chunks, const bool again) {
    // A sum with infinity in it may be NaN because zeros and minimums are added up apart.
    return IS_NAN(v) || again ? dot_of(x, gamma, down, row_of(q, row, pitch), at, chunks, 0u) : v;
}
RLX_FN void put_rows(PTR(T) y, PTR(T) x, PTR(f32) gamma, PTR(u32) q, PTR(f32) bias, const uint first, const uint n,
                     const uint skipped, const uint pitch, const Planes at, const uint chunks, const float down,
                     const float inverse, const bool again) {
    const uint to = first + THREAD, row = THREAD / MADE * ROWS + THREAD % MADE;
    if (THREAD < ROWS_HELD && to < n) {
        float v = checked_sum(row_made(row), x, gamma, down, q, to, pitch, at, chunks, again) * inverse;
        if (HAS_BIAS) v += bias_at(bias, to);
        if (GATED) {
            const float other = checked_sum(row_made(row + MADE), x, gamma, down, q, to + n, pitch, at, chunks, again);
            v = activated(v) * (other * inverse);
        }
        STORE(T, y, skipped + to, v);
    }
}

// The packed rows of a team in tile `tile`.
#ifdef RLX_GLSL
// As two words: SwiftShader's compiler dies of addresses that a loop changes.
#define Aim uvec2
#define AIMED(q, row, pitch) rlx_skip(uvec2(q), row, pitch, 0u)
#define ROW_AIMED(aim) row_of(ptr_u32(aim), 0u, 0u)
#else
#define Aim Row
#define AIMED(q, row, pitch) row_of(q, row, pitch)
#define ROW_AIMED(aim) (aim)
#endif
#define AIM(tile)                                                                                   \
    UNROLL for (uint r = 0u; r < ROWS; r++) {                                                       \
        const uint of = (tile) * ROWS_HELD + team * MADE + r % MADE;                                \
        rows[r] = AIMED(q, (of < n ? of : n - 1u) + (GATED && r >= MADE ? n : 0u), pitch);          \
    }
