// y (m, n) = x times the transposed packed rows of q, for few rows of x, by matrix instructions: see packed.h. Quants are
// numbers of 16 bits without rounding, and sums in f32; scales multiply the sums of their runs. A matrix of 16 x 16 holds
// 16 rows of q and one run; each of its threads makes the elements that it holds from the packed words, which go through
// shared memory so that 16 bytes are read at a time. PARTS subgroups share 16 rows of q and join their sums. SCALES: the scales of a chunk,
// one or one for each run; IN_PAIRS: chunks 2 i and 2 i + 1 of a row share them, and SPAN is 2. A step is 4 SPAN chunks.
// WHOLE: the chunks of a row are whole steps. LOWS: 1 for formats with minimums or zeros, else 0.
// COLS: rows of x that a group multiplies, 8 or 16, or with TERMS = 2 twice as many: x is then two halves for each f32,
// with a power of two in `scales` (see half_terms.h), and y is f32. T: the 16-bit type. GROUPED: see packed_experts.h; ALIGN is 16.
#define MATRIX T
#include "packed.h"
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

#ifdef RLX_GLSL
#extension GL_KHR_shader_subgroup_basic : require
#define WARP_SYNC                     \
    {                                 \
        subgroupMemoryBarrierShared(); \
        subgroupBarrier();            \
    }
#define EIGHT_BYTES(p, i) ptr_uvec2(uvec2(p)).at[i]
#define AS_F32(p) ptr_f32(uvec2(p))
#define SUM_AT(s, i) s[i]
#define MULTIPLY_COUNT(sums, ma, mb) MULTIPLY(sums, ma, mb)
uint times_256(const uint w) { return packFloat2x16(unpackFloat2x16(w) * float16_t(256.0)); }
#define PAIR_SUB_f16(a, b) packFloat2x16(unpackFloat2x16(a) - unpackFloat2x16(b))
#define ONE_f16(w, i) unpackFloat2x16(w)[i]
#define ONE_bf16(w, i) uintBitsToBFloat16EXT(uint16_t((w) >> (16u * i)))
#define SET_TWO(m, i, w)                        \
    m[i] = RLX_JOIN(ONE_, MATRIX)(w, 0);        \
    m[i + 1] = RLX_JOIN(ONE_, MATRIX)(w, 1);
#define SET_FRAG(m, w0, w1, w2, w3) \
    {                               \
        SET_TWO(m, 0, w0)           \
        SET_TWO(m, 2, w1)           \
        SET_TWO(m, 4, w2)           \
        SET_TWO(m, 6, w3)           \
    }
#else
#ifdef RLX_ON_HOST
#define WARP_SYNC rlx_shuffle(0.0f, 0u);
RLX_FN uint pair_sub_f16(const uint a, const uint b) {
    return f16_bits(p_f16_value(a & 0xffffu) - p_f16_value(b & 0xffffu)) |
           f16_bits(p_f16_value(a >> 16) - p_f16_value(b >> 16)) << 16;
}
RLX_FN uint times_256(const uint a) {
    return f16_bits(p_f16_value(a & 0xffffu) * 256.0f) | f16_bits(p_f16_value(a >> 16) * 256.0f) << 16;
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
#define WARP_SYNC __syncwarp();
RLX_FN uint pair_sub_f16(const uint a, const uint b) {
    uint d;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
RLX_FN uint times_256(const uint a) {
    uint d;
    asm("mul.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(0x5c005c00u));
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
#define PAIR_SUB_f16(a, b) pair_sub_f16(a, b)
#define EIGHT_BYTES(p, i) ((const uint2*)(p))[i]
#define AS_F32(p) ((float*)(p))
#define SUM_AT(s, i) s.c[i]
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
#endif
RLX_FN uint lesser(const uint a, const uint b) { return a < b ? a : b; }
#define LANE_ROW (LANE / 4u)
#define LANE_QUAD (LANE % 4u)

// The numbers q - zero of four bytes as pairs of halves: neighbours in CUDA, which has an instruction that moves bytes, else
// the first with the third and the second with the fourth.
#ifdef RLX_GLSL
#define LOW_BYTES(q, high) (q & 0x00ff00ffu | high)
#define HIGH_BYTES(q, high) (q >> 8 & 0x00ff00ffu | high)
#elif defined(RLX_ON_HOST)
#define LOW_BYTES(q, high) (q & 0xffu | q << 8 & 0xff0000u | high)
#define HIGH_BYTES(q, high) (q >> 16 & 0xffu | q >> 8 & 0xff0000u | high)
#else
#define LOW_BYTES(q, high) __byte_perm(q, high, 0x7150)
#define HIGH_BYTES(q, high) __byte_perm(q, high, 0x7352)
#endif
RLX_FN uvec2 pairs_f16(const uint q, const float zero) {
    uvec2 made;
    const uint a = LOW_BYTES(q, 0u), b = HIGH_BYTES(q, 0u);
    if (FORMAT == FP8_E5M2) {
        made.x = a << 8;
        made.y = b << 8;
    } else if (FORMAT == FP8_E4M3) {
        // Exponents are 8 less than those of halves. NaN is seen to elsewhere.
        made.x = times_256(a << 7 & 0x3f803f80u | a << 8 & 0x80008000u);
        made.y = times_256(b << 7 & 0x3f803f80u | b << 8 & 0x80008000u);
    } else {
        const uint less = 0x64006400u + uint(zero) * 0x00010001u;
        made.x = PAIR_SUB_f16(LOW_BYTES(q, 0x64006400u), less);
        made.y = PAIR_SUB_f16(HIGH_BYTES(q, 0x64006400u), less);
    }
    return made;
}
RLX_FN uvec2 pairs_bf16(const uint q, const float zero) {
    uvec2 made;
#ifndef RLX_GLSL
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
#endif
    const vec4 v = values_of(q, zero);
#ifdef RLX_GLSL
    made.x = RLX_BITS(v.x) >> 16 | RLX_BITS(v.z) & 0xffff0000u;
    made.y = RLX_BITS(v.y) >> 16 | RLX_BITS(v.w) & 0xffff0000u;
#else
    made.x = RLX_BITS(v.x) >> 16 | RLX_BITS(v.y) & 0xffff0000u;
    made.y = RLX_BITS(v.z) >> 16 | RLX_BITS(v.w) & 0xffff0000u;
#endif
    return made;
}
#define PAIRS_OF(q, zero) RLX_JOIN(pairs_, T)(q, zero)
#define ONES_f16 0x3c003c00u
#define ONES_bf16 0x3f803f80u
#define ONES RLX_JOIN(ONES_, T)

#ifdef RLX_GLSL
SHARED uint unknown;
// Which elements of a matrix a thread holds is unspecified: matrices of indices tell. Elements 0, 1 and 6, 7 are known
// (those of mma.m16n8k16); 2, 3 and 4, 5 may have changed places. Returns 1, 2, 4 for those that have, of A, B and sums;
// 8 for any other order. Every thread of the group calls it.
uint order_of(void) {
    if (THREAD == 0u) unknown = 0u;
    if (THREAD < 32u) {
        uvec4 w;
        for (uint i = 0u; i < 4u; i++) {
            const uint first = THREAD * 8u + 2u * i;
            w[i] = pair_bits(float(first), float(first + 1u));
        }
        units[THREAD] = w;
    } else if (THREAD < 96u) {
        const uint first = (THREAD - 32u) * 4u;
        units[THREAD] = floatBitsToUint(vec4(float(first), float(first + 1u), float(first + 2u), float(first + 3u)));
    }
    BARRIER;
    MATRIX_A ma;
    MATRIX_B mb;
    SUMS ms;
    LOAD_A(ma, 0, 2, false)
    LOAD_B(mb, 0, 2, false)
    coopMatLoad(ms, units, 32, 4, gl_CooperativeMatrixLayoutRowMajor);
    uint order = 0u;
    bool known = true;
    const uint row = LANE_ROW, column = 2u * LANE_QUAD;
    for (uint i = 0u; i < 8u; i++) {
        const uint second = i / 2u == 1u ? 1u : 0u, third = i / 2u == 2u ? 1u : 0u, last = i / 2u == 3u ? 1u : 0u;
        const uint a = (row + (second + last) * 8u) * 16u + column + (third + last) * 8u + i % 2u;
        const uint a2 = (row + (third + last) * 8u) * 16u + column + (second + last) * 8u + i % 2u;
        const uint b = (column + (second + last) * 8u + i % 2u) * 16u + row + (third + last) * 8u;
        const uint b2 = (column + (third + last) * 8u + i % 2u) * 16u + row + (second + last) * 8u;
        const uint got_a = uint(float(ma[i])), got_b = uint(float(mb[i])), got_s = uint(ms[i]);
        if (i == 2u) order = (got_a == a ? 0u : 1u) | (got_b == b ? 0u : 2u) | (got_s == a ? 0u : 4u);
        known = known && (got_a == a || got_a == a2) && (got_b == b || got_b == b2) && (got_s == a || got_s == a2);
    }
    if (!known) unknown = 1u;
    BARRIER;
    const uint found = unknown != 0u ? 8u : order;
    BARRIER;
    return found;
}
#define KNOWN_ORDER(order) (order < 8u)
#define SET_A(m, order, w0, w1, w2, w3) \
    SET_FRAG(m, w0, ((order & 1u) != 0u ? w2 : w1), ((order & 1u) != 0u ? w1 : w2), w3)
#define SET_B(m, order, w0, w1, w2, w3) \
    SET_FRAG(m, w0, ((order & 2u) != 0u ? w2 : w1), ((order & 2u) != 0u ? w1 : w2), w3)
#define SUMS_SWAPPED(order) ((order & 4u) != 0u)
#else
#define order_of() 0u
#define KNOWN_ORDER(order) true
#define SET_A(m, order, w0, w1, w2, w3) SET_FRAG(m, w0, w1, w2, w3)
#define SET_B(m, order, w0, w1, w2, w3) SET_FRAG(m, w0, w1, w2, w3)
#define SUMS_SWAPPED(order) false
#endif

// The sum over a whole row of q times the elements of x from `start` on, by one thread.
RLX_FN float dot_of(PTR(T) x, const Row row, const Planes at, const uint chunks, const uint start) {
    float sum = 0.0f;
    for (uint c = 0u; c < chunks; c++) {
        const uint b = c / UNITS, u = c % UNITS;
        const Chunk chunk = chunk_of(row, at, b, u);
        for (uint run = 0u; run < RUNS; run++) {
            const Scale scale = scale_of(row, at, b, u, run);
            for (uint w = 0u; w < 4u; w++) {
                const vec4 v = values_of(quad_of(chunk, u, run, w), scale.zero);
                const vec4 a = LOAD4(T, x, (start + element_of(b, u, run)) / 4u + w);
                sum = FMA(a.x, weight_of(scale, v.x), sum);
                sum = FMA(a.y, weight_of(scale, v.y), sum);
                sum = FMA(a.z, weight_of(scale, v.z), sum);
                sum = FMA(a.w, weight_of(scale, v.w), sum);
            }
        }
    }
    return sum;
}

// Adds a matrix of sums, its rows times their factors: elements 2, 3 lie 8 rows below 0, 1 where nothing is swapped.
#define ADD_SCALED(c, by, s)                                                                                  \
    {                                                                                                         \
        const float by0 = by[from], by8 = by[from + 8u];                                                      \
        const float by2 = SUMS_SWAPPED(order) ? by0 : by8, by4 = SUMS_SWAPPED(order) ? by8 : by0;             \
        acc[c * 8u] = FMA(by0, SUM_AT(s, 0), acc[c * 8u]);                                                    \
        acc[c * 8u + 1u] = FMA(by0, SUM_AT(s, 1), acc[c * 8u + 1u]);                                          \
        acc[c * 8u + 2u] = FMA(by2, SUM_AT(s, 2), acc[c * 8u + 2u]);                                          \
        acc[c * 8u + 3u] = FMA(by2, SUM_AT(s, 3), acc[c * 8u + 3u]);                                          \
        if (COUNT > 8u) {                                                                                     \
            acc[c * 8u + 4u] = FMA(by4, SUM_AT(s, 4), acc[c * 8u + 4u]);                                      \
            acc[c * 8u + 5u] = FMA(by4, SUM_AT(s, 5), acc[c * 8u + 5u]);                                      \
            acc[c * 8u + 6u] = FMA(by8, SUM_AT(s, 6), acc[c * 8u + 6u]);                                      \
            acc[c * 8u + 7u] = FMA(by8, SUM_AT(s, 7), acc[c * 8u + 7u]);                                      \
        }                                                                                                     \
    }

// Four elements of x in the order of pairs_of.
RLX_FN uvec2 x_pairs(PTR(T) x, const uint at) {
    const uvec2 w = EIGHT_BYTES(x, at / 4u);
#ifdef RLX_GLSL
    return uvec2(w.x & 0xffffu | w.y << 16, w.x >> 16 | w.y & 0xffff0000u);
#else
    return w;
#endif
}

RLX_FN void packed_mma_body(PTR(T) x, PTR(u32) q, PTR(i32) sizes, PTR(f32) scales, PTR(T) y, const uint m, const uint n,
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
    PTR(T) px = SKIP(T, x, share.first * TERMS, k);
    const Planes at = planes_of(blocks);
    // A row or column that is not there is read as the last one, and not stored.
    const uint low_row = lesser(first_row + LANE_ROW, n - 1u), high_row = lesser(first_row + LANE_ROW + 8u, n - 1u);
    const uint matrix = summed ? share.expert * n : 0u;
    Row row0 = row_of(q, matrix + low_row, pitch), row8 = row_of(q, matrix + high_row, pitch);
    const uint mine = WARP * 16u * PITCH, factor = WARP * SLOTS * SCALES * 16u + LANE_ROW;
    const uint step = LONG * PARTS;
    uint first = LONG * part;
    uvec4 next0[2], next8[2];
    UNROLL for (uint i = 0u; i < SPAN; i++) {
        const uint to = lesser(first + 4u * i + LANE_QUAD, chunks - 1u) * 16u;
        next0[i] = sixteen_at(row0, to);
        next8[i] = sixteen_at(row8, to);
    }
    const uint order = order_of();
    float acc[MATRICES * 8u];
    UNROLL for (uint i = 0u; i < MATRICES * 8u; i++) acc[i] = 0.0f;
    uint nan0 = 0u, nan8 = 0u;  // whether a byte of e4m3 was NaN, which has all bits set, in the rows of this thread
    for (; first < (summed && KNOWN_ORDER(order) ? chunks : 0u); first += step) {
        WARP_SYNC
        UNROLL for (uint i = 0u; i < SPAN; i++) {
            units[mine + LANE_ROW * PITCH + 4u * i + LANE_QUAD] = next0[i];
            units[mine + (LANE_ROW + 8u) * PITCH + 4u * i + LANE_QUAD] = next8[i];
            const uint to = lesser(first + step + 4u * i + LANE_QUAD, chunks - 1u) * 16u;
            next0[i] = sixteen_at(row0, to);
            next8[i] = sixteen_at(row8, to);
        }
        UNROLL for (uint i = 0u; i < SLOTS; i += 4u) {
            const uint slot = i + LANE_QUAD, own = lesser(first + slot * ALIKE, chunks - 1u);
            const uint b = own / UNITS, u = own % UNITS;
            UNROLL for (uint run = 0u; run < SCALES; run++) {
                const Scale s0 = scale_of(row0, at, b, u, run), s8 = scale_of(row8, at, b, u, run);
                const uint to = factor + (slot * SCALES + run) * 16u;
                factors[to] = s0.s;
                factors[to + 8u] = s8.s;
                if (HAS_LOW || HAS_ZEROS) {
                    lows[to] = HAS_LOW ? s0.m : s0.zero;
                    lows[to + 8u] = HAS_LOW ? s8.m : s8.zero;
                }
            }
        }
        WARP_SYNC
        SUMS sums[4u * MATRICES];
        SUMS ones[4u * MATRICES];
        // From here on four elements of each column lie at places known at compile time.
        const uint begin = element_of(first / UNITS, first % UNITS, 0u) + 4u * LANE_QUAD;
        PTR(T) here[2u * MATRICES];
        UNROLL for (uint c = 0u; c < 2u * MATRICES; c++) {
            const uint column = lesser(c * 8u + LANE_ROW, columns - 1u);
            here[c] = SKIP(T, px, 1u, column * k + begin);
        }
        UNROLL for (uint j = 0u; j < LONG; j++) {
            if (!WHOLE && first + j >= chunks) continue;
            // Blocks have at most eight chunks, so that a long step begins with a block.
            const uint jb = SPAN == 2u ? first / UNITS + j / UNITS : (first + j) / UNITS;
            const uint ju = SPAN == 2u ? j % UNITS : (first + j) % UNITS;
            if (!IN_PAIRS || j % 2u == 0u) {
                UNROLL for (uint i = 0u; i < SCALES * MATRICES; i++) {
                    SUMS_ZERO(sums[i])
                    if (HAS_LOW) SUMS_ZERO(ones[i])
                }
            }
            uint h0 = 0u, h8 = 0u;
            if (HIGH_WORD || HIGH_WORDS) {
                const uint high = high_at(at, jb, ju) + (HIGH_WORDS ? 4u * LANE_QUAD : 0u);
                h0 = bytes_at(row0, high, 4u);
                h8 = bytes_at(row8, high, 4u);
            }
            UNROLL for (uint run = 0u; run < RUNS; run++) {
                const uint word = word_of(run, LANE_QUAD), scale = SCALES > 1u ? run : 0u;
                const uint q0 = WORD_OF(units[mine + LANE_ROW * PITCH + j], word);
                const uint q8 = WORD_OF(units[mine + (LANE_ROW + 8u) * PITCH + j], word);
                const float zero0 = HAS_ZEROS ? lows[factor + j / ALIKE * SCALES * 16u] : zero_of();
                const float zero8 = HAS_ZEROS ? lows[factor + j / ALIKE * SCALES * 16u + 8u] : zero_of();
                const uint bytes0 = bytes_of(q0, h0, ju, run, LANE_QUAD), bytes8 = bytes_of(q8, h8, ju, run, LANE_QUAD);
                if (FORMAT == FP8_E4M3) {
                    nan0 |= (bytes0 & 0x7f7f7f7fu) + 0x01010101u;
                    nan8 |= (bytes8 & 0x7f7f7f7fu) + 0x01010101u;
                }
                const uvec2 a0 = PAIRS_OF(bytes0, zero0), a8 = PAIRS_OF(bytes8, zero8);
                MATRIX_A ma, mo;
                SET_A(ma, order, a0.x, a8.x, a0.y, a8.y)
                if (HAS_LOW) SET_A(mo, order, ONES, ONES, ONES, ONES)
                const uint e = element_of(0u, j, run);
                UNROLL for (uint c = 0u; c < MATRICES; c++) {
                    const uvec2 b0 = x_pairs(here[2u * c], e);
                    uvec2 b8 = b0;
                    if (COUNT > 8u) b8 = x_pairs(here[2u * c + 1u], e);
                    MATRIX_B mb;
                    SET_B(mb, order, b0.x, b0.y, b8.x, b8.y)
                    MULTIPLY_COUNT(sums[scale * MATRICES + c], ma, mb)
                    if (HAS_LOW) MULTIPLY_COUNT(ones[scale * MATRICES + c], mo, mb)
                }
            }
            if (!IN_PAIRS || j % 2u == 1u) {
                UNROLL for (uint run = 0u; run < SCALES; run++) {
                    const uint from = factor + (j / ALIKE * SCALES + run) * 16u;
                    UNROLL for (uint c = 0u; c < MATRICES; c++) {
                        ADD_SCALED(c, factors, sums[run * MATRICES + c])
                        if (HAS_LOW) ADD_SCALED(c, lows, ones[run * MATRICES + c])
                    }
                }
            }
        }
    }
    // Where the order of elements is none that is known, the sums are made without matrices.
    UNROLL for (uint c = 0u; c < MATRICES; c++) {
        UNROLL for (uint i = 0u; i < (COUNT > 8u ? 8u : 4u); i++) {
            const uint second = i / 2u == 1u ? 1u : 0u, third = i / 2u == 2u ? 1u : 0u, last = i / 2u == 3u ? 1u : 0u;
            const uint down = last + (SUMS_SWAPPED(order) ? third : second);
            const uint right = last + (SUMS_SWAPPED(order) ? second : third);
            const uint row = LANE_ROW + 8u * down, column = c * 16u + right * 8u + 2u * LANE_QUAD + i % 2u;
            if (COUNT > 8u || column < 8u) joined[(WARP * 16u + row) * COUNT + column] = acc[c * 8u + i];
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
        if (KNOWN_ORDER(order)) {
            for (uint p = 0u; p < PARTS; p++) {
                const uint from = ((row / 16u * PARTS + p) * 16u + row % 16u) * COUNT + column * TERMS;
                sum += joined[from];
                if (TERMS == 2u) sum += joined[from + 1u] * TERM;
            }
        } else if (summed) {
            Row alone = row_of(q, matrix + to, pitch);
            for (uint t = 0u; t < TERMS; t++) sum += dot_of(px, alone, at, chunks, (column * TERMS + t) * k) * (t == 0u ? 1.0f : TERM);
        }
        const uint at_y = (share.first + column) * n + to;
        if (TERMS == 2u) {
            STORE(f32, AS_F32(y), at_y, sum * LOAD(f32, scales, share.first + column));
        } else {
            STORE(T, y, at_y, sum);
        }
    }
}
