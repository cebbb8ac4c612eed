// y (m, n) = x times the transposed packed rows of q, for one row of x a workgroup, by dot products of four bytes: see
// packed.h. An element of x is an integer of three signed bytes, its digits to base 256, times a power of two that the
// 16 elements of a run share; what it loses is below 2^-23 of the largest of these, or 2^-127. So sums of products with
// quants are exact integers, and no quant becomes a float. It is for Vulkan, where packed_line is slow without
// subnormals; on CUDA packed_line has such integers too (packed_limbs.h). A subgroup of 32 threads has ROWS rows of q,
// of which each lane takes every 32nd chunk; PARTS of them share these rows and chunks. The next chunks are under way
// meanwhile. The digits lie in shared memory, SLAB chunks of them at a time, a multiple of 32 PARTS. Zeros and minimums
// are multiplied by the sum of x. A workgroup takes every `step`-th tile of rows, and makes the digits once where all of
// them fit. norm: x is divided by its root mean square and multiplied by gamma. gate: q has twice n rows, and y is
// act(row i) times row i + n. add: there is a bias, for BIAS see bias.h; y is rounded after it. These three are arguments
// so that the products of a layer are one pipeline: where the code of a layer's kernels was longer than some 128 KB, each
// of them began later. HALVES: the device's own conversion keeps subnormal halves. IN_CHUNKS holds, the format's quants
// are integers, and x may be read four at a time.
#define TA T
#include "activation.h"
#include "bias.h"
#include "dot4.h"
#include "packed.h"
#define COUNT_2 2u
#define COUNT_4 4u
#define ROWS RLX_JOIN(COUNT_, HIGH)
#ifdef RLX_GLSL
#define ROLLED [[dont_unroll]]
#define LARGER(a, b) max(a, b)
#else
#define ROLLED
#define LARGER(a, b) fmaxf(a, b)
#endif
#ifndef WARPS
#define WARPS 8u
#endif
#define DIGITS 3u
#define TEAMS (WARPS / PARTS)
#define STEP (32u * PARTS)
// Whether no chunk is asked for beyond the last: faster where many registers are in use, else slower (on an H200).
#define NONE_BEYOND (RUNS * ROWS >= 8u)
#define IS_IQ4 (FORMAT == IQ4_NL || FORMAT == IQ4_XS)
#define IS_BYTES (FORMAT == Q8_0 || FORMAT == INT8 || FORMAT == INT8_ZP)
// Whether the sum of a run may leave 32 bits: 2^22 times 16 quants. (No condition of constants has another on its right:
// glslang makes invalid modules of those.)
#define IS_LONG (FORMAT == Q8_0 || FORMAT == INT8 || FORMAT == INT8_ZP || FORMAT == IQ4_NL || FORMAT == IQ4_XS || FORMAT == Q6_K)
#define WITHOUT_ZEROS (FORMAT == Q8_0 || FORMAT == INT8 || FORMAT == IQ4_NL || FORMAT == IQ4_XS)
RLX_FN vec4 scaled_four(const vec4 a, const float b) { return VEC4(a.x * b, a.y * b, a.z * b, a.w * b); }
RLX_FN vec4 x_four(PTR(T) x, PTR(f32) gamma, const uint i, const float down, const bool normed) {
    const vec4 v = LOAD4(T, x, i);
    if (!normed) return v;
    const vec4 a = scaled_four(v, down), b = LOAD4(f32, gamma, i);
    return VEC4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}
#define DOT_MORE PTR(f32) gamma, const float down, const bool normed,
#define DOT_X(i) x_four(x, gamma, i, down, normed)
#define DOT_LOOP ROLLED  // seldom run
#include "packed_dot.h"
RLX_FN float plus(const float a, const float b) { return a + b; }
LANES_OP(lanes_sum, 32u, plus)

// Word w of a run as signed bytes, and the zero that they still have.
RLX_FN uint signed_four(const Chunk c, const uint u, const uint run, const uint w) {
    const uint q = quad_of(c, u, run, w);
    if (IS_BYTES) return q ^ 0x80808080u;
    return IS_IQ4 ? (q ^ 0x80808080u) + 0x01010101u : q;
}
RLX_FN float zero_left(const Scale s) {
    if (IS_BYTES) return s.zero - 128.0f;
    return s.zero;
}

// v * up, which is at most 2^22, as an integer plus 128 in each of its three bytes.
RLX_FN uint fixed_of(const float v, const float up) {
    return RLX_BITS(FMA(v, up, 12582912.0f)) - 0x4b400000u + 0x00808080u;
}
// The digits of four of these: the first of all, the second, the third.
RLX_FN uvec4 digits_of(const vec4 v, const float up) {
    const uint a = fixed_of(v.x, up), b = fixed_of(v.y, up), c = fixed_of(v.z, up), d = fixed_of(v.w, up);
    const uint ab = a & 0x00ff00ffu | b << 8 & 0xff00ff00u, cd = c & 0x00ff00ffu | d << 8 & 0xff00ff00u;
    const uint middle = (a >> 8 & 0xffu | b & 0xff00u) | (c << 8 & 0xff0000u | d << 16 & 0xff000000u);
    return PACKED4((ab & 0xffffu | cd << 16) ^ 0x80808080u, middle ^ 0x80808080u,
                   (ab >> 16 | cd & 0xffff0000u) ^ 0x80808080u, 0u);
}
RLX_FN float largest_of(const vec4 v, const float so_far) {
    const float a = LARGER(RLX_ABS(v.x), RLX_ABS(v.y)), b = LARGER(RLX_ABS(v.z), RLX_ABS(v.w));
    return LARGER(LARGER(a, b), so_far);
}
RLX_FN float squares_of(const vec4 v, const float sum) {
    return FMA(v.w, v.w, FMA(v.z, v.z, FMA(v.y, v.y, FMA(v.x, v.x, sum))));
}

SHARED uvec4 given[RUNS * DIGITS * SLAB];
SHARED float given_sums[RUNS * SLAB];
SHARED float given_back[RUNS * SLAB];
SHARED float joined[PARTS > 1u ? 2u * WARPS * ROWS : 1u];
SHARED float joined_squares[2u * WARPS];

// Chunk c of a row: those of all blocks follow each other in the first plane.
RLX_FN Chunk chunk_at(const Row row, const Planes at, const uint c) {
    if (HIGH_WORDS) return chunk_of(row, at, c / UNITS, c % UNITS);
    Chunk made;
    made.q = sixteen_at(row, c * 16u);
    made.h = PACKED4(0u, 0u, 0u, 0u);
    if (HIGH_WORD) made.h.x = bytes_at(row, high_at(at, c / UNITS, c % UNITS), 4u);
    return made;
}
// Chunk c of each row, and the words of its scales.
#define FETCH(c)                                                                                   \
    {                                                                                              \
        const uint from = (c) < chunks ? (c) : chunks - 1u;                                        \
        UNROLL for (uint r = 0u; r < ROWS; r++) {                                                  \
            next[r] = chunk_at(rows[r], at, from);                                                 \
            next_words[r] = scale_words(rows[r], at, from / UNITS, from % UNITS);                  \
        }                                                                                          \
    }

RLX_FN void packed_digits_body(PTR(T) x, PTR(f32) gamma, PTR(u32) q, PTR(f32) bias, PTR(T) y, const uint m,
                               const uint n, const uint blocks, const uint pitch, const uint step, const uint norm,
                               const uint gate, const uint add, const float eps) {
    const bool normed = norm != 0u, gated = gate != 0u, biased = add != 0u;
    const uint made = gated ? ROWS / 2u : ROWS, high = TEAMS * made;  // elements of y that a team makes, and all
    const uint k = blocks * BLOCK, chunks = blocks * UNITS, tiles = (n + high - 1u) / high;
    const uint lane = THREAD % 32u, warp = THREAD / 32u, mine = warp % PARTS * 32u + lane;
    PTR(T) px = SKIP(T, x, GROUP % m, k);
    const Planes at = planes_of(blocks);
    bool placed = false;
    float down = 1.0f, inverse = 1.0f;
    uint turn = 0u;
    ROLLED for (uint tile = GROUP / m; tile < tiles; tile += step) {
        const uint first = tile * high + warp / PARTS * made;
        Row rows[ROWS];
        float acc[ROWS];
        Chunk next[ROWS];
        uvec4 next_words[ROWS];
        UNROLL for (uint r = 0u; r < ROWS; r++) {
            const uint of = first + r % made;
            rows[r] = row_of(q, (of < n ? of : n - 1u) + (gated && r >= made ? n : 0u), pitch);
            acc[r] = 0.0f;
        }
        FETCH(mine)
        const uint to = first + lane;
        const bool makes = lane < made && warp % PARTS == 0u && to < n;
        float added = 0.0f;
        if (biased && makes) added = bias_at(bias, to);
        float squares = 0.0f, less_squares = 0.0f;  // the latter of x times 2^-100
        ROLLED for (uint slab = 0u; slab < chunks; slab += SLAB) {
            const uint left = chunks - slab < SLAB ? chunks - slab : SLAB, count = (left + STEP - 1u) / STEP * STEP;
            if (!placed) {
                // Chunks that are not there have zeros.
                ROLLED for (uint i = THREAD; i < RUNS * count; i += 32u * WARPS) {
                    const uint run = i / 32u % RUNS, own = i / (32u * RUNS) * 32u + i % 32u, from = slab + own;
                    vec4 v[4];
                    float most = 0.0f, sum = 0.0f;
                    UNROLL for (uint w = 0u; w < 4u; w++) {
                        vec4 four = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
                        if (from < chunks) {
                            const uint e = element_of(from / UNITS, from % UNITS, run) / 4u + w;
                            four = LOAD4(T, px, e);
                            if (normed) {
                                squares = squares_of(four, squares);
                                less_squares = squares_of(scaled_four(four, 7.8886090522101181e-31f), less_squares);
                                const vec4 g = LOAD4(f32, gamma, e);
                                four = VEC4(four.x * g.x, four.y * g.y, four.z * g.z, four.w * g.w);
                            }
                        }
                        v[w] = four;
                        sum += (four.x + four.y) + (four.z + four.w);
                        most = largest_of(four, most);
                    }
                    // The largest is below 2^(exponent - 126), and becomes at most 2^22.
                    const uint found = RLX_BITS(most) >> 23, exponent = found < 22u ? 22u : found;
                    const float up = RLX_FLOAT((275u - exponent) << 23);
                    const uvec4 a = digits_of(v[0], up), b = digits_of(v[1], up);
                    const uvec4 c = digits_of(v[2], up), d = digits_of(v[3], up);
                    const uint place = run * DIGITS * SLAB + own;
                    given[place] = PACKED4(a.x, b.x, c.x, d.x);
                    given[place + SLAB] = PACKED4(a.y, b.y, c.y, d.y);
                    given[place + 2u * SLAB] = PACKED4(a.z, b.z, c.z, d.z);
                    given_sums[run * SLAB + own] = sum;
                    // Where an element is infinite or no number, every sum becomes NaN and is made anew.
                    const float back = RLX_FLOAT((exponent - 21u) << 23);
                    given_back[run * SLAB + own] = RLX_ABS(sum) < INFINITE ? back : RLX_FLOAT(0x7fc00000u);
                }
                if (normed && slab + SLAB >= chunks) {
                    const float all = lanes_sum(squares), less = lanes_sum(less_squares);
                    if (lane == 0u) {
                        joined_squares[warp] = all;
                        joined_squares[WARPS + warp] = less;
                    }
                }
                BARRIER;
            }
            ROLLED for (uint i = mine; i < count; i += STEP) {
                Chunk held[ROWS];
                uvec4 words[ROWS];
                UNROLL for (uint r = 0u; r < ROWS; r++) {
                    held[r] = next[r];
                    words[r] = next_words[r];
                }
                // The same in every step, if blocks are so long; where no chunk is left, it does not matter.
                uint u = mine % UNITS;
                if (32u % UNITS != 0u) u = (slab + i < chunks ? slab + i : chunks - 1u) % UNITS;
                if (!NONE_BEYOND || slab + i - mine + STEP < chunks) FETCH(slab + i + STEP)
                UNROLL for (uint run = 0u; run < RUNS; run++) {
                    int dots[ROWS * DIGITS];
                    UNROLL for (uint j = 0u; j < DIGITS; j++) {
                        const uvec4 a = given[(run * DIGITS + j) * SLAB + i];
                        UNROLL for (uint r = 0u; r < ROWS; r++) {
                            int sum = DOT4(signed_four(held[r], u, run, 0u), a.x, 0);
                            sum = DOT4(signed_four(held[r], u, run, 1u), a.y, sum);
                            sum = DOT4(signed_four(held[r], u, run, 2u), a.z, sum);
                            dots[r * DIGITS + j] = DOT4(signed_four(held[r], u, run, 3u), a.w, sum);
                        }
                    }
                    const float all = given_sums[run * SLAB + i], back = given_back[run * SLAB + i];
                    UNROLL for (uint r = 0u; r < ROWS; r++) {
                        const Scale s = scale_from(words[r], u, run);
                        const int lower = dots[r * DIGITS] + dots[r * DIGITS + 1u] * 256;
                        const int upper = dots[r * DIGITS + 2u];
                        float sum;
                        if (IS_LONG) sum = FMA(float(upper), 65536.0f, float(lower)) * back;
                        else sum = float(lower + upper * 65536) * back;
                        if (WITHOUT_ZEROS) acc[r] = FMA(s.s, sum, acc[r]);
                        else if (HAS_LOW) acc[r] = FMA(s.s, sum, FMA(s.m, all, acc[r]));
                        else acc[r] = FMA(s.s, FMA(-zero_left(s), all, sum), acc[r]);
                    }
                }
            }
            if (chunks > SLAB) BARRIER;
        }
        // Lane r has the sum of row r, and of row r + made.
        float v = 0.0f, other = 0.0f;
        UNROLL for (uint r = 0u; r < ROWS; r++) {
            const float sum = lanes_sum(acc[r]);
            if (lane == r) v = sum;
            if (gated && lane + made == r) other = sum;
        }
        if (PARTS > 1u) {
            if (lane < ROWS) joined[(turn % 2u * WARPS + warp) * ROWS + lane] = v;
            BARRIER;
            if (makes) {
                for (uint p = 1u; p < PARTS; p++) {
                    v += joined[(turn % 2u * WARPS + warp + p) * ROWS + lane];
                    if (gated) other += joined[(turn % 2u * WARPS + warp + p) * ROWS + lane + made];
                }
            }
        }
        if (normed && !placed) {
            float total = 0.0f, less = 0.0f;
            UNROLL for (uint i = 0u; i < WARPS; i++) {
                total += joined_squares[i];
                less += joined_squares[WARPS + i];
            }
            if (!(total < INFINITE)) {
                down = 7.8886090522101181e-31f;  // 2^-100
                total = less;
            }
            inverse = p_rsqrt_f(total * p_recip_f(float(k)) + eps * down * down);
        }
        placed = chunks <= SLAB;
        if (makes) {
            // A sum may be NaN because zeros and minimums are added up apart, and infinite because it is not scaled down
            // yet.
            ROLLED for (uint side = 0u; side < (gated ? 2u : 1u); side++) {
                float sum = side == 0u ? v : other;
                if (RLX_ABS(sum) < INFINITE) sum *= down;
                else sum = dot_of(px, gamma, down, normed, row_of(q, to + side * n, pitch), at, chunks, 0u);
                if (side == 0u) v = sum; else other = sum;
            }
            v = FMA(v, inverse, added);
            if (gated) v = activated(v) * (other * inverse);
            STORE(T, y, GROUP % m * n + to, v);
        }
        turn++;
    }
}
