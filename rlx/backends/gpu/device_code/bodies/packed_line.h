// y (m, n) = x times the transposed packed rows of q, for one row of x a workgroup, by multiply-adds: see packed.h. PARTS
// of the eight warps share HIGH rows of q, of which each lane takes two neighbouring chunks in a step; the chunks of the
// next step are asked for as soon as those of this one are used, also before a workgroup takes its next rows, `step`
// tiles further on. The row of x lies in shared memory, SLAB chunks of it at a time, a multiple of 64 PARTS, placed for
// quants that stay as they lie in their words: see packed_lifted.h. Zeros and minimums are multiplied by the sum of x.
// NORMED: x is divided by its root mean square and multiplied by gamma. GATED: q has twice n rows, and y is act(row i)
// times row i + n. BIAS: see bias.h; y is rounded after the bias. EARLY: no kernel of the program writes q, which may so
// be read before the kernel before has ended. IN_CHUNKS holds, and x may be read four at a time.
#define TA T
#include "begin.h"
#include "activation.h"
#include "bias.h"
#define TABLED
#include "packed.h"
#define COUNT_2 2u
#define COUNT_4 4u
#define ROWS RLX_JOIN(COUNT_, HIGH)
#ifdef RLX_GLSL
// spirv-opt unrolls no loop around one whose length it does not know; what such a loop indexes would stay in memory.
#define OUTER_RUNS RUNS
#define INNER_RUNS 1u
// A row that a workgroup goes on to is known by its number: SwiftShader's compiler dies of addresses that a loop changes.
#define Aim uint
#define AIMED(q, row, pitch) (row)
#define ROW_AIMED(q, aim, pitch) row_of(q, aim, pitch)
#else
#define OUTER_RUNS 1u
#define INNER_RUNS RUNS
#define Aim Row
#define AIMED(q, row, pitch) row_of(q, row, pitch)
#define ROW_AIMED(q, aim, pitch) (aim)
#endif
#define TEAMS (8u / PARTS)
#define MADE (GATED ? ROWS / 2u : ROWS)  // elements of y that a team makes
#define ROWS_HELD (TEAMS * MADE)
#define LIST (8u * PARTS)  // threads that add up a row
#define WIDE (64u * PARTS)
// Whether two neighbouring chunks have the same words of scales, and the same scales.
#define SAME_WORDS (UNITS % 2u == 0u)
#define SAME_SCALES (SAME_WORDS && FORMAT != Q2_K && FORMAT != Q3_K && FORMAT != Q6_K && FORMAT != IQ4_XS)
RLX_FN vec4 times_four(const vec4 a, const vec4 b) { return VEC4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }
RLX_FN vec4 scaled_four(const vec4 a, const float b) { return VEC4(a.x * b, a.y * b, a.z * b, a.w * b); }
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

// The sum of a run or two added to what a row has: `all` is that of x.
RLX_FN float with_scale(const float acc, const Scale s, const float sum, const float all) {
    if (HAS_LOW) return FMA(s.s, sum, FMA(s.m, all, acc));
    return FMA(s.s, FMA(-s.zero, all, sum), acc);
}

SHARED vec4 given[RUNS * 4u * SLAB];
SHARED float given_sums[RUNS * SLAB];
SHARED float given_back[RUNS * SLAB];
SHARED float parts[256u * ROWS];
SHARED float joined[64u * ROWS];
RLX_FN float plus(const float a, const float b) { return a + b; }
LANES_OP(row_sum, 256u, plus)

// The sum of a row, whose parts LIST threads have added up.
RLX_FN float row_made(const uint row) {
    float sum = 0.0f;
    for (uint j = 0u; j < LIST; j++) sum += joined[row * LIST + j];
    return sum;
}

// Chunks c and c + 1 of each row, of those that are there, and the words of their scales.
#define FETCH(c)                                                                                    \
    UNROLL for (uint p = 0u; p < 2u; p++) {                                                         \
        const uint from = (c) + p < chunks ? (c) + p : chunks - 1u;                                 \
        UNROLL for (uint r = 0u; r < ROWS; r++) {                                                   \
            Row of = ROW_AIMED(q, rows[r], pitch);                                                  \
            held[p * ROWS + r] = chunk_of(of, at, from / UNITS, from % UNITS);                      \
            if (p == 0u) {                                                                          \
                words[r] = scale_words(of, at, from / UNITS, from % UNITS);                         \
            } else if (!SAME_WORDS) {                                                               \
                others[r] = scale_words(of, at, from / UNITS, from % UNITS);                        \
            }                                                                                       \
        }                                                                                           \
    }
#define AIM(tile)                                                                                   \
    UNROLL for (uint r = 0u; r < ROWS; r++) {                                                       \
        const uint of = (tile) * ROWS_HELD + team * MADE + r % MADE;                                \
        rows[r] = AIMED(q, (of < n ? of : n - 1u) + (GATED && r >= MADE ? n : 0u), pitch);          \
    }

RLX_FN void packed_line_body(PTR(T) x, PTR(f32) gamma, PTR(u32) q, PTR(f32) bias, PTR(T) y, const uint m,
                               const uint n, const uint blocks, const uint pitch, const uint step, const float eps) {
    const uint k = blocks * BLOCK, chunks = blocks * UNITS, tiles = (n + ROWS_HELD - 1u) / ROWS_HELD;
    const uint lane = THREAD % 32u, warp = THREAD / 32u, part = warp % PARTS, team = warp / PARTS;
    uint tile = GROUP / m;
    if (tile >= tiles) return;
    fill_table();
    PTR(T) px = SKIP(T, x, GROUP % m, k);
    const Planes at = planes_of(blocks);
    Aim rows[ROWS];
    Chunk held[2u * ROWS];
    uvec4 words[ROWS], others[ROWS];
    if (!EARLY) BEGIN;
    AIM(tile)
    FETCH(part * 64u + 2u * lane)
    if (EARLY) BEGIN;
    float down = 1.0f, inverse = 1.0f;  // x is multiplied by the first where its squares overflow
    bool placed = false;
    while (tile < tiles) {
        float acc[ROWS];
        uint special[ROWS];
        float squares = 0.0f;
        UNROLL for (uint r = 0u; r < ROWS; r++) {
            acc[r] = 0.0f;
            special[r] = 0u;
        }
        const uint first_row = tile * ROWS_HELD;
        for (uint slab = 0u; slab < chunks; slab += SLAB) {
            // Chunks that are not there have zeros.
            if (!placed || chunks > SLAB) {
                for (uint i = THREAD; i < RUNS * SLAB; i += 256u) {
                    const uint run = i / SLAB, in_slab = i % SLAB, from = slab + in_slab;
                    const uint to = run * SLAB + in_slab % 2u * (SLAB / 2u) + in_slab / 2u;
                    vec4 v[4];
                    float size = 0.0f, sum = 0.0f;
                    UNROLL for (uint w = 0u; w < 4u; w++) {
                        vec4 four = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
                        if (from < chunks) {
                            const uint e = element_of(from / UNITS, from % UNITS, run) / 4u + w;
                            four = LOAD4(T, px, e);
                            if (NORMED) {
                                four = scaled_four(four, down);
                                squares = FMA(four.x, four.x, FMA(four.y, four.y, FMA(four.z, four.z,
                                                                                      FMA(four.w, four.w, squares))));
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
                    UNROLL for (uint w = 0u; w < 4u; w++) {
                        given[run * 3u * SLAB + w * SLAB + to] = placed_four(v[w], scale_of_x(kept), run);
                    }
                }
                BARRIER;
            }
            const uint count = chunks - slab < SLAB ? chunks - slab : SLAB;
            for (uint i = part * 64u; i < count; i += WIDE) {
                const uint c = slab + i + 2u * lane, own = i / 2u + lane;
                UNROLL for (uint outer = 0u; outer < OUTER_RUNS; outer++) {
                    float sums[2u * INNER_RUNS * ROWS];
                    UNROLL for (uint j = 0u; j < 2u * INNER_RUNS * ROWS; j++) sums[j] = 0.0f;
                    UNROLL for (uint p = 0u; p < 2u; p++) {
                        const uint u = (c + p < chunks ? c + p : chunks - 1u) % UNITS;
                        UNROLL for (uint w = 0u; w < 4u; w++) {
                            UNROLL for (uint inner = 0u; inner < INNER_RUNS; inner++) {
                                const uint run = outer + inner, of = (p * INNER_RUNS + inner) * ROWS;
                                const vec4 a = given[(run * 4u + w) * SLAB + p * (SLAB / 2u) + own];
                                UNROLL for (uint r = 0u; r < ROWS; r++) {
                                    const Chunk chunk = held[p * ROWS + r];
                                    const uint bits = NIBBLES ? WORD_OF(chunk.q, w) : quad_of(chunk, u, run, w);
                                    if (IS_FP8) special[r] |= special_bits(bits);
                                    const vec4 v = lifted_four(bits, run, MAGIC(n));
                                    float sum = sums[of + r];
                                    sum = FMA(a.x, v.x, sum);
                                    sum = FMA(a.y, v.y, sum);
                                    sum = FMA(a.z, v.z, sum);
                                    sums[of + r] = FMA(a.w, v.w, sum);
                                }
                            }
                        }
                    }
                    UNROLL for (uint inner = 0u; inner < INNER_RUNS; inner++) {
                        const uint run = outer + inner, to = run * SLAB + own;
                        const float all0 = given_sums[to], all1 = given_sums[to + SLAB / 2u];
                        const float back0 = NARROW ? 1.0f : given_back[to] * power_left();
                        const float back1 = NARROW ? 1.0f : given_back[to + SLAB / 2u] * power_left();
                        UNROLL for (uint r = 0u; r < ROWS; r++) {
                            const float sum0 = sums[inner * ROWS + r] * back0;
                            const float sum1 = sums[(INNER_RUNS + inner) * ROWS + r] * back1;
                            const uint u0 = (c < chunks ? c : chunks - 1u) % UNITS;
                            const Scale s = scale_from(words[r], u0, run);
                            if (SAME_SCALES) {
                                acc[r] = with_scale(acc[r], s, sum0 + sum1, all0 + all1);
                            } else {
                                const uint u1 = (c + 1u < chunks ? c + 1u : chunks - 1u) % UNITS;
                                uvec4 second = words[r];
                                if (!SAME_WORDS) second = others[r];
                                const Scale other = scale_from(second, u1, run);
                                acc[r] = with_scale(with_scale(acc[r], s, sum0, all0), other, sum1, all1);
                            }
                        }
                    }
                }
                if (c - 2u * lane + WIDE < chunks) FETCH(c + WIDE)
            }
            if (chunks > SLAB) BARRIER;
        }
        const uint next = tile + step;
        if (NORMED && !placed) {
            const float total = row_sum(squares);
            if (!(total < INFINITE) && down == 1.0f) {
                down = 7.8886090522101181e-31f;  // 2^-100
                FETCH(part * 64u + 2u * lane)
                continue;
            }
            inverse = p_rsqrt_f(total * p_recip_f(float(k)) + eps * down * down);
        }
        placed = true;
        if (next < tiles) {
            AIM(next)
            FETCH(part * 64u + 2u * lane)
        }
        UNROLL for (uint r = 0u; r < ROWS; r++) {
            const bool odd = IS_FP8 && (special[r] & 0x80808080u) != 0u;
            parts[r * 256u + THREAD] = odd ? RLX_FLOAT(0x7fc00000u) : acc[r] * ALL_BACK;
        }
        BARRIER;
        const uint row = THREAD / LIST, among = THREAD % LIST;
        if (THREAD < 64u * ROWS) {
            const uint own = row % ROWS * 256u + (row / ROWS * PARTS + among / 8u) * 32u + among % 8u;
            joined[THREAD] = (parts[own] + parts[own + 8u]) + (parts[own + 16u] + parts[own + 24u]);
        }
        BARRIER;
        const uint to = first_row + THREAD;
        if (THREAD < ROWS_HELD && to < n) {
            float v = row_made(THREAD / MADE * ROWS + THREAD % MADE);
            // A sum with infinity in it may be NaN because zeros and minimums are added up apart.
            if (IS_NAN(v)) v = dot_of(px, gamma, down, row_of(q, to, pitch), at, chunks, 0u);
            v *= inverse;
            if (HAS_BIAS) v += bias_at(bias, to);
            if (GATED) {
                float other = row_made(THREAD / MADE * ROWS + THREAD % MADE + MADE);
                if (IS_NAN(other)) other = dot_of(px, gamma, down, row_of(q, to + n, pitch), at, chunks, 0u);
                v = activated(v) * (other * inverse);
            }
            STORE(T, y, GROUP % m * n + to, v);
        }
        tile = next;
    }
}
