// y (m, n) = x times the transposed packed rows of q, for one row of x a workgroup, by dot products of four bytes: see
// packed.h. An element of x is an integer of three signed bytes, its digits to base 256, times a power of two that all
// elements share that a lane multiplies by one scale; what it loses is below 2^-23 of the largest of these. So sums of
// products with quants are exact integers, and no quant becomes a float. PARTS of the eight warps share ROWS rows of q, of
// which each lane takes every 32 PARTS-th PAIR of neighbouring chunks; the next ones are under way meanwhile. The digits
// lie in shared memory, SLAB chunks of them at a time, a multiple of 32 PARTS PAIR. Zeros and minimums are multiplied by
// the sum of x. NORMED: x is divided by its root mean square and multiplied by gamma. GATED: q has twice n rows, and y is
// act(row i) times row i + n. BIAS: see bias.h; y is rounded after the bias. IN_CHUNKS holds, the format's quants are
// integers, and x may be read four at a time.
#define TA T
#include "activation.h"
#include "bias.h"
#include "dot4.h"
#include "packed.h"
#define COUNT_2 2u
#define COUNT_4 4u
#define COUNT_8 8u
#define ROWS RLX_JOIN(COUNT_, HIGH)
#ifdef RLX_GLSL
#define ROLLED [[dont_unroll]]  // the driver would unroll it, beyond what the instruction cache holds
#else
#define ROLLED
#endif
#define PAIR 1u
#define DIGITS 3u
#define TEAMS (8u / PARTS)
#define MADE (GATED ? ROWS / 2u : ROWS)  // elements of y that a team makes
#define ROWS_HELD (TEAMS * MADE)
#define LIST (8u * PARTS)  // threads that add up a row
#define STEP (32u * PAIR * PARTS)
#define IS_IQ4 (FORMAT == IQ4_NL || FORMAT == IQ4_XS)
#define IS_BYTES (FORMAT == Q8_0 || FORMAT == INT8 || FORMAT == INT8_ZP)
// Whether the sum of a run may leave 32 bits: 2^22 times 16 quants. (No condition of constants has another on its right:
// glslang makes invalid modules of those.)
#define IS_LONG (FORMAT == Q8_0 || FORMAT == INT8 || FORMAT == INT8_ZP || FORMAT == IQ4_NL || FORMAT == IQ4_XS || FORMAT == Q6_K)
RLX_FN vec4 scaled_four(const vec4 a, const float b) { return VEC4(a.x * b, a.y * b, a.z * b, a.w * b); }
RLX_FN vec4 x_four(PTR(T) x, PTR(f32) gamma, const uint i, const float down) {
    const vec4 v = LOAD4(T, x, i);
    if (!NORMED) return v;
    const vec4 a = scaled_four(v, down), b = LOAD4(f32, gamma, i);
    return VEC4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}
#define DOT_MORE PTR(f32) gamma, const float down,
#define DOT_X(i) x_four(x, gamma, i, down)
#include "packed_dot.h"

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
#define WITHOUT_ZEROS (FORMAT == Q8_0 || FORMAT == INT8 || FORMAT == IQ4_NL || FORMAT == IQ4_XS)

// v * up, which is at most 2^22, as an integer plus 128 in each of its three bytes.
RLX_FN uint fixed_of(const float v, const float up) { return RLX_BITS(FMA(v, up, 12582912.0f)) - 0x4b400000u + 0x00808080u; }
// Digit j of four of these.
RLX_FN uint digits(const uvec4 t, const uint j) {
    const uint lower = (t.x >> 8u * j & 0xffu) | (t.y >> 8u * j & 0xffu) << 8;
    return (lower | (t.z >> 8u * j & 0xffu) << 16 | t.w >> 8u * j << 24) ^ 0x80808080u;
}
RLX_FN float largest_of(const vec4 v, const float so_far) {
    const float a = RLX_ABS(v.x), b = RLX_ABS(v.y), c = RLX_ABS(v.z), d = RLX_ABS(v.w);
    const float e = a > b ? a : b, f = c > d ? c : d, g = e > f ? e : f;
    return g > so_far ? g : so_far;
}
RLX_FN float squares_of(const vec4 v, const float sum) {
    return FMA(v.w, v.w, FMA(v.z, v.z, FMA(v.y, v.y, FMA(v.x, v.x, sum))));
}

SHARED uvec4 given[RUNS * DIGITS * SLAB];
SHARED float given_sums[RUNS * SLAB];
SHARED float given_back[RUNS * SLAB];
SHARED float parts[256u * ROWS];
SHARED float joined[64u * ROWS];
SHARED float thread_squares[NORMED ? 512u : 1u];
SHARED float joined_squares[NORMED ? 64u : 1u];

// The sum of a row, whose parts LIST threads have added up.
RLX_FN float row_made(const uint row) {
    float sum = 0.0f;
    for (uint j = 0u; j < LIST; j++) sum += joined[row * LIST + j];
    return sum;
}

// The chunks from c on of each row, of those that are there, and the words of their scales.
#define FETCH(c)                                                                                   \
    UNROLL for (uint r = 0u; r < ROWS; r++) {                                                      \
        UNROLL for (uint p = 0u; p < PAIR; p++) {                                                  \
            const uint from = (c) + p < chunks ? (c) + p : chunks - 1u;                            \
            next[r * PAIR + p] = chunk_of(rows[r], at, from / UNITS, from % UNITS);                \
        }                                                                                          \
        const uint first_of = (c) < chunks ? (c) : chunks - 1u;                                    \
        next_words[r] = scale_words(rows[r], at, first_of / UNITS, first_of % UNITS);              \
    }

RLX_FN void packed_digits_body(PTR(T) x, PTR(f32) gamma, PTR(u32) q, PTR(f32) bias, PTR(T) y, const uint m,
                               const uint n, const uint blocks, const uint pitch, const float eps) {
    const uint k = blocks * BLOCK, chunks = blocks * UNITS;
    const uint lane = THREAD % 32u, part = THREAD / 32u % PARTS, team = THREAD / 32u / PARTS;
    const uint start = GROUP / m * ROWS_HELD, mine = (part * 32u + lane) * PAIR;
    if (start >= n) return;
    PTR(T) px = SKIP(T, x, GROUP % m, k);
    const Planes at = planes_of(blocks);
    Row rows[ROWS];
    float acc[ROWS];
    Chunk next[ROWS * PAIR];
    uvec4 next_words[ROWS];
    UNROLL for (uint r = 0u; r < ROWS; r++) {
        const uint of = start + team * MADE + r % MADE;
        rows[r] = row_of(q, (of < n ? of : n - 1u) + (GATED && r >= MADE ? n : 0u), pitch);
        acc[r] = 0.0f;
    }
    FETCH(mine)
    float squares = 0.0f, less_squares = 0.0f;  // the latter of x times 2^-100
    ROLLED for (uint slab = 0u; slab < chunks; slab += SLAB) {
        // Chunks that are not there have zeros.
        ROLLED for (uint i = THREAD; i < RUNS * SLAB; i += 256u) {
            const uint run = i / SLAB, from = slab + i % SLAB;
            vec4 v[4];
            float most = 0.0f, sum = 0.0f;
            UNROLL for (uint w = 0u; w < 4u; w++) {
                vec4 four = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
                if (from < chunks) {
                    const uint e = element_of(from / UNITS, from % UNITS, run) / 4u + w;
                    four = LOAD4(T, px, e);
                    if (NORMED) {
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
            const uint high = RLX_BITS(most) >> 23, exponent = high < 22u ? 22u : high;
            const float up = RLX_FLOAT((275u - exponent) << 23);
            uvec4 t[4];
            UNROLL for (uint w = 0u; w < 4u; w++) {
                t[w] = PACKED4(fixed_of(v[w].x, up), fixed_of(v[w].y, up), fixed_of(v[w].z, up), fixed_of(v[w].w, up));
            }
            UNROLL for (uint j = 0u; j < DIGITS; j++) {
                given[(run * DIGITS + j) * SLAB + i % SLAB] =
                    PACKED4(digits(t[0], j), digits(t[1], j), digits(t[2], j), digits(t[3], j));
            }
            given_sums[i] = sum;
            // Where an element is infinite or no number, every sum becomes NaN and is made anew.
            given_back[i] = RLX_ABS(sum) < INFINITE ? RLX_FLOAT((exponent - 21u) << 23) : RLX_FLOAT(0x7fc00000u);
        }
        BARRIER;
        const uint count = chunks - slab < SLAB ? chunks - slab : SLAB;
        ROLLED for (uint i = mine; i < (count + STEP - 1u) / STEP * STEP; i += STEP) {
            Chunk held[ROWS * PAIR];
            uvec4 words[ROWS];
            UNROLL for (uint r = 0u; r < ROWS; r++) {
                UNROLL for (uint p = 0u; p < PAIR; p++) held[r * PAIR + p] = next[r * PAIR + p];
                words[r] = next_words[r];
            }
            const uint u = (slab + i < chunks ? slab + i : chunks - 1u) % UNITS;
            FETCH(slab + i + STEP)
            UNROLL for (uint run = 0u; run < RUNS; run++) {
                int dots[ROWS * DIGITS];
                UNROLL for (uint r = 0u; r < ROWS * DIGITS; r++) dots[r] = 0;
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
                    const int lower = dots[r * DIGITS] + dots[r * DIGITS + 1u] * 256, upper = dots[r * DIGITS + 2u];
                    float sum;
                    if (IS_LONG) sum = FMA(float(upper), 65536.0f, float(lower)) * back;
                    else sum = float(lower + upper * 65536) * back;
                    if (WITHOUT_ZEROS) acc[r] = FMA(s.s, sum, acc[r]);
                    else if (HAS_LOW) acc[r] = FMA(s.s, sum, FMA(s.m, all, acc[r]));
                    else acc[r] = FMA(s.s, FMA(-zero_left(s), all, sum), acc[r]);
                }
            }
        }
        if (slab + SLAB < chunks) BARRIER;
    }
    UNROLL for (uint r = 0u; r < ROWS; r++) parts[r * 256u + THREAD] = acc[r];
    if (NORMED) {
        thread_squares[THREAD] = squares;
        thread_squares[256u + THREAD] = less_squares;
    }
    BARRIER;
    if (NORMED && THREAD < 64u) {
        float sum = 0.0f;
        for (uint i = 0u; i < 8u; i++) sum += thread_squares[THREAD * 8u + i];
        joined_squares[THREAD] = sum;
    }
    for (uint i = THREAD; i < TEAMS * ROWS * LIST; i += 256u) {
        const uint row = i / LIST, among = i % LIST;
        const uint own = row % ROWS * 256u + (row / ROWS * PARTS + among / 8u) * 32u + among % 8u;
        joined[i] = (parts[own] + parts[own + 8u]) + (parts[own + 16u] + parts[own + 24u]);
    }
    BARRIER;
    const uint to = start + THREAD;
    if (THREAD < ROWS_HELD && to < n) {
        float down = 1.0f, inverse = 1.0f;
        if (NORMED) {
            float total = 0.0f, less = 0.0f;
            for (uint i = 0u; i < 32u; i++) {
                total += joined_squares[i];
                less += joined_squares[32u + i];
            }
            if (!(total < INFINITE)) {
                down = 7.8886090522101181e-31f;  // 2^-100
                total = less;
            }
            inverse = p_rsqrt_f(total * p_recip_f(float(k)) + eps * down * down);
        }
        float v = row_made(THREAD / MADE * ROWS + THREAD % MADE);
        // A sum with infinity in it may be NaN because zeros and minimums are added up apart.
        v = IS_NAN(v) ? dot_of(px, gamma, down, row_of(q, to, pitch), at, chunks, 0u) : v * down;
        v *= inverse;
        if (HAS_BIAS) v += bias_at(bias, to);
        if (GATED) {
            float other = row_made(THREAD / MADE * ROWS + THREAD % MADE + MADE);
            other = IS_NAN(other) ? dot_of(px, gamma, down, row_of(q, to + n, pitch), at, chunks, 0u) : other * down;
            v = activated(v) * (other * inverse);
        }
        STORE(T, y, GROUP % m * n + to, v);
    }
}
