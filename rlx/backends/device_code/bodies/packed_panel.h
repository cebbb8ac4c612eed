// y (m, n) = x times the transposed packed rows of q, for at most COLS rows of x, by matrix instructions: see packed.h and
// packed_pairs.h. CUDA alone, q4_k and q8_0. All rows of x lie in shared memory as they are, a panel of k that SPLIT
// workgroups part between them; HELD is the number of rows that there is room for. A subgroup takes HIGH rows of q and
// steps of 256 elements; PARTS of the subgroups share rows and part the steps of the panel. Quants are copied to
// shared memory 128 bytes of a row at a time, STAGES times ahead, by each subgroup for itself, and x two steps of each part
// at a time, so that subgroups wait for each other's copies of x alone. Each lane decodes the scales of one row. They
// multiply the sums of 32 products. Minimums, and the zeros of q8_0 beside halves, multiply sums of 32 elements of x by
// matrix instructions too: such a sum is two halves, of which the second counts 2^-11, or three bf16. BLOCKS, PITCH: blocks
// of a row, and its bytes. EARLY: see packed_line.h; RESIDENT: see packed_mma.h. n is a multiple of the rows of a
// workgroup, k one of 1,024, and the steps of a panel one of PARTS.
#define MATRIX T
#define TERMS 1u
#include "begin.h"
#include "arrivals.h"
#include "packed.h"
#include "packed_dot.h"
#include "packed_pairs.h"
#define COUNT_8 8u
#define COUNT_16 16u
#define COUNT RLX_JOIN(COUNT_, COLS)
#define NT (COUNT / 8u)
#define WARPS 16u
#define WIDTH 512u
#define HIGH 16u
#define ROWS_HELD (256u / PARTS)
#define STEPS (BLOCKS * BLOCK / 256u)
#define LONG (STEPS / SPLIT)                  // steps of a panel
#define COPIED (256u / BLOCK * SIZE0 / 128u)  // copies of 128 bytes that are a step
#define GROUPS (8u / COPIED / 4u)             // groups of 32 elements in 32 bytes
#define X_PITCH (LONG * 32u + 4u)             // units of a row of x: the banks of neighbours differ
#define ONE_TWICE (IN_HALVES ? 0x3c003c00u : 0x3f803f80u)
#define IN_HALVES_f16 true
#define IN_HALVES_bf16 false
#define IN_HALVES RLX_JOIN(IN_HALVES_, T)
#define HAS_SUMS (FORMAT == Q4_K || IN_HALVES)
#define PIECES (IN_HALVES ? 2u : 3u)  // numbers of 16 bits that a sum of x is
// Beside bf16, nibbles keep the leading one that makes them numbers from 128 on: sums start at -128 times that of x.
#define LEADING (FORMAT == Q4_K && !IN_HALVES)
#define EACH (LONG / PARTS)            // steps of a subgroup
#define CHUNKS ((EACH + 1u) / 2u)      // copies of x
#define MADE ((ROWS_HELD * COUNT + WIDTH - 1u) / WIDTH)  // elements of y that a thread makes
#ifndef SHARED_SUMS
#define SHARED_SUMS true
#endif
#define SUMS_AT (HELD * X_PITCH)  // by step, piece and row of x: of eight groups
#define Q_AT (SUMS_AT + (SHARED_SUMS && HAS_SUMS ? LONG * PIECES * COUNT : 0u))
#define STAGE_UNITS 2048u
#define FACTORS_AT (Q_AT + STAGES * STAGE_UNITS)  // by subgroup and row: of eight groups
#define LOWS_AT (FACTORS_AT + 512u)     // eight minimums, or scales that zeros are multiplied by, as halves
#define SHARES_AT (LOWS_AT + 256u)           // what the minimums of a row are multiplied by
SHARED_UNITS(SHARES_AT + 64u)
SHARED uint last_group;
SHARED unsigned long long x_copied[CHUNKS];  // barriers that count the threads whose copies of x have come

#ifdef RLX_ON_HOST
#define X_EXPECTED
#define X_COMES(c)
#define X_CAME(c) \
    {             \
        BARRIER;  \
    }
// An 8 x 8 matrix of 16-bit numbers, a row in four lanes, with rows and columns swapped.
RLX_FN uint swapped_rows(const uint w) {
    const uint a = RLX_BITS(__shfl_sync(0xffffffffu, RLX_FLOAT(w), LANE % 4u * 8u + LANE / 8u));
    const uint b = RLX_BITS(__shfl_sync(0xffffffffu, RLX_FLOAT(w), LANE % 4u * 8u + 4u + LANE / 8u));
    return (LANE / 4u % 2u == 0u ? a & 0xffffu : a >> 16) | (LANE / 4u % 2u == 0u ? b << 16 : b & 0xffff0000u);
}
#define LOW_BYTES(w) ((w) & 0xffu | ((w) & 0xff00u) << 8)
#define HIGH_BYTES(w) ((w) >> 16 & 0xffu | (w) >> 8 & 0xff0000u)
#define BYTE_AS_FLOAT(w, j) RLX_FLOAT((w) >> 8u * (j) & 0xffu | 0x4b000000u)
#define RLX_MMA_EIGHT(TYPE)                                                                              \
    RLX_FN void eight_##TYPE(float* c, const uint* a, const uint b, const float* before) {               \
        const uint all[4] = {a[0], a[1], 0u, 0u}, both[2] = {b, 0u};                                     \
        from_##TYPE(c, all, both, before);                                                               \
    }
#else
#define X_BARRIER(c) ((uint)__cvta_generic_to_shared(&x_copied[c]))
#define X_EXPECTED                                                                               \
    if (THREAD == 0u) {                                                                          \
        UNROLL for (uint c = 0u; c < CHUNKS; c++) {                                              \
            asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(X_BARRIER(c)), "n"(WIDTH) : "memory"); \
        }                                                                                        \
    }                                                                                            \
    __syncthreads();
#define X_COMES(c) asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(X_BARRIER(c)) : "memory");
#define X_CAME(c) wait_for_copies(X_BARRIER(c));
RLX_FN void wait_for_copies(const uint barrier) {
    uint done = 0u;
    while (done == 0u) {
        asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p;}"
                     : "=r"(done) : "r"(barrier) : "memory");
    }
}
RLX_FN uint swapped_rows(const uint w) {
    uint d;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(w));
    return d;
}
#define LOW_BYTES(w) __byte_perm(w, 0u, 0x4140)
#define HIGH_BYTES(w) __byte_perm(w, 0u, 0x4342)
#define BYTE_AS_FLOAT(w, j) RLX_FLOAT(__byte_perm(w, 0x4b000000u, 0x7440u + (j)))
#define RLX_MMA_EIGHT(TYPE)                                                                              \
    RLX_FN void eight_##TYPE(float* c, const uint* a, const uint b, const float* before) {               \
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32." #TYPE "." #TYPE                             \
                     ".f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"                         \
                     : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])                                    \
                     : "r"(a[0]), "r"(a[1]), "r"(b), "f"(before[0]), "f"(before[1]), "f"(before[2]),     \
                       "f"(before[3]));                                                                  \
    }
#endif
RLX_MMA_EIGHT(f16)
RLX_MMA_EIGHT(bf16)
#define MULTIPLY_EIGHT(c, a, b, before) RLX_JOIN(eight_, T)(c, a, b, before);
#define ROUNDED_f16(v) f16_bits(v)
#define ROUNDED_bf16(v) bf16_bits(v)
#define ROUNDED(v) RLX_JOIN(ROUNDED_, T)(v)
#define NUMBER_OF(h) RLX_JOIN(value_, T)(h)

// The words that hold the scales of a row in a step.
RLX_FN uvec4 words_of_step(const Row row, const Planes at, const uint step) {
    if (FORMAT == Q8_0) return KEPT_SIXTEEN((const uint4*)row.words + (at.at1 / 16u + step));
    const uint from = at.at1 + step * 12u;
    return PACKED4(bytes_at(row, from, 4u), bytes_at(row, from + 4u, 4u), bytes_at(row, from + 8u, 4u),
                   bytes_at(row, at.at2 + step * 4u, 4u));
}
// Scales, the minimums (or scales) as numbers of 16 bits, and what these are multiplied by.
struct Decoded {
    uvec4 scales[2], lows;
    float share;
};
#define AS_WORDS(a, b, c, d) PACKED4(RLX_BITS(a), RLX_BITS(b), RLX_BITS(c), RLX_BITS(d))
// Two integers below 128 as halves, 2^-24 of them, or as bf16.
#define AS_NUMBERS(w) (IN_HALVES ? (w) : pair_sub_bf16((w) | 0x43004300u, 0x43004300u))
RLX_FN Decoded decoded(const uvec4 w) {
    Decoded made;
    if (FORMAT == Q8_0) {
        made.scales[0] = AS_WORDS(half_of(w.x), half_of(w.x >> 16), half_of(w.y), half_of(w.y >> 16));
        made.scales[1] = AS_WORDS(half_of(w.z), half_of(w.z >> 16), half_of(w.w), half_of(w.w >> 16));
        made.lows = w;
        made.share = 0.0f;
        return made;
    }
    const uint scales[2] = {w.x & 0x3f3f3f3fu, w.z & 0x0f0f0f0fu | w.x >> 2 & 0x30303030u};
    const uint least[2] = {w.y & 0x3f3f3f3fu, w.z >> 4 & 0x0f0f0f0fu | w.y >> 2 & 0x30303030u};
    // Beside halves, the nibbles of odd groups stay where they lie: they are 16 times as large.
    const float even = half_of(w.w), odd = IN_HALVES ? even * 0.0625f : even;
    const float even_less = -8388608.0f * even, odd_less = -8388608.0f * odd;
    UNROLL for (uint h = 0u; h < 2u; h++) {
        made.scales[h] = AS_WORDS(
            FMA(BYTE_AS_FLOAT(scales[h], 0u), even, even_less), FMA(BYTE_AS_FLOAT(scales[h], 1u), odd, odd_less),
            FMA(BYTE_AS_FLOAT(scales[h], 2u), even, even_less), FMA(BYTE_AS_FLOAT(scales[h], 3u), odd, odd_less));
    }
    made.lows = PACKED4(AS_NUMBERS(LOW_BYTES(least[0])), AS_NUMBERS(HIGH_BYTES(least[0])),
                        AS_NUMBERS(LOW_BYTES(least[1])), AS_NUMBERS(HIGH_BYTES(least[1])));
    made.share = (IN_HALVES ? -32.0f : -1.0f) * half_of(w.w >> 16);
    return made;
}

// Two words of a matrix from four bytes of quants, of the group that is their lower or their upper nibbles.
RLX_FN uvec2 pairs_of_group(const uint q, const uint group) {
    const uint bytes = FORMAT == Q8_0 ? q ^ 0x80808080u : q, a = LOW_BYTES(bytes), b = HIGH_BYTES(bytes);
    if (FORMAT == Q8_0) {
        if (IN_HALVES) return make_uint2(a, b);
        // Seven bits fit beside the leading one of a bf16 from 128 on; the eighth takes 128 away, or 256.
        return make_uint2(pair_sub_bf16(a & 0x007f007fu | 0x43004300u, a & 0x00800080u ^ 0x43804380u),
                          pair_sub_bf16(b & 0x007f007fu | 0x43004300u, b & 0x00800080u ^ 0x43804380u));
    }
    if (IN_HALVES) return make_uint2(a & 0x000f000fu << (4u * group), b & 0x000f000fu << (4u * group));
    return make_uint2(a >> (4u * group) & 0x000f000fu | 0x43004300u, b >> (4u * group) & 0x000f000fu | 0x43004300u);
}

// Copies the next 128 bytes of each row, to where the place `stage` is.
#define FETCH(stage)                                                                             \
    {                                                                                            \
        uint4* to = q_to + (stage) % STAGES * STAGE_UNITS;                                       \
        UNROLL for (uint i = 0u; i < HIGH / 4u; i++) rlx_copy_unit(to + i * 32u, q_from + i * 4u * (PITCH / 16u)); \
        q_from += 8u;                                                                            \
    }

RLX_FN void packed_panel_body(PTR(T) x, PTR(u32) q, PTR(T) y, PTR(f32) partial, PTR(u32) counters, const uint m,
                              const uint n) {
    if (!EARLY) BEGIN;
    const uint tile = GROUP / SPLIT, slice = GROUP % SPLIT, part = WARP % PARTS;
    if (tile * ROWS_HELD >= n) return;
    const uint first_row = tile * ROWS_HELD + WARP / PARTS * HIGH;
    const uint start = slice * LONG, from = part * EACH, end = from + EACH;  // within the panel
    const Planes at = planes_of(BLOCKS);
    const uint4* q_from = (const uint4*)row_of(q, first_row + LANE / 8u, PITCH).words + (start * COPIED * 8u + LANE % 8u);
    uint4* q_to = &units[Q_AT + WARP * HIGH * 8u + LANE / 8u * 8u + (LANE % 8u ^ LANE / 8u * 2u)];
    q_from += from * COPIED * 8u;
    KEPT_PTR(q_from)
    uint stage = 0u;
    const uint copies = (end - from) * COPIED;
    UNROLL for (uint ahead = 0u; ahead + 1u < STAGES; ahead++) {
        if (ahead < copies) FETCH(ahead)
        COPIES_END
    }
    const Row own = row_of(q, first_row + LANE % HIGH, PITCH);
    // Of two steps, each lane decodes the scales of one.
    const uint mine = LANE / HIGH, scaled_row = WARP * HIGH + LANE % HIGH;
    uvec4 words = words_of_step(own, at, start + lesser(from + mine, end - 1u));
    Decoded scales;
    if (EARLY) BEGIN;
    X_EXPECTED
    for (uint c = 0u; c < CHUNKS; c++) {
        for (uint i = THREAD; i < m * (PARTS * 64u); i += WIDTH) {
            const uint row = i / (PARTS * 64u), unit = i / 64u % PARTS * (EACH * 32u) + c * 64u + i % 64u;
            if (EACH % 2u == 1u && c * 2u + i / 32u % 2u >= EACH) continue;
            rlx_copy_unit(&units[row * X_PITCH + unit], (const uint4*)x + (row * (STEPS * 32u) + start * 32u + unit));
        }
        X_COMES(c)
    }
    // A row that is not there is the last one again, and not stored.
    const uint4* px[NT];
    UNROLL for (uint c = 0u; c < NT; c++) px[c] = &units[lesser(c * 8u + LANE_ROW, m - 1u) * X_PITCH + LANE_QUAD];
    if (SHARED_SUMS && HAS_SUMS) {
        for (uint c = 0u; c < CHUNKS; c++) {
            X_CAME(c)
            for (uint i = WARP; i < PARTS * 2u * NT; i += WARPS) {
                const uint rows8 = i % NT * 8u, later = c * 2u + i / NT % 2u, step = i / NT / 2u * EACH + later;
                if (later >= EACH) continue;
                const uint4* given = &units[lesser(rows8 + LANE_ROW, m - 1u) * X_PITCH + LANE_QUAD + step * 32u];
                float some[4][4];
                UNROLL for (uint g = 0u; g < 4u; g++) SET_FRAG(some[g], 0.0f, 0.0f, 0.0f, 0.0f)
                UNROLL for (uint group = 0u; group < 8u; group++) {
                    // Ones in the row that is the group's: its sums come to be in that row.
                    const uint one = LANE_ROW == group ? ONE_TWICE : 0u, a[4] = {one, 0u, one, 0u};
                    const uvec4 v = given[group * 4u];
                    const uint b[2] = {v.x, v.y}, after[2] = {v.z, v.w};
                    MULTIPLY_FROM(some[group % 4u], a, b, some[group % 4u])
                    MULTIPLY_FROM(some[group % 4u], a, after, some[group % 4u])
                }
                UNROLL for (uint e = 0u; e < 2u; e++) {
                    float rest = some[0][e] + some[1][e] + some[2][e] + some[3][e];
                    if (IN_HALVES) rest *= 0.03125f;
                    unsigned short* to = (unsigned short*)&units[SUMS_AT + step * PIECES * COUNT + rows8 + 2u * LANE_QUAD + e];
                    UNROLL for (uint piece = 0u; piece < PIECES; piece++) {
                        const uint bits = pair_bits(rest, 0.0f);
                        to[piece * COUNT * 8u + LANE_ROW] = (unsigned short)bits;
                        rest = (rest - low_value(bits)) * (IN_HALVES ? 2048.0f : 1.0f);
                    }
                }
            }
        }
        BARRIER;
    }
    const uint* sums_of_x = (const uint*)&units[SUMS_AT + from * PIECES * COUNT + LANE_ROW] + LANE_QUAD;
    float acc[1][NT][4];
    UNROLL for (uint t = 0u; t < 1u; t++) {
        UNROLL for (uint c = 0u; c < NT; c++) SET_FRAG(acc[t][c], 0.0f, 0.0f, 0.0f, 0.0f)
    }
    // Where the lane's parts of shared memory begin.
    const uvec2* places[4];
    UNROLL for (uint p = 0u; p < 4u; p++) {
        places[p] = (const uvec2*)&units[Q_AT + (WARP * HIGH + LANE_ROW) * 8u + (p ^ LANE_ROW % 4u) * 2u] + LANE_QUAD;
    }
    const uint4* factors = &units[FACTORS_AT + (WARP * HIGH + LANE_ROW) * 2u];
    const uint4* halves[2] = {factors + LANE_ROW / 4u, factors + (1u - LANE_ROW / 4u)};
    const float* shares = (const float*)&units[SHARES_AT] + (WARP * HIGH + LANE_ROW);
    uint less[4];
    SET_FRAG(less, 0xc300c300u, 0xc300c300u, 0xc300c300u, 0xc300c300u)  // -128 as bf16
    UNROLL for (uint c = 0u; c < NT; c++) px[c] += from * 32u;
    for (uint step = from; step < end; step++) {
        if (!(SHARED_SUMS && HAS_SUMS) && (step - from) % 2u == 0u) { X_CAME((step - from) / 2u) }
        float all[NT][4];  // of x, by group
        UNROLL for (uint c = 0u; c < NT; c++) SET_FRAG(all[c], 0.0f, 0.0f, 0.0f, 0.0f)
        UNROLL for (uint part_of = 0u; part_of < COPIED; part_of++) {
            COPIES_WAIT(STAGES - 2u)
            WARP_SYNC
            if (stage + STAGES - 1u < copies) FETCH(stage + STAGES - 1u)
            COPIES_END
            if (part_of == 0u) {
                const uint which = (step - from) % 2u;
                if (which == 0u) {
                    scales = decoded(words);
                    words = words_of_step(own, at, start + lesser(step + 2u + mine, end - 1u));
                }
                if (which == mine) {
                    units[FACTORS_AT + scaled_row * 2u + LANE / 4u % 2u] = scales.scales[0];
                    units[FACTORS_AT + scaled_row * 2u + (1u - LANE / 4u % 2u)] = scales.scales[1];
                    if (HAS_SUMS) units[LOWS_AT + scaled_row] = scales.lows;
                    if (FORMAT == Q4_K) ((float*)&units[SHARES_AT])[scaled_row] = scales.share;
                }
                WARP_SYNC
            }
            const uint of_stage = stage % STAGES * (STAGE_UNITS * 2u);
            vec4 by[2u];
            UNROLL for (uint p = 0u; p < 4u; p++) {
                uvec2 held[2u];
                UNROLL for (uint r = 0u; r < 2u; r++) {
                    held[r] = (places[p] + of_stage)[r * 128u];
                }
                UNROLL for (uint g = 0u; g < GROUPS; g++) {
                    const uint group = (part_of * 4u + p) * GROUPS + g;
                    if (group % 4u == 0u) {
                        UNROLL for (uint r = 0u; r < 2u; r++) {
                            const uvec4 w = halves[group / 4u][r * 16u];
                            by[r] = VEC4(RLX_FLOAT(w.x), RLX_FLOAT(w.y), RLX_FLOAT(w.z), RLX_FLOAT(w.w));
                        }
                    }
                    uvec4 given[NT];
                    float start_of[NT][4];
                    UNROLL for (uint c = 0u; c < NT; c++) {
                        given[c] = px[c][group * 4u];
                        const uint b[2] = {given[c].x, given[c].y}, after[2] = {given[c].z, given[c].w};
                        SET_FRAG(start_of[c], 0.0f, 0.0f, 0.0f, 0.0f)
                        if (LEADING) {
                            MULTIPLY_FROM(start_of[c], less, b, start_of[c])
                            MULTIPLY_FROM(start_of[c], less, after, start_of[c])
                        }
                        if (HAS_SUMS && !SHARED_SUMS) {
                            // Ones in the row that is the group's: its sums come to be in that row.
                            const uint one = LANE_ROW == group ? ONE_TWICE : 0u, rows[4] = {one, 0u, one, 0u};
                            MULTIPLY_FROM(all[c], rows, b, all[c])
                            MULTIPLY_FROM(all[c], rows, after, all[c])
                        }
                    }
                    UNROLL for (uint t = 0u; t < 1u; t++) {
                        uint a[2][4];
                        UNROLL for (uint r = 0u; r < 2u; r++) {
                            const uvec2 early = pairs_of_group(held[2u * t + r].x, g);
                            const uvec2 late = pairs_of_group(held[2u * t + r].y, g);
                            a[0][r] = early.x;
                            a[0][r + 2u] = early.y;
                            a[1][r] = late.x;
                            a[1][r + 2u] = late.y;
                        }
                        UNROLL for (uint c = 0u; c < NT; c++) {
                            float sums[4];
                            const uint b[2] = {given[c].x, given[c].y}, after[2] = {given[c].z, given[c].w};
                            MULTIPLY_FROM(sums, a[0], b, start_of[c])
                            MULTIPLY_FROM(sums, a[1], after, sums)
                            UNROLL for (uint e = 0u; e < 4u; e++) {
                                const vec4 s = by[2u * t + e / 2u];
                                const float own_scale = group % 4u == 0u ? s.x : group % 4u == 1u ? s.y : group % 4u == 2u ? s.z : s.w;
                                acc[t][c][e] = FMA(own_scale, sums[e], acc[t][c][e]);
                            }
                        }
                    }
                }
            }
            stage++;
        }
        UNROLL for (uint c = 0u; c < NT; c++) px[c] += 32u;
        if (HAS_SUMS) {
            Matrix lows;
            rlx_ldmatrix(lows.r, &units[LOWS_AT + WARP * HIGH + LANE % HIGH]);
            UNROLL for (uint c = 0u; c < NT; c++) {
                // Of halves, so small that they hold the sum of any 32; what they lose lies 2^11 further down.
                float low = all[c][0] * (IN_HALVES ? 0.03125f : 1.0f), high = all[c][1] * (IN_HALVES ? 0.03125f : 1.0f);
                uint given[PIECES];
                UNROLL for (uint piece = 0u; piece < PIECES; piece++) {
                    if (SHARED_SUMS) {
                        given[piece] = sums_of_x[(piece * COUNT + c * 8u) * 4u];
                        continue;
                    }
                    const uint both = pair_bits(low, high);
                    given[piece] = swapped_rows(both);
                    low = (low - low_value(both)) * (IN_HALVES ? 2048.0f : 1.0f);
                    high = (high - high_value(both)) * (IN_HALVES ? 2048.0f : 1.0f);
                }
                UNROLL for (uint t = 0u; t < 1u; t++) {
                    float sums[4];
                    SET_FRAG(sums, 0.0f, 0.0f, 0.0f, 0.0f)
                    UNROLL for (uint i = 0u; i < PIECES; i++) {
                        MULTIPLY_EIGHT(sums, &lows.r[2u * t], given[PIECES - 1u - i], sums)
                        if (!IN_HALVES || i + 1u == PIECES) continue;
                        UNROLL for (uint e = 0u; e < 4u; e++) sums[e] *= 0.00048828125f;
                    }
                    UNROLL for (uint e = 0u; e < 4u; e++) {
                        // Of q8_0: 128 times 32, beside sums of quants that are 2^-24 of what they count.
                        const float less = FORMAT == Q8_0 ? -0.000244140625f : shares[t * 16u + e / 2u * 8u];
                        acc[t][c][e] = FMA(less, sums[e], acc[t][c][e]);
                    }
                }
            }
        }
        sums_of_x += PIECES * COUNT * 4u;
    }
    COPIES_WAIT(0u)
    BARRIER;
    float* joined = (float*)&units[Q_AT];
    UNROLL for (uint t = 0u; t < 1u; t++) {
        UNROLL for (uint c = 0u; c < NT; c++) {
            UNROLL for (uint e = 0u; e < 4u; e++) {
                const uint row = WARP * HIGH + t * 16u + e / 2u * 8u + LANE_ROW;
                joined[row * COUNT + c * 8u + 2u * LANE_QUAD + e % 2u] = acc[t][c][e] * POWER;
            }
        }
    }
    BARRIER;
    float made[MADE];
    UNROLL for (uint e = 0u; e < MADE; e++) {
        const uint i = e * WIDTH + THREAD, row = i % ROWS_HELD, column = i / ROWS_HELD;
        made[e] = 0.0f;
        if (column >= m) continue;
        UNROLL for (uint p = 0u; p < PARTS; p++) {
            made[e] += joined[((row / HIGH * PARTS + p) * HIGH + row % HIGH) * COUNT + column];
        }
        if (SPLIT > 1u) SHOW(partial, (tile * SPLIT + slice) * (ROWS_HELD * m) + i, made[e]);
    }
    if (SPLIT > 1u) {
        ARRIVE(counters, tile, SPLIT, last_group);
        if (!last_group) return;
        UNROLL for (uint e = 0u; e < MADE; e++) made[e] = 0.0f;
        UNROLL for (uint s = 0u; s < SPLIT; s++) {
            UNROLL for (uint e = 0u; e < MADE; e++) {
                const uint i = e * WIDTH + THREAD;
                if (i < ROWS_HELD * m) made[e] += SEEN(partial, (tile * SPLIT + s) * (ROWS_HELD * m) + i);
            }
        }
    }
    float* done = (float*)&units[Q_AT + 1024u];  // beside the sums that are joined
    UNROLL for (uint e = 0u; e < MADE; e++) done[e * WIDTH + THREAD] = made[e];
    for (uint i = THREAD; i < ROWS_HELD * m; i += WIDTH) {
        const uint row = i % ROWS_HELD, column = i / ROWS_HELD, to = tile * ROWS_HELD + row;
        float sum = done[i];
        // A sum with infinity in it may be NaN because zeros or minimums are added up apart; with a leading one it may
        // be infinite though the row's is not.
        if (IS_NAN(LEADING ? sum - sum : sum)) sum = dot_of(x, row_of(q, to, PITCH), at, BLOCKS * UNITS, column * (BLOCKS * BLOCK));
        STORE(T, y, column * n + to, sum);
    }
}
