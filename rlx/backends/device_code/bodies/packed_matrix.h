// y (m, n) = x times the transposed packed rows of q, for few rows of x in halves, by matrix instructions, where nobody
// knows which elements of a matrix a thread holds: see packed.h. A matrix holds pairs of neighbouring bytes of 16 rows of q
// as if they were halves. A mask, applied to each element wherever it is, leaves a small integer, which is a subnormal
// half: 2^-24 of it, exactly. One mask leaves (nibbles of) the lower byte of each pair and another those of the upper, so
// rows of x have the even elements of each run before the odd ones in shared memory. Sums are f32 and begin at minus the
// zero times the sum of x, a product with a constant matrix; scales multiply the sums of their runs.
// Of four subgroups PARTS share TALL times 16 rows of q and join their sums. Those with the same part of k share X_ROWS
// rows of x. A step is 4 SPAN chunks of each row; what the next one needs is under way meanwhile. SCALES: the scales of a
// chunk, one or one for each run; IN_PAIRS: chunks 2 i and 2 i + 1 of a row share them, and a matrix holds both, DEPTH is
// 16 and not 8; LOWS: 1 for formats with minimums or zeros, else 0. TERMS: with 2, rows 2 i and 2 i + 1 of x are the halves
// of an f32 (see half_terms.h). Y_TYPE: 0 for y in f16; with 1, bf16, and 2, f32, `scales` has a power of two for each row.
// ALIGN is 16, chunks are whole steps, and x can be read eight elements at a time.
#define MATRIX T
#include "packed.h"
#include "packed_dot.h"
#include "stream.h"
#define LONG (4u * SPAN)  // chunks of a step
#define PITCH (LONG + 1u)  // units of a row in shared memory: a step's, and one that keeps the banks of eight rows apart
#define ALIKE (IN_PAIRS ? 2u : 1u)  // neighbouring chunks that share scales
#define SLOTS (LONG / ALIKE)
#define HAS_ZEROS (FORMAT == INT8_ZP || FORMAT == INT4_ZP)
#define WARPS 4u
#define TILES (WARPS * TALL)  // of 16 rows of q
#define TOGETHER (WARPS / PARTS)  // subgroups that share rows of x
#define ROWS_HELD (16u * TALL * TOGETHER)
#define WIDE_X (X_ROWS > 8u)  // two matrices of eight rows of x
#define X_RUNS (LONG * RUNS)
#define X_PITCH (X_RUNS * 2u + 1u)
#define X_AT (TILES * 16u * PITCH)
#define X_PAST (X_ROWS % 8u == 0u ? 0u : 8u - X_ROWS)  // rows that matrices read, and nobody uses
#define H_UNITS (FORMAT == Q6_K && SPAN == 2u ? 4u : 2u)  // units of higher bits that a step has of each row
#define H_PITCH (H_UNITS + 1u)
#define H_AT (X_AT + (PARTS * X_ROWS + X_PAST) * X_PITCH)
#define SUMS_PITCH (WIDE_X ? 4u : 2u)  // units of a row of sums
// Chunks whose first runs lie beside each other in x, before the second runs of the same chunks.
#define TWO_ABREAST \
    (FORMAT == Q2_K || FORMAT == Q3_K || FORMAT == Q4_K || FORMAT == Q5_K || FORMAT == TQ2_0)
#define ABREAST (FORMAT == Q6_K ? 4u : TWO_ABREAST ? 2u : 1u)

SHARED uvec4 units[H_AT + (HIGH_WORDS ? TILES * 16u * H_PITCH : 0u)];
SHARED float factors[TILES * SLOTS * SCALES * 16u];  // of each subgroup: by slot, run and row
SHARED float lows[LOWS * TILES * SLOTS * SCALES * 16u + 1u];  // minimums

#define LANE_ROW (LANE / 4u)
#define LANE_QUAD (LANE % 4u)
#ifdef RLX_GLSL
// Eight or four elements of a matrix of q in each thread, and four sums: the subgroup has 32 threads.
#define QUANTS coopmat<float16_t, gl_ScopeSubgroup, 16, DEPTH, gl_MatrixUseA>
#define GIVEN coopmat<float16_t, gl_ScopeSubgroup, DEPTH, 8, gl_MatrixUseB>
#define PARTIAL coopmat<float, gl_ScopeSubgroup, 16, 8, gl_MatrixUseAccumulator>
#define LOAD_QUANTS(to, at, row) coopMatLoad(to, units, at, row, gl_CooperativeMatrixLayoutRowMajor);
#define LOAD_GIVEN(to, at, row) coopMatLoad(to, units, at, row, gl_CooperativeMatrixLayoutColumnMajor);
#define LOAD_ROWS(to, from, at) coopMatLoad(to, from, at, 0u, gl_CooperativeMatrixLayoutColumnMajor);
#define MULTIPLY_GIVEN(to, a, b) to = coopMatMulAdd(a, b, to);
#define PARTIAL_ZERO(to) to = PARTIAL(0.0f);
#define STORE_PARTIAL(from, at) coopMatStore(from, units, at, SUMS_PITCH, gl_CooperativeMatrixLayoutRowMajor);
#define PUT_WORD(i, w) units[(i) / 4u][(i) % 4u] = w;
#define PAIR_OF(m, e) packFloat2x16(f16vec2(m[e], m[e + 1]))
#define SET_PAIRS(to, word)                           \
    UNROLL for (int e = 0; e < DEPTH / 2; e += 2) {   \
        const f16vec2 pair = unpackFloat2x16(word);   \
        to[e] = pair.x;                               \
        to[e + 1] = pair.y;                           \
    }
#define ADD_SCALED(to, s, sum) \
    UNROLL for (int e = 0; e < 4; e++) to[e] = fma(s[e], sum[e], to[e]);
#else
struct Quants {
    uint r[4];
};
struct Given {
    uint r[2];
};
struct Partial {
    float c[4];
};
#define QUANTS Quants
#define GIVEN Given
#define PARTIAL Partial
#define LOAD_QUANTS(to, at, row)                                                                       \
    UNROLL for (uint e = 0u; e < 4u; e++) {                                                            \
        to.r[e] = e < 2u || IN_PAIRS                                                                   \
                      ? WORD_OF(units[(at) + (LANE_ROW + e % 2u * 8u) * (row) + e / 2u], LANE_QUAD)    \
                      : 0u;                                                                            \
    }
#define LOAD_GIVEN(to, at, row)                                                                        \
    UNROLL for (uint e = 0u; e < 2u; e++) {                                                            \
        to.r[e] = e < 1u || IN_PAIRS ? WORD_OF(units[(at) + LANE_ROW * (row) + e], LANE_QUAD) : 0u;    \
    }
#define LOAD_ROWS(to, from, at) \
    UNROLL for (uint e = 0u; e < 4u; e++) to.c[e] = from[(at) + LANE_ROW + e / 2u * 8u];
#define MULTIPLY_GIVEN(to, a, b) RLX_JOIN(rlx_mma_, T)(to.c, a.r, b.r);
#define PARTIAL_ZERO(to) { UNROLL for (uint e = 0u; e < 4u; e++) to.c[e] = 0.0f; }
#define PUT_WORD(i, w) ((uint*)units)[i] = w;
#define STORE_PARTIAL(from, at)                                                                                         \
    {                                                                                                                   \
        UNROLL for (uint e = 0u; e < 4u; e++) {                                                                         \
            PUT_WORD(((at) + (LANE_ROW + e / 2u * 8u) * SUMS_PITCH) * 4u + LANE_QUAD * 2u + e % 2u, RLX_BITS(from.c[e])) \
        }                                                                                                               \
    }
#define PAIR_OF(m, e) m.r[e]
#define SET_PAIRS(to, word) { UNROLL for (uint e = 0u; e < 4u; e++) to.r[e] = word; }
#define ADD_SCALED(to, s, sum) { UNROLL for (uint e = 0u; e < 4u; e++) to.c[e] = FMA(s.c[e], sum.c[e], to.c[e]); }
#endif

#define POWER (FORMAT == FP8_E5M2 ? 1.0f : FORMAT == FP8_E4M3 ? 256.0f : 16777216.0f)
#define LESS_ZERO (!IS_FP8 && !HAS_ZEROS && !HAS_LOW)  // sums begin at minus the zero times the sum of x
#define CONSTANT (LESS_ZERO ? (0x8000u | uint(zero_of())) * 0x00010001u : 0x00010001u)

// Two halves from two pairs of bytes: of each pair the lower byte or the upper, or the bits of run `run` in it. h: the
// words that hold their higher bits, of chunk u.
RLX_FN uint quants_of(const uint q, const uint h, const uint run, const uint odd, const uint u) {
    const uint w = q >> (8u * odd);
    if (FORMAT == FP8_E4M3) {
        return odd == 0u ? q << 7 & 0x3f803f80u | q << 8 & 0x80008000u : q >> 1 & 0x3f803f80u | q & 0x80008000u;
    }
    if (FORMAT == FP8_E5M2) return odd == 0u ? q << 8 & 0xff00ff00u : q & 0xff00ff00u;
    if (RUNS == 1u) return w & 0x00ff00ffu;
    if (RUNS == 4u) {
        const uint low = w >> (2u * run) & 0x00030003u;
        return FORMAT == Q3_K ? low | (h >> (8u * odd + u / 2u * 4u + run) & 0x00010001u) << 2 : low;
    }
    const uint low = w >> (4u * run) & 0x000f000fu;
    if (FORMAT == Q5_K) return low | (h >> (8u * odd + u / 2u * 2u + run) & 0x00010001u) << 4;
    if (FORMAT == Q6_K) return low | (h >> (8u * odd + u % 4u / 2u * 2u + 4u * run) & 0x00030003u) << 4;
    return low;
}

// What the next step needs of q: its chunks, the words of its scales, and higher bits. A step beyond the last one is read
// as the last one; x is zeros there.
#define SCALE_PLANE (FORMAT == Q4_0 || FORMAT == Q8_0)  // scales are halves beside each other: two threads for each row
#define FETCH_STEP(first)                                                                                       \
    {                                                                                                           \
        const uint here = least(first, chunks - LONG);                                                          \
        UNROLL for (uint t = 0u; t < 2u; t++) {                                                                 \
            if (t < TALL) {                                                                                     \
                UNROLL for (uint i = 0u; i < 2u; i++) {                                                         \
                    if (i < SPAN) {                                                                             \
                        next[4u * t + 2u * i] = sixteen_at(rows[2u * t], (here + 4u * i + LANE_QUAD) * 16u);    \
                        next[4u * t + 2u * i + 1u] =                                                            \
                            sixteen_at(rows[2u * t + 1u], (here + 4u * i + LANE_QUAD) * 16u);                   \
                    }                                                                                           \
                    if (!SCALE_PLANE && !ROW_SCALES && 4u * i + LANE_QUAD < SLOTS) {                                     \
                        const uint own = here + (4u * i + LANE_QUAD) * ALIKE;                                   \
                        words[4u * t + 2u * i] = scale_words(rows[2u * t], at, own / UNITS, own % UNITS);       \
                        words[4u * t + 2u * i + 1u] =                                                           \
                            scale_words(rows[2u * t + 1u], at, own / UNITS, own % UNITS);                       \
                    }                                                                                           \
                }                                                                                               \
                if (SCALE_PLANE) {                                                                              \
                    UNROLL for (uint i = 0u; i < SLOTS_MOST / 4u; i++) {                                        \
                        if (4u * i < SLOTS) {                                                                 \
                            const uint to = at.at1 + here / UNITS * 2u + LANE % 2u * SLOTS + 4u * i;            \
                            words[4u * t + i].x = bytes_at(paired[t], to, SLOTS == 2u ? 2u : 4u);               \
                        }                                                                                       \
                    }                                                                                           \
                }                                                                                               \
                if (HIGH_WORDS && LANE_QUAD < H_UNITS) {                                                        \
                    const uint to = high_at(at, here / UNITS, here % UNITS) + LANE_QUAD * 16u;                  \
                    highs_of[2u * t] = sixteen_at(rows[2u * t], to);                                            \
                    highs_of[2u * t + 1u] = sixteen_at(rows[2u * t + 1u], to);                                  \
                }                                                                                               \
            }                                                                                                   \
        }                                                                                                       \
        if (ROW_SCALES) {                                                                                       \
            const uint b = here / UNITS;                                                                        \
            if (FORMAT == Q6_K) {                                                                               \
                words[0] = sixteen_at(lane_row, at.at2 + b * 16u);                                              \
                words[1].x = bytes_at(lane_row, at.at3 + b * 2u, 2u);                                           \
            } else {                                                                                            \
                const uint scales_at = (FORMAT == Q4_K ? at.at1 : at.at2) + b * 12u;                            \
                words[0].x = bytes_at(lane_row, scales_at, 4u);                                                 \
                words[0].y = bytes_at(lane_row, scales_at + 4u, 4u);                                            \
                words[0].z = bytes_at(lane_row, scales_at + 8u, 4u);                                            \
                words[1].x = bytes_at(lane_row, (FORMAT == Q4_K ? at.at2 : at.at3) + b * 4u, 4u);               \
            }                                                                                                   \
        }                                                                                                       \
    }
#define SLOTS_MOST 8u
#define FLIPPED (FORMAT == Q8_0 || FORMAT == INT8 ? 0x80808080u : 0u)  // signed bytes become unsigned ones
// A step is a block of 256 elements, and a thread decodes all scales of a row.
#define ROW_SCALES ((FORMAT == Q4_K || FORMAT == Q5_K || FORMAT == Q6_K) && SPAN == 2u)
#define PUT_SCALE(i, slot, run, value, low)                                                    \
    {                                                                                          \
        const uint to = factor + ((tile_of * SLOTS + (slot)) * SCALES + (run)) * 16u + LANE % 16u; \
        factors[to] = value;                                                                   \
        if (LOWS == 1u) lows[to] = low;                                                        \
    }
// And of x: runs of 16 elements, which are zeros beyond the last one.
#define X_STEP (32u * TOGETHER)
#define FETCH_X(first)                                                                           \
    UNROLL for (uint i = 0u; i < 8u; i++) {                                                      \
        if (i * X_STEP < X_ROWS * X_RUNS) {                                                      \
            const uint item = i * X_STEP + mate, row = item / X_RUNS;                            \
            const uint e = ((first) * RUNS + item % X_RUNS) * 16u;                               \
            next_x[2u * i] = PACKED4(0u, 0u, 0u, 0u);                                            \
            next_x[2u * i + 1u] = next_x[2u * i];                                                \
            if (row < rows_x && (first) < chunks) {                                                         \
                next_x[2u * i] = LOAD_UNIT(px, (row * k + e) / 8u);                              \
                next_x[2u * i + 1u] = LOAD_UNIT(px, (row * k + e) / 8u + 1u);                    \
            }                                                                                    \
        }                                                                                        \
    }
#define HIGH_PAIR(t, e) (HIGH_WORDS ? PAIR_OF(high[t], e) : 0u)
#define EVEN(a, b) ((a) & 0xffffu | (b) << 16)
#define ODD(a, b) ((a) >> 16 | (b) & 0xffff0000u)

// Stores a result of a row of x, whose power of two is `scale`, as the type that x had.
#define PUT(Y, scale) STORE(Y, AS(Y, y), at_y, sum * (scale))
#ifdef RLX_GLSL
#define AS(Y, p) PTR(Y)(uvec2(p))
#else
#define AS(Y, p) (PTR(Y))(p)
#endif
#define TERM 0.00048828125f  // what the second half of an f32 is times

RLX_FN void packed_matrix_body(PTR(T) x, PTR(u32) q, PTR(f32) scales, PTR(T) y, const uint given_rows, const uint n,
                               const uint blocks, const uint pitch) {
    const uint m = given_rows * TERMS;  // rows of halves
    const uint k = blocks * BLOCK, chunks = blocks * UNITS, shares = (m + X_ROWS - 1u) / X_ROWS;
    // Neighbouring groups read the same rows of q.
    const uint start = GROUP / shares * ROWS_HELD, first_x = GROUP % shares * X_ROWS;
    if (start >= n) return;
    const uint rows_x = least(m - first_x, X_ROWS), part = WARP % PARTS, mate = WARP / PARTS * 32u + LANE;
    PTR(T) px = SKIP(T, x, first_x, k);
    const Planes at = planes_of(blocks);
    // A row that is not there is read as the last one, and not stored.
    const uint first_row = start + WARP / PARTS * 16u * TALL;
    Row rows[4];
    Row paired[2];
    UNROLL for (uint t = 0u; t < 2u; t++) {
        rows[2u * t] = row_of(q, least(first_row + t * 16u + LANE_ROW, n - 1u), pitch);
        rows[2u * t + 1u] = row_of(q, least(first_row + t * 16u + LANE_ROW + 8u, n - 1u), pitch);
        paired[t] = row_of(q, least(first_row + t * 16u + LANE / 2u, n - 1u), pitch);
    }
    const uint mine = WARP * TALL * 16u * PITCH, factor = WARP * TALL * SLOTS * SCALES * 16u;
    const uint xs = X_AT + part * X_ROWS * X_PITCH, highs = H_AT + WARP * TALL * 16u * H_PITCH;
    const uint tile_of = TALL == 2u ? LANE / 16u : 0u;
    Row lane_row = row_of(q, least(first_row + tile_of * 16u + LANE % 16u, n - 1u), pitch);
    uvec4 next[8], words[8], highs_of[4], next_x[16];
    FETCH_STEP(part * LONG)
    FETCH_X(part * LONG)
    PARTIAL acc[4];
    UNROLL for (uint i = 0u; i < 4u; i++) PARTIAL_ZERO(acc[i])
    QUANTS constant;  // hidden from the compiler, which may take subnormal constants for zeros
    SET_PAIRS(constant, CONSTANT + (n >> 31))
    uint nan[4];  // whether a byte of e4m3 was NaN, in the rows of this thread
    UNROLL for (uint i = 0u; i < 4u; i++) nan[i] = 0u;
    for (uint from = part * LONG; from < chunks + part * LONG; from += LONG * PARTS) {
        if (TOGETHER == 1u) {
            SYNC_WARP;
        } else {
            BARRIER;
        }
        UNROLL for (uint t = 0u; t < 2u; t++) {
            if (t < TALL) {
                const uint own = mine + (t * 16u + LANE_ROW) * PITCH + LANE_QUAD;
                UNROLL for (uint i = 0u; i < 2u; i++) {
                    if (i < SPAN) {
                        UNROLL for (uint h = 0u; h < 2u; h++) {
                            const uvec4 w = next[4u * t + 2u * i + h];
                            units[own + h * 8u * PITCH + 4u * i] =
                                PACKED4(w.x ^ FLIPPED, w.y ^ FLIPPED, w.z ^ FLIPPED, w.w ^ FLIPPED);
                            if (FORMAT == FP8_E4M3) {
                                nan[2u * t + h] |= (w.x & 0x7f7f7f7fu) + 0x01010101u | (w.y & 0x7f7f7f7fu) + 0x01010101u |
                                                   (w.z & 0x7f7f7f7fu) + 0x01010101u | (w.w & 0x7f7f7f7fu) + 0x01010101u;
                            }
                        }
                    }
                    const uint slot = 4u * i + LANE_QUAD;
                    if (!SCALE_PLANE && !ROW_SCALES && slot < SLOTS) {
                        const uint u = (UNITS <= LONG ? slot * ALIKE : from + slot * ALIKE) % UNITS;
                        UNROLL for (uint run = 0u; run < 4u; run++) {
                            if (run < SCALES) {
                                UNROLL for (uint h = 0u; h < 2u; h++) {
                                    const Scale s = scale_from(words[4u * t + 2u * i + h], u, run);
                                    const uint to = factor + ((t * SLOTS + slot) * SCALES + run) * 16u + LANE_ROW + h * 8u;
                                    factors[to] = s.s;
                                    if (LOWS == 1u) lows[to] = HAS_LOW ? s.m : -(s.s * s.zero);
                                }
                            }
                        }
                    }
                }
                if (SCALE_PLANE) {
                    UNROLL for (uint i = 0u; i < SLOTS_MOST / 2u; i++) {
                        if (i < SLOTS / 2u) {
                            const uint to = factor + (t * SLOTS + LANE % 2u * (SLOTS / 2u) + i) * 16u + LANE / 2u;
                            factors[to] = half_of(words[4u * t + i / 2u].x >> (i % 2u * 16u));
                        }
                    }
                }
                if (HIGH_WORDS && LANE_QUAD < H_UNITS) {
                    const uint to = highs + (t * 16u + LANE_ROW) * H_PITCH + LANE_QUAD;
                    units[to] = highs_of[2u * t];
                    units[to + 8u * H_PITCH] = highs_of[2u * t + 1u];
                }
            }
        }
        if (ROW_SCALES && FORMAT == Q6_K) {
            const float d = half_of(words[1].x);
            UNROLL for (uint i = 0u; i < 16u; i++) {
                const float s = d * signed_byte(WORD_OF(words[0], i / 4u) >> (i % 4u * 8u));
                PUT_SCALE(i, i / 8u * 4u + i % 4u, i / 4u % 2u, s, 0.0f)
            }
        } else if (ROW_SCALES) {
            const float d = half_of(words[1].x), least_d = -half_of(words[1].x >> 16);
            const uvec4 w = words[0];
            const uint high_s = w.z & 0x0f0f0f0fu | w.x >> 2 & 0x30303030u;
            const uint high_m = w.z >> 4 & 0x0f0f0f0fu | w.y >> 2 & 0x30303030u;
            UNROLL for (uint i = 0u; i < 8u; i++) {
                const uint s = (i < 4u ? w.x & 0x3f3f3f3fu : high_s) >> (i % 4u * 8u) & 0xffu;
                const uint m = (i < 4u ? w.y & 0x3f3f3f3fu : high_m) >> (i % 4u * 8u) & 0xffu;
                PUT_SCALE(i, i / 2u, i % 2u, d * float(s), least_d * float(m))
            }
        }
        UNROLL for (uint i = 0u; i < 8u; i++) {
            const uint item = i * X_STEP + mate, r = item % X_RUNS;
            if (i * X_STEP < X_ROWS * X_RUNS && item < X_ROWS * X_RUNS) {
                const uint j = r / (RUNS * ABREAST) * ABREAST + r % ABREAST, run = r / ABREAST % RUNS;
                const uint to = xs + item / X_RUNS * X_PITCH + run * 2u * LONG + j;
                const uvec4 a = next_x[2u * i], b = next_x[2u * i + 1u];
                units[to] = PACKED4(EVEN(a.x, a.y), EVEN(a.z, a.w), EVEN(b.x, b.y), EVEN(b.z, b.w));
                units[to + LONG] = PACKED4(ODD(a.x, a.y), ODD(a.z, a.w), ODD(b.x, b.y), ODD(b.z, b.w));
            }
        }
        if (from + LONG * PARTS < chunks) {
            FETCH_STEP(from + LONG * PARTS)
        }
        if (from + LONG * PARTS < chunks + part * LONG) {
            FETCH_X(from + LONG * PARTS)
        }
        if (TOGETHER == 1u) {
            SYNC_WARP;
        } else {
            BARRIER;
        }
        // Not unrolled: registers would be too many.
        for (uint jj = 0u; jj < LONG; jj += 2u) {
            UNROLL for (uint j4 = 0u; j4 < 2u; j4++) {
                if (j4 % ALIKE == 0u) {
                    const uint j = jj + j4;
                    const uint u = (UNITS <= LONG ? j : from + j) % UNITS;
                    QUANTS raw[2], high[2];
                    UNROLL for (uint t = 0u; t < 2u; t++) {
                        if (t < TALL) {
                            LOAD_QUANTS(raw[t], mine + t * 16u * PITCH + j, PITCH)
                            if (HIGH_WORDS) {
                                const uint unit = FORMAT == Q6_K && SPAN == 2u ? j / 4u * 2u + j % 2u : j % 2u;
                                LOAD_QUANTS(high[t], highs + t * 16u * H_PITCH + unit, H_PITCH)
                            }
                        }
                    }
                    GIVEN given[16];
                    PARTIAL ones[8];
                    UNROLL for (uint run = 0u; run < 4u; run++) {
                        UNROLL for (uint c = 0u; c < 2u; c++) {
                            if (run < RUNS && (c == 0u || WIDE_X)) {
                                const uint own = (SCALES > 1u ? 2u * run : 0u) + c;
                                if (SCALES > 1u || run == 0u) PARTIAL_ZERO(ones[own])
                                UNROLL for (uint odd = 0u; odd < 2u; odd++) {
                                    const uint b = 4u * run + 2u * odd + c;
                                    LOAD_GIVEN(given[b], xs + c * 8u * X_PITCH + (run * 2u + odd) * LONG + j, X_PITCH)
                                    if (!IS_FP8) MULTIPLY_GIVEN(ones[own], constant, given[b])
                                }
                            }
                        }
                    }
                    UNROLL for (uint t = 0u; t < 2u; t++) {
                        if (t < TALL) {
                            PARTIAL sums[2];
                            UNROLL for (uint run = 0u; run < 4u; run++) {
                                if (run < RUNS) {
                                    UNROLL for (uint odd = 0u; odd < 2u; odd++) {
                                        QUANTS quants;
                                        SET_PAIRS(quants, quants_of(PAIR_OF(raw[t], e), HIGH_PAIR(t, e), run, odd, u))
                                        UNROLL for (uint c = 0u; c < 2u; c++) {
                                            if (c == 0u || WIDE_X) {
                                                if (odd == 0u && (SCALES > 1u || run == 0u)) {
                                                    if (LESS_ZERO) {
                                                        sums[c] = ones[(SCALES > 1u ? 2u * run : 0u) + c];
                                                    } else {
                                                        PARTIAL_ZERO(sums[c])
                                                    }
                                                }
                                                MULTIPLY_GIVEN(sums[c], quants, given[4u * run + 2u * odd + c])
                                            }
                                        }
                                    }
                                    if (SCALES > 1u || run == RUNS - 1u) {
                                        const uint slot = t * SLOTS + j / ALIKE;
                                        const uint to = factor + (slot * SCALES + (SCALES > 1u ? run : 0u)) * 16u;
                                        PARTIAL s;
                                        LOAD_ROWS(s, factors, to)
                                        UNROLL for (uint c = 0u; c < 2u; c++) {
                                            if (c == 0u || WIDE_X) ADD_SCALED(acc[2u * t + c], s, sums[c])
                                        }
                                        if (LOWS == 1u) {
                                            LOAD_ROWS(s, lows, to)
                                            UNROLL for (uint c = 0u; c < 2u; c++) {
                                                if (c == 0u || WIDE_X) {
                                                    ADD_SCALED(acc[2u * t + c], s, ones[(SCALES > 1u ? 2u * run : 0u) + c])
                                                }
                                            }
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    BARRIER;
    UNROLL for (uint t = 0u; t < 2u; t++) {
        if (t < TALL) {
            const uint to = (WARP * TALL + t) * 16u * SUMS_PITCH;
            STORE_PARTIAL(acc[2u * t], to)
            if (WIDE_X) STORE_PARTIAL(acc[2u * t + 1u], to + 2u)
        }
    }
    if (FORMAT == FP8_E4M3) {
        // A row with NaN in it gives NaN for every row of x.
        SYNC_WARP;
        UNROLL for (uint i = 0u; i < 4u; i++) {
            if (i / 2u < TALL && (nan[i] & 0x80808080u) != 0u) {
                const uint to = ((WARP * TALL + i / 2u) * 16u + LANE_ROW + i % 2u * 8u) * SUMS_PITCH * 4u;
                for (uint c = 0u; c < SUMS_PITCH * 4u; c++) PUT_WORD(to + c, 0x7fc00000u)
            }
        }
    }
    BARRIER;
    for (uint i = THREAD; i < ROWS_HELD * (rows_x / TERMS); i += WARPS * 32u) {
        const uint row = i % ROWS_HELD, column = i / ROWS_HELD * TERMS, to = start + row;
        if (to >= n) continue;
        float sum = 0.0f;
        for (uint p = 0u; p < PARTS; p++) {
            const uint tile = (row / (16u * TALL) * PARTS + p) * TALL + row / 16u % TALL;
            const uint unit = (tile * 16u + row % 16u) * SUMS_PITCH + column / 4u;
            sum += RLX_FLOAT(WORD_OF(units[unit], column % 4u));
            if (TERMS == 2u) sum += RLX_FLOAT(WORD_OF(units[unit], column % 4u + 1u)) * TERM;
        }
        sum *= POWER;
        // A sum with infinity in it may be NaN because zeros or minimums are added up apart.
        if (IS_NAN(sum)) {
            sum = 0.0f;
            for (uint t = 0u; t < TERMS; t++) {
                sum += dot_of(px, row_of(q, to, pitch), at, chunks, (column + t) * k) * (t == 0u ? 1.0f : TERM);
            }
        }
        const uint own = (first_x + column) / TERMS, at_y = own * n + to;
        if (Y_TYPE == 0u) {
            PUT(T, 1.0f);
        } else if (Y_TYPE == 1u) {
            PUT(bf16, LOAD(f32, scales, own));
        } else {
            PUT(f32, LOAD(f32, scales, own));
        }
    }
}
