// y (m, n) = x times the transposed packed rows of q, for few rows of x, by matrix instructions: see packed.h. CUDA alone:
// each thread makes the elements of a matrix that it holds, whose places Vulkan leaves open. Quants are
// numbers of 16 bits without rounding, and sums in f32; scales multiply the sums of their runs. A matrix of 16 x 16 holds
// 16 rows of q and one run, made from packed words, which go through shared memory so that 16 bytes are read at a time. PARTS subgroups share 16 rows of q and join their sums. SCALES: the scales of a chunk,
// one or one for each run; IN_PAIRS: chunks 2 i and 2 i + 1 of a row share them, and SPAN is 2. A step is 4 SPAN chunks.
// WHOLE: the chunks of a row are whole steps. LOWS: 1 for formats with minimums or zeros, else 0.
// COLS: rows of x that a group multiplies, 8 or 16, or with TERMS = 2 twice as many: x is then two halves for each f32,
// with a power of two in `scales` (see half_terms.h), and y is f32. T: the 16-bit type. GROUPED: see packed_experts.h; ALIGN is 16.
#define MATRIX T
#include "packed.h"
#include "packed_dot.h"
#include "packed_experts.h"
#define COUNT_8 8u
#define COUNT_16 16u
#define COUNT_32 32u
#define COUNT RLX_JOIN(COUNT_, COLS)
#define TERM 0.00048828125f  // what the second half of an f32 is times
#define MATRICES ((COUNT + 15u) / 16u)
#define ROWS_HELD (128u / PARTS)
#define LONG (4u * SPAN)    // chunks of a step
#define PITCH (LONG + 1u)  // units of a row in shared memory: a step's, and one that keeps the banks of eight rows apart
#define ALIKE (IN_PAIRS ? 2u : 1u)  // neighbouring chunks that share scales
#define SLOTS (LONG / ALIKE)
#define HAS_ZEROS (FORMAT == INT8_ZP || FORMAT == INT4_ZP)

SHARED uvec4 units[8u * 16u * PITCH];
SHARED float factors[8u * SLOTS * SCALES * 16u];  // of each subgroup: by chunk (or two), run and row
SHARED float lows[LOWS * 8u * SLOTS * SCALES * 16u + 1u];  // minimums, or zeros
SHARED float joined[8u * 16u * COUNT];
// The higher bits of a step's chunks, in units of 16 bytes, for each row; as many registers hold those of the next step.
// At 32 columns there is no room for them.
#define HIGH_STAGED ((HIGH_WORD || HIGH_WORDS) && COUNT <= 16u)
#define HIGH_UNITS (FORMAT == Q6_K ? 4u : 2u)
SHARED uvec4 highs[HIGH_STAGED ? 8u * 16u * (HIGH_UNITS + 1u) : 1u];

#ifdef RLX_ON_HOST
#define SET_ALL(m, w) SET_FRAG(m, w, w, w, w)
#define WARP_SYNC rlx_shuffle(0.0f, 0u);
#define RLX_MMA_FROM_ZERO(TYPE)                                                \
    RLX_FN void begin_##TYPE(float* c, const uint* a, const uint* b) {         \
        for (uint i = 0u; i < 4u; i++) c[i] = 0.0f;                            \
        rlx_mma_##TYPE(c, a, b);                                               \
    }
RLX_FN uint pair_sub_f16(const uint a, const uint b) {
    return f16_bits(p_f16_value(a & 0xffffu) - p_f16_value(b & 0xffffu)) |
           f16_bits(p_f16_value(a >> 16) - p_f16_value(b >> 16)) << 16;
}
RLX_FN uint scaled_bf16(const uint a) {
    const float up = RLX_FLOAT(247u << 23);
    return bf16_bits(bf16_value(a & 0xffffu) * up) | bf16_bits(bf16_value(a >> 16) * up) << 16;
}
RLX_FN uint pair_sub_bf16(const uint a, const uint b) {
    return bf16_bits(bf16_value(a & 0xffffu) - bf16_value(b & 0xffffu)) |
           bf16_bits(bf16_value(a >> 16) - bf16_value(b >> 16)) << 16;
}
#else
// Sizes are below 2^31: their top bits make four registers of it that the compiler does not fill anew before each use.
#define SET_ALL(matrix, w) \
    SET_FRAG(matrix, (w) + (n >> 31), (w) + (blocks >> 31), (w) + (pitch >> 31), (w) + (chunks >> 31))
#define WARP_SYNC __syncwarp();
// As rlx_mma_f16 and rlx_mma_bf16, for sums that are zero before: no instruction is needed for that.
#define RLX_MMA_FROM_ZERO(TYPE)                                                                               \
    RLX_FN void begin_##TYPE(float* c, const uint* a, const uint* b) {                                        \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." #TYPE "." #TYPE                                 \
                     ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"               \
                     : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])                                         \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));          \
    }
RLX_FN uint pair_sub_f16(const uint a, const uint b) {
    uint d;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
RLX_FN uint scaled_bf16(const uint a) {  // times 2^120
    uint d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(0x7b807b80u), "r"(0x80008000u));
    return d;
}
RLX_FN uint pair_sub_bf16(const uint a, const uint b) {
    uint d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(b), "r"(0xbf80bf80u), "r"(a));
    return d;
}
#endif
// The words of two neighbouring chunks at once. In int4 the word depends on the run.
#define HELD_QUANTS Matrix held;
#define LOAD_QUANTS(j)                                      \
    if ((j) % 2u == 0u && !IS_INT4) {                       \
        LOAD_A(held, mine + (j), PITCH, false)              \
    }
#define QUANT(down, j, word) \
    (IS_INT4 ? WORD_OF(units[mine + (LANE_ROW + down) * PITCH + (j)], word) : held.r[(j) % 2u * 2u + down / 8u])
RLX_MMA_FROM_ZERO(f16)
RLX_MMA_FROM_ZERO(bf16)
#define BEGIN_COUNT(sums, ma, mb)                                                        \
    {                                                                                    \
        RLX_JOIN(begin_, MATRIX)((sums).c, (ma).r, (mb).r);                              \
        if (COUNT > 8u) RLX_JOIN(begin_, MATRIX)((sums).c + 4, (ma).r, (mb).r + 2);      \
    }
#define MULTIPLY_COUNT(sums, ma, mb)                                                     \
    {                                                                                    \
        RLX_JOIN(rlx_mma_, MATRIX)((sums).c, (ma).r, (mb).r);                            \
        if (COUNT > 8u) RLX_JOIN(rlx_mma_, MATRIX)((sums).c + 4, (ma).r, (mb).r + 2);    \
    }
#define SET_FRAG(m, w0, w1, w2, w3) \
    {                               \
        (m).r[0] = w0;              \
        (m).r[1] = w1;              \
        (m).r[2] = w2;              \
        (m).r[3] = w3;              \
    }
RLX_FN uint lesser(const uint a, const uint b) { return a < b ? a : b; }
#define LANE_ROW (LANE / 4u)
#define LANE_QUAD (LANE % 4u)

// The numbers q - zero of four bytes as pairs of halves.
#ifdef RLX_ON_HOST
#define LOW_BYTES(q, high) (q & 0xffu | q << 8 & 0xff0000u | high)
#define HIGH_BYTES(q, high) (q >> 16 & 0xffu | q >> 8 & 0xff0000u | high)
#else
#define LOW_BYTES(q, high) __byte_perm(q, high, 0x7150)
#define HIGH_BYTES(q, high) __byte_perm(q, high, 0x7352)
#endif
// A half whose bits are a small integer q is 2^-24 q, exactly, and an e4m3 in the place of a half 2^-8 of itself: so no
// instruction converts them, the sums are multiplied by the power of two at the end, and the zero is taken from the sum.
#define RAW_f16 (!HAS_ZEROS && FORMAT != FP8_E5M2)
#define RAW_bf16 false
#define RAW RLX_JOIN(RAW_, T)
#define POWER (!RAW ? 1.0f : FORMAT == FP8_E4M3 ? 256.0f : 16777216.0f)
RLX_FN uvec2 pairs_f16(const uint q, const float zero) {
    uvec2 made;
    const uint a = LOW_BYTES(q, 0u), b = HIGH_BYTES(q, 0u);
    if (FORMAT == FP8_E5M2) {
        made.x = a << 8;
        made.y = b << 8;
    } else if (FORMAT == FP8_E4M3) {
        // NaN is seen to elsewhere.
        made.x = a << 7 & 0x3f803f80u | a << 8 & 0x80008000u;
        made.y = b << 7 & 0x3f803f80u | b << 8 & 0x80008000u;
    } else if (RAW_f16) {
        made.x = a;
        made.y = b;
    } else {
        const uint less = 0x64006400u + uint(zero) * 0x00010001u;
        made.x = pair_sub_f16(LOW_BYTES(q, 0x64006400u), less);
        made.y = pair_sub_f16(HIGH_BYTES(q, 0x64006400u), less);
    }
    return made;
}
RLX_FN uvec2 pairs_bf16(const uint q, const float zero) {
    uvec2 made;
    if (FORMAT == FP8_E4M3) {
        const uint a = LOW_BYTES(q, 0u), b = HIGH_BYTES(q, 0u);
        made.x = scaled_bf16(a << 4 & 0x07f007f0u | a << 8 & 0x80008000u);
        made.y = scaled_bf16(b << 4 & 0x07f007f0u | b << 8 & 0x80008000u);
        return made;
    }
    if (!IS_FP8) {
        // A bf16 from 128 to 256 counts in ones: seven bits fit beside its leading one, the eighth takes 128 away, or not.
        if (!PACKED_BYTES && !HAS_ZEROS && FORMAT != IQ4_NL && FORMAT != IQ4_XS) {
            const uint less = 0x43004300u + uint(zero) * 0x00010001u;
            made.x = pair_sub_bf16(LOW_BYTES(q, 0x43004300u), less);
            made.y = pair_sub_bf16(HIGH_BYTES(q, 0x43004300u), less);
            return made;
        }
        const uint a = LOW_BYTES(q, 0u), b = HIGH_BYTES(q, 0u);
        made.x = pair_sub_bf16(a & 0x007f007fu | 0x43004300u, a & 0x00800080u ^ 0x43804380u);
        made.y = pair_sub_bf16(b & 0x007f007fu | 0x43004300u, b & 0x00800080u ^ 0x43804380u);
        if (HAS_ZEROS || zero_of() != 128.0f) {
            const uint rest = (RLX_BITS(zero - 128.0f) >> 16) * 0x00010001u;
            made.x = pair_sub_bf16(made.x, rest);
            made.y = pair_sub_bf16(made.y, rest);
        }
        return made;
    }
    const vec4 v = values_of(q, zero);
    made.x = RLX_BITS(v.x) >> 16 | RLX_BITS(v.y) & 0xffff0000u;
    made.y = RLX_BITS(v.z) >> 16 | RLX_BITS(v.w) & 0xffff0000u;
    return made;
}
#define PAIRS_OF(q, zero) RLX_JOIN(pairs_, T)(q, zero)
#define ONES_f16 (RAW_f16 ? 0x00010001u : 0x3c003c00u)
#define ONES_bf16 0x3f803f80u
#define ONES RLX_JOIN(ONES_, T)
#define LESS_ZERO (RAW && !IS_FP8 && zero_of() != 0.0f)  // whether sums begin at minus the zero times the sum of x
#define MINUS_ZERO ((0x8000u | uint(zero_of())) * 0x00010001u)

// Adds a matrix of sums, its rows times their factors.
#define ADD_SCALED(sum, by, s)                                                                 \
    {                                                                                          \
        const float by0 = by[from], by8 = by[from + 8u];                                       \
        UNROLL for (uint e = 0u; e < (COUNT > 8u ? 8u : 4u); e++) {                            \
            (sum).c[e] = FMA(e / 2u % 2u == 0u ? by0 : by8, (s).c[e], (sum).c[e]);             \
        }                                                                                      \
    }

#define X_PAIRS(x, at) ((const uint2*)(x))[(at) / 4u]  // four elements

// What the next step needs of q: its chunks, and the words of its scales.
#define FETCH_STEP(from)                                                                          \
    UNROLL for (uint i = 0u; i < SPAN; i++) {                                                     \
        const uint to = lesser((from) + 4u * i + LANE_QUAD, chunks - 1u) * 16u;                   \
        next0[i] = sixteen_at(row0, to);                                                          \
        next8[i] = sixteen_at(row8, to);                                                          \
    }                                                                                             \
    UNROLL for (uint i = 0u; i < SLOTS; i += 4u) {                                                \
        const uint own = lesser((from) + (i + LANE_QUAD) * ALIKE, chunks - 1u);                   \
        words0[i / 4u] = scale_words(row0, at, own / UNITS, own % UNITS);                         \
        words8[i / 4u] = scale_words(row8, at, own / UNITS, own % UNITS);                         \
    }
#define FETCH_HIGHS(from)                                                                              \
    if (HIGH_STAGED && LANE_QUAD < HIGH_UNITS) {                                                       \
        const uint last = (at.at2 - 1u) / 16u * 16u, to = high_at(at, (from) / UNITS, 0u) + LANE_QUAD * 16u;        \
        high0 = sixteen_at(row0, lesser(to, last));                                                    \
        high8 = sixteen_at(row8, lesser(to, last));                                                    \
    }
// What chunk j of a step needs of x, `ahead` elements after this step's; DEEP chunks are under way, as registers allow.
#define DEEP (COUNT > 16u ? 2u : COUNT > 8u ? LONG / 2u : LONG)
#define FETCH_X(j, ahead)                                                                              \
    UNROLL for (uint run = 0u; run < RUNS; run++) {                                                    \
        UNROLL for (uint c = 0u; c < MATRICES; c++) {                                                  \
            const uint to = (((j) % DEEP * RUNS + run) * MATRICES + c) * 2u;                           \
            const uint e = element_of(0u, j, run) + (ahead);                                           \
            x[to] = X_PAIRS(here[2u * c], e);                                                          \
            if (COUNT > 8u) x[to + 1u] = X_PAIRS(here[2u * c + 1u], e);                                \
        }                                                                                              \
    }

RLX_FN void packed_mma_body(PTR(T) x0, PTR(u32) q, PTR(i32) sizes, PTR(f32) scales, PTR(T) y, const uint m, const uint n,
                            const uint blocks, const uint pitch, const uint experts) {
    const uint k = blocks * BLOCK, tiles = (n + ROWS_HELD - 1u) / ROWS_HELD, chunks = blocks * UNITS;
    // Neighbouring groups read the same rows of q.
    const uint slots = shares_of(m, COUNT / TERMS, experts), tile = GROUP / slots;
    if (tile >= tiles) return;
    const Share share = share_of(sizes, GROUP % slots, m, COUNT / TERMS, experts);
    if (share.rows == 0u) return;
    const uint columns = share.rows * TERMS, part = WARP % PARTS;
    const uint first_row = tile * ROWS_HELD + WARP / PARTS * 16u;
    const bool summed = share.expert < max_experts(experts);
    PTR(T) px = SKIP(T, x0, share.first * TERMS, k);
    const Planes at = planes_of(blocks);
    // A row or column that is not there is read as the last one, and not stored.
    const uint low_row = lesser(first_row + LANE_ROW, n - 1u), high_row = lesser(first_row + LANE_ROW + 8u, n - 1u);
    const uint matrix = summed ? share.expert * n : 0u;
    Row row0 = row_of(q, matrix + low_row, pitch), row8 = row_of(q, matrix + high_row, pitch);
    const uint mine = WARP * 16u * PITCH, factor = WARP * SLOTS * SCALES * 16u + LANE_ROW;
    const uint step = LONG * PARTS;
    uint first = LONG * part;
    uvec4 next0[2], next8[2], words0[SLOTS / 4u], words8[SLOTS / 4u];
    const uint my_highs = WARP * 16u * (HIGH_UNITS + 1u) + LANE_ROW * (HIGH_UNITS + 1u);
    uvec4 high0 = PACKED4(0u, 0u, 0u, 0u), high8 = high0;
    FETCH_STEP(first)
    FETCH_HIGHS(first)
    SUMS acc[MATRICES];
    UNROLL for (uint c = 0u; c < MATRICES; c++) SUMS_ZERO(acc[c])
    MATRIX_A mo;  // one in every place, or minus the zero
    if (HAS_LOW) SET_ALL(mo, ONES)
    if (LESS_ZERO) SET_ALL(mo, MINUS_ZERO)
    uint nan0 = 0u, nan8 = 0u;  // whether a byte of e4m3 was NaN, which has all bits set, in the rows of this thread
    // Steps begin with blocks, so that elements of x lie at places known at compile time from the step's first ones on.
    const uint advance = step / UNITS * BLOCK;
    PTR(T) here[2u * MATRICES];
    UNROLL for (uint c = 0u; c < 2u * MATRICES; c++) {
        const uint column = lesser(c * 8u + LANE_ROW, columns - 1u);
        here[c] = SKIP(T, px, 1u, column * k + first / UNITS * BLOCK + 4u * LANE_QUAD);
    }
    uvec2 x[DEEP * RUNS * 2u * MATRICES];
    UNROLL for (uint j = 0u; j < DEEP; j++) {
        if (first + j < chunks) FETCH_X(j, 0u)
    }
    for (; first < (summed ? chunks : 0u); first += step) {
        WARP_SYNC
        UNROLL for (uint i = 0u; i < SPAN; i++) {
            units[mine + LANE_ROW * PITCH + 4u * i + LANE_QUAD] = next0[i];
            units[mine + (LANE_ROW + 8u) * PITCH + 4u * i + LANE_QUAD] = next8[i];
        }
        UNROLL for (uint i = 0u; i < SLOTS; i += 4u) {
            const uint slot = i + LANE_QUAD, u = lesser(first + slot * ALIKE, chunks - 1u) % UNITS;
            UNROLL for (uint run = 0u; run < SCALES; run++) {
                const Scale s0 = scale_from(words0[i / 4u], u, run), s8 = scale_from(words8[i / 4u], u, run);
                const uint to = factor + (slot * SCALES + run) * 16u;
                factors[to] = s0.s;
                factors[to + 8u] = s8.s;
                if (HAS_LOW || HAS_ZEROS) {
                    lows[to] = HAS_LOW ? s0.m : s0.zero;
                    lows[to + 8u] = HAS_LOW ? s8.m : s8.zero;
                }
            }
        }
        if (HIGH_STAGED && LANE_QUAD < HIGH_UNITS) {
            highs[my_highs + LANE_QUAD] = high0;
            highs[my_highs + 8u * (HIGH_UNITS + 1u) + LANE_QUAD] = high8;
        }
        FETCH_STEP(first + step)
        FETCH_HIGHS(first + step)
        WARP_SYNC
        SUMS sums[4u * MATRICES];
        SUMS ones[4u * MATRICES];
        HELD_QUANTS
        UNROLL for (uint j = 0u; j < LONG; j++) {
            if (!WHOLE && first + j >= chunks) continue;
            // Blocks have at most eight chunks, so that a long step begins with a block.
            const uint jb = SPAN == 2u ? first / UNITS + j / UNITS : (first + j) / UNITS;
            const uint ju = SPAN == 2u ? j % UNITS : (first + j) % UNITS;
            const bool starts = !IN_PAIRS || j % 2u == 0u;
            uint h0 = 0u, h8 = 0u;
            if (HIGH_STAGED) {
                const uint unit = my_highs + (HIGH_WORD ? j / 4u : FORMAT == Q6_K ? ju / 4u * 2u + ju % 2u : ju % 2u);
                const uint word = HIGH_WORD ? j % 4u : LANE_QUAD;
                h0 = WORD_OF(highs[unit], word);
                h8 = WORD_OF(highs[unit + 8u * (HIGH_UNITS + 1u)], word);
            } else if (HIGH_WORD || HIGH_WORDS) {
                const uint high = high_at(at, jb, ju) + (HIGH_WORDS ? 4u * LANE_QUAD : 0u);
                h0 = bytes_at(row0, high, 4u);
                h8 = bytes_at(row8, high, 4u);
            }
            LOAD_QUANTS(j)
            UNROLL for (uint run = 0u; run < RUNS; run++) {
                const uint word = word_of(run, LANE_QUAD), scale = SCALES > 1u ? run : 0u;
                const bool begins = starts && (SCALES > 1u || run == 0u);
                const uint q0 = QUANT(0u, j, word), q8 = QUANT(8u, j, word);
                const float zero0 = HAS_ZEROS ? lows[factor + j / ALIKE * SCALES * 16u] : zero_of();
                const float zero8 = HAS_ZEROS ? lows[factor + j / ALIKE * SCALES * 16u + 8u] : zero_of();
                const uint bytes0 = bytes_of(q0, h0, ju, run, LANE_QUAD), bytes8 = bytes_of(q8, h8, ju, run, LANE_QUAD);
                if (FORMAT == FP8_E4M3) {
                    nan0 |= (bytes0 & 0x7f7f7f7fu) + 0x01010101u;
                    nan8 |= (bytes8 & 0x7f7f7f7fu) + 0x01010101u;
                }
                const uvec2 a0 = PAIRS_OF(bytes0, zero0), a8 = PAIRS_OF(bytes8, zero8);
                MATRIX_A ma;
                SET_FRAG(ma, a0.x, a8.x, a0.y, a8.y)
                UNROLL for (uint c = 0u; c < MATRICES; c++) {
                    const uint i = scale * MATRICES + c, from = ((j % DEEP * RUNS + run) * MATRICES + c) * 2u;
                    MATRIX_B mb;
                    const uint other = COUNT > 8u ? from + 1u : from;
                    SET_FRAG(mb, x[from].x, x[from].y, x[other].x, x[other].y)
                    if (HAS_LOW) {
                        if (begins) {
                            BEGIN_COUNT(ones[i], mo, mb)
                        } else {
                            MULTIPLY_COUNT(ones[i], mo, mb)
                        }
                    }
                    if (LESS_ZERO && begins) {
                        BEGIN_COUNT(sums[i], mo, mb)
                    } else if (LESS_ZERO) {
                        MULTIPLY_COUNT(sums[i], mo, mb)
                    }
                    if (begins && !LESS_ZERO) {
                        BEGIN_COUNT(sums[i], ma, mb)
                    } else {
                        MULTIPLY_COUNT(sums[i], ma, mb)
                    }
                }
            }
            if (j + DEEP < LONG) {
                if (WHOLE || first + j + DEEP < chunks) FETCH_X(j + DEEP, 0u)
            } else if (first + step + (j + DEEP - LONG) < chunks) {
                FETCH_X(j + DEEP - LONG, advance)
            }
            if (!IN_PAIRS || j % 2u == 1u) {
                UNROLL for (uint run = 0u; run < SCALES; run++) {
                    const uint from = factor + (j / ALIKE * SCALES + run) * 16u;
                    UNROLL for (uint c = 0u; c < MATRICES; c++) {
                        ADD_SCALED(acc[c], factors, sums[run * MATRICES + c])
                        if (HAS_LOW) ADD_SCALED(acc[c], lows, ones[run * MATRICES + c])
                    }
                }
            }
        }
        UNROLL for (uint c = 0u; c < 2u * MATRICES; c++) here[c] = SKIP(T, here[c], 1u, advance);
    }
    UNROLL for (uint c = 0u; c < MATRICES; c++) {
        UNROLL for (uint i = 0u; i < (COUNT > 8u ? 8u : 4u); i++) {
            const uint row = LANE_ROW + i / 2u % 2u * 8u, column = c * 16u + i / 4u * 8u + 2u * LANE_QUAD + i % 2u;
            joined[(WARP * 16u + row) * COUNT + column] = acc[c].c[i] * POWER;
        }
    }
    if (FORMAT == FP8_E4M3) {
        // A row with NaN in it gives NaN for every row of x.
        WARP_SYNC
        for (uint c = 0u; c < COUNT; c++) {
            if ((nan0 & 0x80808080u) != 0u) joined[(WARP * 16u + LANE_ROW) * COUNT + c] = RLX_FLOAT(0x7fc00000u);
            if ((nan8 & 0x80808080u) != 0u) joined[(WARP * 16u + LANE_ROW + 8u) * COUNT + c] = RLX_FLOAT(0x7fc00000u);
        }
    }
    BARRIER;
    for (uint i = THREAD; i < ROWS_HELD * share.rows; i += 256u) {
        const uint row = i % ROWS_HELD, column = i / ROWS_HELD, to = tile * ROWS_HELD + row;
        if (to >= n) continue;
        float sum = 0.0f;
        for (uint p = 0u; p < PARTS; p++) {
            const uint from = ((row / 16u * PARTS + p) * 16u + row % 16u) * COUNT + column * TERMS;
            sum += joined[from];
            if (TERMS == 2u) sum += joined[from + 1u] * TERM;
        }
        // A sum with infinity in it may be NaN because zeros or minimums are added up apart.
        if (summed && IS_NAN(sum)) {
            sum = 0.0f;
            Row alone = row_of(q, matrix + to, pitch);
            for (uint t = 0u; t < TERMS; t++) {
                sum += dot_of(px, alone, at, chunks, (column * TERMS + t) * k) * (t == 0u ? 1.0f : TERM);
            }
        }
        const uint at_y = (share.first + column) * n + to;
        if (TERMS == 2u) {
            STORE(f32, (float*)y, at_y, sum * LOAD(f32, scales, share.first + column));
        } else {
            STORE(T, y, at_y, sum);
        }
    }
}
