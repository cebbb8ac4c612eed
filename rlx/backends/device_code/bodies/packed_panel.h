// y (m, n) = x times the transposed packed rows of q, for at most COLS rows of x, by matrix instructions: see packed.h and
// packed_pairs.h. CUDA alone: q4_k beside halves, and q8_0. All rows of x lie in shared memory as they are, with room for
// HELD of them. A subgroup takes HIGH rows of q and steps of 256 elements; PARTS of the eight subgroups share rows and part
// the steps. Quants are copied to shared memory 128 bytes of a row at a time, STAGES - 1 times ahead, by each subgroup for
// itself, so that no subgroup waits for another between its first step and its last. Each lane decodes the scales of one
// row. They multiply the sums of 32 products. Beside halves, minimums and the zeros of q8_0 multiply sums of 32 elements of
// x, which are made once in a workgroup, by matrix instructions too: such a sum is two halves, of which the second counts
// 2^-11. CLUSTER workgroups part the steps of the same rows and read each other's sums, in the order of the steps.
// BLOCKS, PITCH: blocks of a row, and its bytes. EARLY: see packed_line.h. n is a multiple of the rows of a workgroup,
// k one of 1,024, and its steps one of CLUSTER times PARTS.
#define MATRIX T
#define TERMS 1u
#include "begin.h"
#include "packed.h"
#include "packed_dot.h"
#include "packed_pairs.h"
#define COUNT_8 8u
#define COUNT_16 16u
#define COUNT RLX_JOIN(COUNT_, COLS)
#define NT (COUNT / 8u)
#define HIGH 32u
#define ROWS_HELD (256u / PARTS)
#define ALL_STEPS (BLOCKS * BLOCK / 256u)
#define STEPS (ALL_STEPS / CLUSTER)           // of a workgroup
#define EACH (STEPS / PARTS)                  // steps of a subgroup
#define COPIED (256u / BLOCK * SIZE0 / 128u)  // copies of 128 bytes that are a step
#define GROUPS (8u / COPIED / 4u)             // groups of 32 elements in 32 bytes
#define IN_HALVES_f16 true
#define IN_HALVES_bf16 false
#define IN_HALVES RLX_JOIN(IN_HALVES_, T)  // whether sums of x are needed: the numbers of q8_0 as bf16 have signs
#define X_PITCH (STEPS * 32u + 4u)         // units of a row of x: the banks of neighbours differ
#define SUMS_AT (HELD * X_PITCH)           // by step, half and row of x: of eight groups
#define Q_AT (SUMS_AT + (IN_HALVES ? STEPS * 2u * COUNT : 0u))
#define STAGE_UNITS 2048u
#define FACTORS_AT (Q_AT + STAGES * STAGE_UNITS)  // by subgroup and row: of eight groups
#define LOWS_AT (FACTORS_AT + 512u)               // eight minimums, or scales that zeros are multiplied by, as halves
#define SHARES_AT (LOWS_AT + 256u)                // what the minimums of a row are multiplied by
SHARED_UNITS(SHARES_AT + 64u)

#ifdef RLX_ON_HOST
#define LOW_BYTES(w) ((w) & 0xffu | ((w) & 0xff00u) << 8)
#define HIGH_BYTES(w) ((w) >> 16 & 0xffu | (w) >> 8 & 0xff0000u)
#define BYTE_AS_FLOAT(w, j) RLX_FLOAT((w) >> 8u * (j) & 0xffu | 0x4b000000u)
RLX_FN void multiply_eight(float* c, const uint* a, const uint b) {
    const uint all[4] = {a[0], a[1], 0u, 0u}, both[2] = {b, 0u};
    rlx_mma_f16(c, all, both);
}
#else
#define LOW_BYTES(w) __byte_perm(w, 0u, 0x4140)
#define HIGH_BYTES(w) __byte_perm(w, 0u, 0x4342)
#define BYTE_AS_FLOAT(w, j) RLX_FLOAT(__byte_perm(w, 0x4b000000u, 0x7440u + (j)))
RLX_FN void multiply_eight(float* c, const uint* a, const uint b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b));
}
#endif

// Where the workgroup of that place in a cluster leaves its sums, and a barrier of the cluster, of which all add up. A
// host runs workgroups in turn, so that the last one adds up what the others left.
#ifdef RLX_ON_HOST
#define ADDERS 1u
#else
#define ADDERS CLUSTER
#endif
#if defined(RLX_ON_HOST) || CLUSTER == 1
#define CLUSTER_BARRIER
#else
#define CLUSTER_BARRIER \
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
RLX_FN float* sums_of(const uint place) {
#if CLUSTER == 1
    return (float*)&units[Q_AT];
#elif defined(RLX_ON_HOST)
    static float left[CLUSTER * 256u * COUNT];
    return left + place * (256u * COUNT);
#else
    float* made;
    asm("mapa.u64 %0, %1, %2;" : "=l"(made) : "l"((float*)&units[Q_AT]), "r"(place));
    return made;
#endif
}

// The scales of a row in four steps, from step `step` on: 64 bytes.
struct Four {
    uvec4 w[4];
};
RLX_FN Four four_steps(const Row row, const Planes at, const uint step) {
    Four made;
    UNROLL for (uint i = 0u; i < 4u; i++) {
        const uint from = FORMAT == Q8_0 ? at.at1 + step * 16u + i * 16u
                          : i < 3u       ? at.at1 + step * 12u + i * 16u
                                         : at.at2 + step * 4u;
        made.w[i] = KEPT_SIXTEEN((const uint4*)row.words + from / 16u);
    }
    return made;
}
// Brings those of the next step to where those of this one were.
RLX_FN void next_of(Four& s) {
    if (FORMAT == Q8_0) {
        UNROLL for (uint i = 0u; i < 3u; i++) s.w[i] = s.w[i + 1u];
        return;
    }
    const uvec4 a = s.w[0], b = s.w[1], c = s.w[2], d = s.w[3];
    s.w[0] = PACKED4(a.w, b.x, b.y, b.z);
    s.w[1] = PACKED4(b.w, c.x, c.y, c.z);
    s.w[2] = PACKED4(c.w, c.w, c.w, c.w);
    s.w[3] = PACKED4(d.y, d.z, d.w, d.w);
}
#define AS_WORDS(a, b, c, d) PACKED4(RLX_BITS(a), RLX_BITS(b), RLX_BITS(c), RLX_BITS(d))
// Writes the scales of a step, of the row that is the lane's.
RLX_FN void place_scales(const Four s, const uint row) {
    const uint to = FACTORS_AT + row * 2u, swap = row / 4u % 2u;
    if (FORMAT == Q8_0) {
        const uvec4 w = s.w[0];
        units[to + swap] = AS_WORDS(half_of(w.x), half_of(w.x >> 16), half_of(w.y), half_of(w.y >> 16));
        units[to + 1u - swap] = AS_WORDS(half_of(w.z), half_of(w.z >> 16), half_of(w.w), half_of(w.w >> 16));
        if (IN_HALVES) units[LOWS_AT + row] = w;
        return;
    }
    const uint d = s.w[0].x, m = s.w[0].y, both = s.w[0].z;
    const uint scales[2] = {d & 0x3f3f3f3fu, both & 0x0f0f0f0fu | d >> 2 & 0x30303030u};
    const uint least[2] = {m & 0x3f3f3f3fu, both >> 4 & 0x0f0f0f0fu | m >> 2 & 0x30303030u};
    // The nibbles of odd groups stay where they lie: they are 16 times as large.
    const float even = half_of(s.w[3].x), odd = even * 0.0625f;
    const float even_less = -8388608.0f * even, odd_less = -8388608.0f * odd;
    UNROLL for (uint h = 0u; h < 2u; h++) {
        units[to + (h ^ swap)] = AS_WORDS(
            FMA(BYTE_AS_FLOAT(scales[h], 0u), even, even_less), FMA(BYTE_AS_FLOAT(scales[h], 1u), odd, odd_less),
            FMA(BYTE_AS_FLOAT(scales[h], 2u), even, even_less), FMA(BYTE_AS_FLOAT(scales[h], 3u), odd, odd_less));
    }
    units[LOWS_AT + row] = PACKED4(LOW_BYTES(least[0]), HIGH_BYTES(least[0]), LOW_BYTES(least[1]), HIGH_BYTES(least[1]));
    ((float*)&units[SHARES_AT])[row] = -32.0f * half_of(s.w[3].x >> 16);
}

// Two words of a matrix from four bytes of quants, of the group that is their lower or their upper nibbles.
RLX_FN uvec2 pairs_of_group(const uint q, const uint group) {
    const uint bytes = FORMAT == Q8_0 ? q ^ 0x80808080u : q, a = LOW_BYTES(bytes), b = HIGH_BYTES(bytes);
    if (FORMAT != Q8_0) return make_uint2(a & 0x000f000fu << (4u * group), b & 0x000f000fu << (4u * group));
    if (IN_HALVES) return make_uint2(a, b);
    // Seven bits fit beside the leading one of a bf16 from 128 on; the eighth takes 128 away, or 256.
    return make_uint2(pair_sub_bf16(a & 0x007f007fu | 0x43004300u, a & 0x00800080u ^ 0x43804380u),
                      pair_sub_bf16(b & 0x007f007fu | 0x43004300u, b & 0x00800080u ^ 0x43804380u));
}

// Copies the next 128 bytes of each row to where place `stage` is.
#define FETCH(stage)                                                                             \
    {                                                                                            \
        const uint to = q_to + (stage) % STAGES * STAGE_UNITS;                                   \
        UNROLL for (uint i = 0u; i < 8u; i++) rlx_copy_unit(&units[to] + i * 32u, q_from + i * 4u * (PITCH / 16u)); \
        q_from += 8u;                                                                            \
    }

RLX_FN void packed_panel_body(PTR(T) x, PTR(u32) q, PTR(T) y, const uint m, const uint n) {
    if (!EARLY) BEGIN;
    const uint tile = GROUP / CLUSTER, place = GROUP % CLUSTER, first = place * STEPS;
    const uint from = WARP % PARTS * EACH, end = from + EACH, start = first + from;
    if (tile * ROWS_HELD >= n) return;
    const uint first_row = tile * ROWS_HELD + WARP / PARTS * HIGH;
    const Planes at = planes_of(BLOCKS);
    const uint4* q_from = (const uint4*)row_of(q, first_row + LANE / 8u, PITCH).words;
    q_from += start * COPIED * 8u + LANE % 8u;
    uint q_to = Q_AT + WARP * HIGH * 8u + LANE / 8u * 8u + (LANE % 8u ^ LANE / 8u * 2u), scales_to = WARP * HIGH + LANE;
    KEPT(q_to)
    KEPT(scales_to)
    KEPT_PTR(q_from)
    uint stage = 0u;
    UNROLL for (uint ahead = 0u; ahead + 1u < STAGES; ahead++) {
        if (ahead < EACH * COPIED) FETCH(ahead)
        COPIES_END
    }
    const Row own = row_of(q, first_row + LANE, PITCH);
    Four scales = four_steps(own, at, start / 4u * 4u), next;
    for (uint i = 0u; i < start % 4u; i++) next_of(scales);
    next = four_steps(own, at, lesser(start / 4u * 4u + 4u, ALL_STEPS - 4u));
    if (EARLY) BEGIN;
    for (uint i = THREAD; i < m * (STEPS * 32u); i += 256u) {
        const uint row = i / (STEPS * 32u), unit = i % (STEPS * 32u);
        rlx_copy_unit(&units[row * X_PITCH + unit], (const uint4*)x + (row * ALL_STEPS + first) * 32u + unit);
    }
    COPIES_END
    COPIES_WAIT(0u)
    BARRIER;
    // A row that is not there is the last one again, and not stored.
    const uint4* px[NT];
    UNROLL for (uint c = 0u; c < NT; c++) px[c] = &units[lesser(c * 8u + LANE_ROW, m - 1u) * X_PITCH + LANE_QUAD];
    const float zeros[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (IN_HALVES) {
        for (uint i = WARP; i < STEPS * NT; i += 8u) {
            const uint step = i / NT, first_x = i % NT * 8u;
            const uint4* given = &units[lesser(first_x + LANE_ROW, m - 1u) * X_PITCH + LANE_QUAD + step * 32u];
            float some[4][4];
            UNROLL for (uint group = 0u; group < 8u; group++) {
                // Ones in the row that is the group's: its sums come to be in that row.
                const uint one = LANE_ROW == group ? 0x3c003c00u : 0u, a[4] = {one, 0u, one, 0u};
                const uvec4 v = given[group * 4u];
                const uint b[2] = {v.x, v.y}, after[2] = {v.z, v.w};
                MULTIPLY_FROM(some[group % 4u], a, b, group < 4u ? zeros : some[group % 4u])
                MULTIPLY_FROM(some[group % 4u], a, after, some[group % 4u])
            }
            UNROLL for (uint e = 0u; e < 2u; e++) {
                // So small that halves hold the sum of any 32.
                const float sum = (some[0][e] + some[1][e] + some[2][e] + some[3][e]) * 0.03125f;
                const uint whole = f16_bits(sum);
                unsigned short* to = (unsigned short*)&units[SUMS_AT + step * 2u * COUNT + first_x + 2u * LANE_QUAD + e];
                to[LANE_ROW] = (unsigned short)whole;
                to[COUNT * 8u + LANE_ROW] = (unsigned short)f16_bits((sum - p_f16_value(whole)) * 2048.0f);
            }
        }
        BARRIER;
    }
    float acc[2][NT][4];
    UNROLL for (uint t = 0u; t < 2u; t++) {
        UNROLL for (uint c = 0u; c < NT; c++) SET_FRAG(acc[t][c], 0.0f, 0.0f, 0.0f, 0.0f)
    }
    // Where the lane's parts of shared memory begin.
    uint places[4], halves[2], row = WARP * HIGH + LANE_ROW;
    UNROLL for (uint p = 0u; p < 4u; p++) {
        places[p] = (Q_AT + row * 8u + (p ^ LANE_ROW % 4u) * 2u) * 2u + LANE_QUAD;
        KEPT(places[p])
    }
    UNROLL for (uint h = 0u; h < 2u; h++) {
        halves[h] = FACTORS_AT + row * 2u + (h ^ LANE_ROW / 4u);
        KEPT(halves[h])
    }
    KEPT(row)
    const float* shares = (const float*)&units[SHARES_AT];
    const uint* sums_of_x = (const uint*)&units[SUMS_AT + from * 2u * COUNT + LANE_ROW] + LANE_QUAD;
    UNROLL for (uint c = 0u; c < NT; c++) px[c] += from * 32u;
    for (uint step = from; step < end; step++) {
        UNROLL for (uint copy = 0u; copy < COPIED; copy++) {
            COPIES_WAIT(STAGES - 2u)
            WARP_SYNC
            if (stage + STAGES - 1u < EACH * COPIED) FETCH(stage + STAGES - 1u)
            COPIES_END
            if (copy == 0u) {
                place_scales(scales, scales_to);
                WARP_SYNC
            }
            const uint of_stage = stage % STAGES * (STAGE_UNITS * 2u);
            vec4 by[4];
            UNROLL for (uint p = 0u; p < 4u; p++) {
                uvec2 held[4];
                UNROLL for (uint r = 0u; r < 4u; r++) held[r] = ((const uvec2*)units + (places[p] + of_stage))[r * 128u];
                UNROLL for (uint g = 0u; g < GROUPS; g++) {
                    const uint group = (copy * 4u + p) * GROUPS + g;
                    if (group % 4u == 0u) {
                        UNROLL for (uint r = 0u; r < 4u; r++) {
                            const uvec4 w = (&units[halves[group / 4u]])[r * 16u];
                            by[r] = VEC4(RLX_FLOAT(w.x), RLX_FLOAT(w.y), RLX_FLOAT(w.z), RLX_FLOAT(w.w));
                        }
                    }
                    uvec4 given[NT];
                    UNROLL for (uint c = 0u; c < NT; c++) given[c] = px[c][group * 4u];
                    UNROLL for (uint t = 0u; t < 2u; t++) {
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
                            MULTIPLY_FROM(sums, a[0], b, zeros)
                            MULTIPLY_FROM(sums, a[1], after, sums)
                            UNROLL for (uint e = 0u; e < 4u; e++) {
                                const vec4 s = by[2u * t + e / 2u];
                                const float scale = group % 4u == 0u   ? s.x
                                                    : group % 4u == 1u ? s.y
                                                    : group % 4u == 2u ? s.z
                                                                       : s.w;
                                acc[t][c][e] = FMA(scale, sums[e], acc[t][c][e]);
                            }
                        }
                    }
                }
            }
            stage++;
        }
        UNROLL for (uint c = 0u; c < NT; c++) px[c] += 32u;
        if (IN_HALVES) {
            Matrix lows;
            rlx_ldmatrix(lows.r, &units[LOWS_AT + WARP * HIGH + LANE]);
            UNROLL for (uint c = 0u; c < NT; c++) {
                const uint whole = sums_of_x[c * 32u], rest = sums_of_x[COUNT * 4u + c * 32u];
                UNROLL for (uint t = 0u; t < 2u; t++) {
                    float sums[4];
                    SET_FRAG(sums, 0.0f, 0.0f, 0.0f, 0.0f)
                    multiply_eight(sums, &lows.r[2u * t], rest);
                    UNROLL for (uint e = 0u; e < 4u; e++) sums[e] *= 0.00048828125f;
                    multiply_eight(sums, &lows.r[2u * t], whole);
                    UNROLL for (uint e = 0u; e < 4u; e++) {
                        // Of q8_0: 128 times 32, beside sums of quants that are 2^-24 of what they count.
                        const float less = FORMAT == Q8_0 ? -0.000244140625f : (shares + row)[t * 16u + e / 2u * 8u];
                        acc[t][c][e] = FMA(less, sums[e], acc[t][c][e]);
                    }
                }
            }
            sums_of_x += 2u * COUNT * 4u;
        }
        if ((first + step) % 4u == 3u) {
            scales = next;
            next = four_steps(own, at, lesser(first + step + 5u, ALL_STEPS - 4u));
        } else {
            next_of(scales);
        }
    }
    COPIES_WAIT(0u)
    BARRIER;
    float* joined = sums_of(place);
    UNROLL for (uint t = 0u; t < 2u; t++) {
        UNROLL for (uint c = 0u; c < NT; c++) {
            UNROLL for (uint e = 0u; e < 4u; e++) {
                const uint row = WARP * HIGH + t * 16u + e / 2u * 8u + LANE_ROW;
                joined[row * COUNT + c * 8u + 2u * LANE_QUAD + e % 2u] = acc[t][c][e] * POWER;
            }
        }
    }
    CLUSTER_BARRIER
    BARRIER;
    if (place + ADDERS < CLUSTER) return;
    for (uint i = (place + ADDERS - CLUSTER) * 256u + THREAD; i < ROWS_HELD * m; i += ADDERS * 256u) {
        const uint row = i % ROWS_HELD, column = i / ROWS_HELD, to = tile * ROWS_HELD + row;
        float sum = 0.0f;
        UNROLL for (uint p = 0u; p < CLUSTER * PARTS; p++) {
            sum += sums_of(p / PARTS)[((row / HIGH * PARTS + p % PARTS) * HIGH + row % HIGH) * COUNT + column];
        }
        // A sum with infinity in it may be NaN because zeros or minimums are added up apart.
        if (IS_NAN(sum)) sum = dot_of(x, row_of(q, to, PITCH), at, BLOCKS * UNITS, column * (BLOCKS * BLOCK));
        STORE(T, y, column * n + to, sum);
    }
    CLUSTER_BARRIER  // shared memory stays until all have read it
}
