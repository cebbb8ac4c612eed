// y (m, n) = x times the transposed packed rows of q, for one row of x a workgroup: see packed.h. PARTS of the eight
// warps share HIGH rows of q, of which each lane takes two neighbouring chunks in a step; the chunks of the next step
// are asked for as soon as those of this one are used, also before a workgroup takes its next rows, `step` tiles
// further on. The row of x lies in shared memory, SLAB chunks of it at a time, a multiple of 64 PARTS: as integers for
// dot products of bytes (LIMBS, packed_limbs.h), or placed for quants that stay as they lie in their words
// (packed_lifted.h). Zeros and minimums are multiplied by the sum of x. BLOCKS, PITCH: blocks of a row, and its bytes.
// WHOLE: the rows of a tile that one team has are all there, or none. NORMED: x is divided by its root mean square and
// multiplied by gamma. GATED: q has twice n rows, and y is act(row i) times row i + n. BIAS: see bias.h; y is rounded
// after the bias. EARLY: no kernel of the program writes q, which may so be read before the kernel before has ended.
// IN_CHUNKS holds, and x may be read four at a time.
#define TA T
#include "begin.h"
#include "activation.h"
#include "bias.h"
#define TABLED
#define READ_ONCE
#include "packed.h"
#define COUNT_2 2u
#define COUNT_3 3u
#define COUNT_4 4u
#define ROWS RLX_JOIN(COUNT_, HIGH)
#ifdef RLX_GLSL
// spirv-opt unrolls no loop around one whose length it does not know; what such a loop indexes would stay in memory.
#define OUTER_RUNS RUNS
#define INNER_RUNS 1u
// A row that a workgroup goes on to is known by its number: SwiftShader's compiler dies of addresses that a loop
// changes.
#define Aim uint
#define AIMED(q, row, more) ((row) + (more))
#define ROW_AIMED(q, aim) row_of(q, aim, PITCH)
#else
#define OUTER_RUNS 1u
#define INNER_RUNS RUNS
#define Aim Row
#define AIMED(q, row, more) row_after(q, row, more)
#define ROW_AIMED(q, aim) (aim)
#endif
#define TEAMS (8u / PARTS)
#define MADE (GATED ? ROWS / 2u : ROWS)  // elements of y that a team makes
#define ROWS_HELD (TEAMS * MADE)
#define LIST (8u * PARTS)  // threads that add up a row
#define WIDE (64u * PARTS)
// Whether two neighbouring chunks have the same words of scales, and the same scales.
#define SAME_WORDS (UNITS % 2u == 0u)
#define SAME_SCALES (SAME_WORDS && FORMAT != Q2_K && FORMAT != Q3_K && FORMAT != Q6_K && FORMAT != IQ4_XS)
#define SIGNED_BYTES (FORMAT == Q8_0 || FORMAT == INT8)
#ifdef RLX_GLSL
#define IN_LIMBS false
#else
#define IN_LIMBS LIMBS
#endif
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
#define GIVEN (IN_LIMBS ? 3u : 4u)  // words of shared memory for four elements of x
#define FOUR_OF(v) VEC4(RLX_FLOAT((v).x), RLX_FLOAT((v).y), RLX_FLOAT((v).z), RLX_FLOAT((v).w))
#define WORDS_OF(v) PACKED4(RLX_BITS((v).x), RLX_BITS((v).y), RLX_BITS((v).z), RLX_BITS((v).w))

// The sum of a run or two added to what a row has: `all` is that of x.
RLX_FN float with_scale(const float acc, const Scale s, const float sum, const float all) {
    if (HAS_LOW) return FMA(s.s, sum, FMA(s.m, all, acc));
    return FMA(s.s, FMA(-s.zero, all, sum), acc);
}

SHARED uvec4 given[RUNS * GIVEN * SLAB];
SHARED float given_sums[RUNS * SLAB];
SHARED float given_back[RUNS * SLAB];
RLX_FN float plus(const float a, const float b) { return a + b; }
LANES_OP(row_sum, 256u, plus)
#ifndef RLX_GLSL
// Row `row` + `more`: the second is known to the compiler, which makes it a part of instructions' addresses.
RLX_FN Row row_after(PTR(u32) q, const uint row, const uint more) {
    if (ALIGN < 4u) return row_of(q, row + more, PITCH);
    Row made = row_of(q, row, PITCH);
    made.words += more * (PITCH / 4u);
    return made;
}
#endif
// Both scales and both minimums of two chunks of Q4_K and Q5_K. What of their words a lane takes is the same in all
// steps.
#define IN_PAIRS (FORMAT == Q4_K || FORMAT == Q5_K)
struct Pick {
    uint shift, other, keep, more;
};
struct ScalePair {
    float s0, s1, m0, m1;
};
RLX_FN Pick pick_of(const uint u) {
    Pick made;
    made.other = u / 2u % 2u * 16u;
    made.shift = u < 4u ? made.other : made.other + 2u;
    made.keep = u < 4u ? 0x3f3fu : 0x3030u;
    made.more = u < 4u ? 0u : 0x0f0fu;
    return made;
}
// 256 times those of the second run, whose bytes stay in their places: d byte is exactly d (2^23 + byte) - 2^23 d.
#define PAIR_POWER(run) (IN_PAIRS && (run) == 1u ? 0.00390625f : 1.0f)
RLX_FN ScalePair pair_from(const uvec4 w, const Pick p, const uint magic) {
    const uint sc = w.y >> p.shift & p.keep | w.w >> p.other & p.more;
    const uint low = w.z >> p.shift & p.keep | w.w >> (p.other + 4u) & p.more;
    const float d = half_of(w.x), e = -half_of(w.x >> 16), d0 = d * -8388608.0f, e0 = e * -8388608.0f;
    ScalePair made;
    made.s0 = FMA(d, RLX_FLOAT(sc & 0xffu | magic), d0);
    made.s1 = FMA(d, RLX_FLOAT(sc & 0xff00u | magic), d0);
    made.m0 = FMA(e, RLX_FLOAT(low & 0xffu | magic), e0);
    made.m1 = FMA(e, RLX_FLOAT(low & 0xff00u | magic), e0);
    return made;
}

// A row's sum with what a run of its two chunks came to; `other` is that of the second where it has scales of its own.
RLX_FN float with_run(const float acc, const ScalePair pair, const uvec4 words, const uvec4 others, const uint run,
                      const uint unit, const uint own, const float sum, const float other) {
    const uint to = run * SLAB + own;
    const float all0 = given_sums[to] * PAIR_POWER(run), all1 = given_sums[to + SLAB / 2u] * PAIR_POWER(run);
    Scale s = scale_from(words, unit, run);
    if (IN_PAIRS) {
        s.s = run == 0u ? pair.s0 : pair.s1;
        s.m = run == 0u ? pair.m0 : pair.m1;
    }
    if (IN_LIMBS && SIGNED_BYTES) s.zero = 0.0f;
    if (SAME_SCALES) return with_scale(acc, s, sum + other, all0 + all1);
    Scale next = scale_from(SAME_WORDS ? words : others, (unit + 1u) % UNITS, run);
    if (IN_LIMBS && SIGNED_BYTES) next.zero = 0.0f;
    return with_scale(with_scale(acc, s, sum, all0), next, other, all1);
}
#include "packed_limbs.h"

// MEET(turn): adds up the rows of all threads; after a barrier ROW_MADE(row, turn) is the sum of a row of the tile,
// whose parts stay for one more MEET. OWN_ROW(turn): the row that a thread finishes, if it is one of the tile.
#ifdef RLX_GLSL
SHARED float parts[256u * ROWS];
SHARED float joined[64u * ROWS];
float row_made(const uint row) {
    float sum = 0.0f;
    for (uint j = 0u; j < LIST; j++) sum += joined[row * LIST + j];
    return sum;
}
#define ROW_MADE(row, turn) row_made(row)
#define OWN_ROW(turn) THREAD
#define MEET(turn)                                                                                  \
    UNROLL for (uint r = 0u; r < ROWS; r++) parts[r * 256u + THREAD] = acc[r];                      \
    barrier();                                                                                      \
    const uint row = THREAD / LIST, among = THREAD % LIST;                                          \
    if (THREAD < 64u * ROWS) {                                                                      \
        const uint own = row % ROWS * 256u + (row / ROWS * PARTS + among / 8u) * 32u + among % 8u;  \
        joined[THREAD] = (parts[own] + parts[own + 8u]) + (parts[own + 16u] + parts[own + 24u]);    \
    }
#else
SHARED float parts[2u * 8u * 4u];
RLX_FN float row_made(const uint row, const uint turn) {
    float sum = 0.0f;
    UNROLL for (uint j = 0u; j < PARTS; j++) sum += parts[turn % 2u * 32u + (row / ROWS * PARTS + j) * 4u + row % ROWS];
    return sum;
}
// What one of two neighbours adds up, lanes that have no bit of `bit` the first sum, the others the second.
RLX_FN float halved(const float a, const float b, const uint bit) {
    const bool second = (THREAD & bit) != 0u;
    return (second ? b : a) + __shfl_xor_sync(0xffffffffu, second ? a : b, bit);
}
// The sum over a warp of row lane % 4 of its rows.
RLX_FN float row_of_lane(const float* acc) {
    const float some = halved(acc[0], acc[1], 1u);
    float v = ROWS == 2u ? some : halved(some, halved(acc[2u % ROWS], ROWS == 4u ? acc[3u % ROWS] : 0.0f, 1u), 2u);
    UNROLL for (uint s = ROWS == 2u ? 2u : 4u; s < 32u; s *= 2u) v += __shfl_xor_sync(0xffffffffu, v, s);
    return v;
}
#define ROW_MADE(row, turn) row_made(row, turn)
#define OWN_ROW(turn) (THREAD - (turn) % 8u * 32u)  // by each warp in turn
#define MEET(turn)                                                                                  \
    const float sum = row_of_lane(acc);                                                             \
    if (lane < ROWS) parts[(turn) % 2u * 32u + warp * 4u + lane] = sum;
#endif

// Chunks c and c + 1 of each row, of those that are there, and the words of their scales.
#define FETCH(c)                                                                                    \
    UNROLL for (uint p = 0u; p < 2u; p++) {                                                         \
        const uint from = (c) + p < chunks ? (c) + p : chunks - 1u;                                 \
        UNROLL for (uint r = 0u; r < ROWS; r++) {                                                   \
            Row of = ROW_AIMED(q, rows[r]);                                                         \
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
        const uint first = (tile) * ROWS_HELD + team * MADE, most = n - (WHOLE ? MADE : 1u);        \
        const uint each = WHOLE ? 0u : r % MADE, of = first + each < most ? first + each : most;    \
        rows[r] = AIMED(q, of + (GATED && r >= MADE ? n : 0u), WHOLE ? r % MADE : 0u);              \
    }

RLX_FN void packed_line_body(PTR(T) x, PTR(f32) gamma, PTR(u32) q, PTR(f32) bias, PTR(T) y, const uint m,
                             const uint n, const uint step, const float eps) {
    const uint k = BLOCKS * BLOCK, chunks = BLOCKS * UNITS, tiles = (n + ROWS_HELD - 1u) / ROWS_HELD;
    const uint lane = THREAD % 32u, warp = THREAD / 32u, part = warp % PARTS, team = warp / PARTS;
    uint tile = GROUP / m;
    if (tile >= tiles) return;
    fill_table();
    PTR(T) px = SKIP(T, x, GROUP % m, k);
    const Planes at = planes_of(BLOCKS);
    const uint lane_unit = 2u * lane % UNITS;  // a lane's place in a block, the same in all steps
    const Pick pick = pick_of(lane_unit);
    Aim rows[ROWS];
    Chunk held[2u * ROWS];
    uvec4 words[ROWS], others[ROWS];
    if (!EARLY) BEGIN;
    AIM(tile)
    FETCH(part * 64u + 2u * lane)
    if (EARLY) BEGIN;
    float down = 1.0f, inverse = 1.0f;  // x is multiplied by the first where its squares overflow
    bool placed = false;
    uint turn = 0u;
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
                    if (IN_LIMBS) {
                        PLACE_LIMBS(v, run, to)
                    } else {
                        given_sums[to] = sum * ALL_DOWN;
                        const uint kept = exponent_kept(size);
                        if (!NARROW) given_back[to] = back_of(kept);
                        UNROLL for (uint w = 0u; w < 4u; w++) {
                            given[run * 3u * SLAB + w * SLAB + to] = WORDS_OF(placed_four(v[w], scale_of_x(kept), run));
                        }
                    }
                }
                BARRIER;
            }
            const uint count = chunks - slab < SLAB ? chunks - slab : SLAB;
            for (uint i = part * 64u; i < count; i += WIDE) {
                const uint c = slab + i + 2u * lane, own = i / 2u + lane;
                // Where chunks are not there, x is zero.
                const uint unit = 64u % UNITS == 0u ? lane_unit : c % UNITS;
                ScalePair pairs[ROWS];
                if (IN_PAIRS) {
                    UNROLL for (uint r = 0u; r < ROWS; r++) pairs[r] = pair_from(words[r], pick, MAGIC(n));
                }
                if (IN_LIMBS) {
                    ADD_LIMBS
                }
                UNROLL for (uint outer = 0u; outer < (IN_LIMBS ? 0u : OUTER_RUNS); outer++) {
                    float sums[2u * INNER_RUNS * ROWS];
                    UNROLL for (uint j = 0u; j < 2u * INNER_RUNS * ROWS; j++) sums[j] = 0.0f;
                    UNROLL for (uint p = 0u; p < 2u; p++) {
                        UNROLL for (uint w = 0u; w < 4u; w++) {
                            UNROLL for (uint inner = 0u; inner < INNER_RUNS; inner++) {
                                const uint run = outer + inner, of = (p * INNER_RUNS + inner) * ROWS;
                                const vec4 a = FOUR_OF(given[(run * 4u + w) * SLAB + p * (SLAB / 2u) + own]);
                                UNROLL for (uint r = 0u; r < ROWS; r++) {
                                    const Chunk chunk = held[p * ROWS + r];
                                    const uint u = (unit + p) % UNITS;
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
                        const float power = PAIR_POWER(run);
                        const float back0 = NARROW ? power : given_back[to] * power_left() * power;
                        const float back1 = NARROW ? power : given_back[to + SLAB / 2u] * power_left() * power;
                        UNROLL for (uint r = 0u; r < ROWS; r++) {
                            const float sum = sums[inner * ROWS + r] * back0;
                            const float other = sums[(INNER_RUNS + inner) * ROWS + r] * back1;
                            acc[r] = with_run(acc[r], pairs[r], words[r], others[r], run, unit, own, sum, other);
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
            acc[r] = odd ? RLX_FLOAT(0x7fc00000u) : acc[r] * (IN_LIMBS ? LIMBS_UP : ALL_BACK);
        }
        MEET(turn)
        BARRIER;
        const uint own = OWN_ROW(turn), to = first_row + own;
        if (own < ROWS_HELD && to < n) {
            float v = ROW_MADE(own / MADE * ROWS + own % MADE, turn);
            // A sum with infinity in it may be NaN because zeros and minimums are added up apart.
            if (IS_NAN(v)) v = dot_of(px, gamma, down, row_of(q, to, PITCH), at, chunks, 0u);
            v *= inverse;
            if (HAS_BIAS) v += bias_at(bias, to);
            if (GATED) {
                float other = ROW_MADE(own / MADE * ROWS + own % MADE + MADE, turn);
                if (IS_NAN(other)) other = dot_of(px, gamma, down, row_of(q, to + n, PITCH), at, chunks, 0u);
                v = activated(v) * (other * inverse);
            }
            STORE(T, y, GROUP % m * n + to, v);
        }
        tile = next;
        turn++;
    }
}
