// y (m, n) = x times the transposed packed rows of q, for very few rows of x, by matrix instructions on quants in the
// lanes that loaded them: see packed.h and packed_pairs.h. CUDA alone. The four lanes of a row of q hold a chunk each,
// which have GROUPS scales between them. A sum of a matrix is over all four, so each group has columns of its own, in
// which x is zero for the other lanes: the column that a lane multiplies by its scale is that of its own chunk. A
// subgroup takes TILES times 16 rows of q and steps of SPANS times four chunks, of which a row is a multiple; PARTS
// subgroups share rows, step by step, and join their sums. Chunks are copied to shared memory STAGES steps ahead, as
// that takes no registers. COLS: columns, of all groups. ALONE: x is one row without experts, and COLS is 8. TERMS, T,
// GROUPED, RESIDENT: see packed_mma.h; ALIGN is 16, and so is that of x. EARLY: see packed_line.h.
#define MATRIX T
#include "begin.h"
#include "packed.h"
#include "packed_dot.h"
#include "packed_experts.h"
#include "packed_pairs.h"
#define NT_8 1u
#define NT_16 2u
#define NT RLX_JOIN(NT_, COLS)
#define COUNT (8u * NT)
#define SCALED_IN_FOURS (FORMAT == Q2_K || FORMAT == Q3_K || FORMAT == Q6_K || FORMAT == IQ4_XS)
#define SCALED_IN_PAIRS (FORMAT == Q4_K || FORMAT == Q5_K)
#define GROUPS (SCALED_IN_FOURS ? 4u : SCALED_IN_PAIRS ? 2u : 64u * RUNS > BLOCK ? 64u * RUNS / BLOCK : 1u)
// With one row of x, spans have columns of their own too. So each lane holds the sum of one group in one span, which no
// other lane holds, and computes the scales of that one alone.
#define SPREAD (ALONE && SCALED_IN_PAIRS)
#define ACROSS (8u / GROUPS)  // rows of x in eight columns
#define SCALES (SCALED_IN_PAIRS || SCALED_IN_FOURS && FORMAT != IQ4_XS ? RUNS : 1u)
#define HIGH (16u * TILES)
#define ROWS_HELD (8u / PARTS * HIGH)
// Quants of four bits stay where they lie in their words: those of the second run are 16 times as large.
#define LIFTED (RAW && (FORMAT == Q4_0 || FORMAT == Q4_1 || FORMAT == Q4_K))
// A bf16 from 128 on counts in ones: nibbles stay beside that leading one, and the sums of x, which the minimums need
// anyway, take it away. Sums are so some 16 times as large, which costs far less than what y, in bf16, rounds away.
#define LEADING_f16 false
#define LEADING_bf16 (FORMAT == Q4_1 || FORMAT == Q4_K)
#define LEADING RLX_JOIN(LEADING_, T)
#define APART (RUNS > 1u)  // whether the sums of runs are
#define HAS_SUMS (HAS_LOW || HAS_ZEROS)

#define SPANS 2u
#define WIDE (HIGH_WORDS ? 2u : 1u)
#define STAGES (TILES * WIDE == 1u ? 3u : 2u)  // steps in shared memory, of which all but one are under way
#define STAGE_UNITS (256u * 2u * SPANS * TILES * WIDE)
#define UNITS_JOINED (8u * HIGH * COUNT / 4u)
// The chunks of steps, and their higher bits, each in a place of the lane that it is for; at the end the sums.
SHARED_UNITS(STAGES * STAGE_UNITS > UNITS_JOINED ? STAGES * STAGE_UNITS : UNITS_JOINED)

#define STEP (4u * SPANS * PARTS)  // chunks
#define STEP_BLOCKS (STEP / UNITS)
// Where the lane's chunk of span i begins, in its block, and the elements from its first chunk of the step to it.
#define OWN(i) (4u * (i) + LANE_QUAD)
#define BLOCK_OF(i) (UNITS > 4u ? block : block + 4u * (i) / UNITS + LANE_QUAD / UNITS)
#define UNIT_OF(i) (UNITS > 4u ? OWN(i) : LANE_QUAD % UNITS)
#define X_AT(i, run) element_of(4u * (i) / UNITS, 4u * (i) % UNITS, run)

// The scales of a step, where each lane of a row loads a word of them, and all exchange these: a load of a few bytes
// from each of eight rows takes as long as one of 16 bytes.
#define EXCHANGED (ONE_HALF || FORMAT == Q8_0 || FORMAT == Q4_K || FORMAT == Q5_K || FORMAT == Q6_K)
struct Exchanged {
    uint word, half;
};
RLX_FN Exchanged words_to_exchange(const Row row, const Planes at, const uint block) {
    Exchanged made;
    made.half = 0u;
    if (ONE_HALF) {
        made.word = bytes_at(row, (FORMAT == Q5_0 ? at.at2 : at.at1) + (block + 2u * LANE_QUAD) * 2u, 4u);
    } else if (FORMAT == Q8_0) {
        made.word = bytes_at(row, at.at1 + (block + LANE_QUAD) * 2u, 2u);
    } else if (FORMAT == Q6_K) {
        made.word = bytes_at(row, at.at2 + block * 16u + LANE_QUAD * 4u, 4u);
        made.half = bytes_at(row, at.at3 + block * 2u, 2u);
    } else {
        const uint scales = (FORMAT == Q4_K ? at.at1 : at.at2) + block * 12u + LANE_QUAD * 4u;
        made.word = bytes_at(row, LANE_QUAD < 3u ? scales : (FORMAT == Q4_K ? at.at2 : at.at3) + block * 4u, 4u);
    }
    return made;
}
RLX_FN uint from_lane(const uint word, const uint quad) {
    return RLX_BITS(__shfl_sync(0xffffffffu, RLX_FLOAT(word), LANE / 4u * 4u + quad));
}
// The words of `scale_words` for the lane's chunk of a span.
RLX_FN uvec4 words_of(const Exchanged own, const uint span) {
    uvec4 w = PACKED4(0u, 0u, 0u, 0u);
    if (ONE_HALF || FORMAT == Q8_0) {
        w.x = from_lane(own.word, 2u * span + LANE_QUAD / 2u);
        if (ONE_HALF && LANE_QUAD % 2u == 1u) w.x >>= 16;
    } else if (FORMAT == Q6_K) {
        w.x = own.half;
        w.y = from_lane(own.word, 2u * span);
        w.z = from_lane(own.word, 2u * span + 1u);
    } else {
        w.x = from_lane(own.word, 3u);
        w.y = from_lane(own.word, 0u);
        w.z = from_lane(own.word, 1u);
        w.w = from_lane(own.word, 2u);
    }
    return w;
}

// What of a chunk is not copied: the words of its scales, and higher bits that are one word.
struct Small {
    uvec4 words, h;
};
// Copies the chunks of a step `ahead` steps after this one.
#define HELD_AT(step, i, r) (((step) % STAGES * SPANS + (i)) * 2u * TILES + (r)) * WIDE * 256u + THREAD
#define FETCH_Q(step, ahead)                                                                     \
    UNROLL for (uint i = 0u; i < SPANS; i++) {                                                   \
        UNROLL for (uint r = 0u; r < 2u * TILES; r++) {                                          \
            const uint4* from = (const uint4*)rows[r].words;                                     \
            const uint b = BLOCK_OF(i) + (ahead) * STEP_BLOCKS, to = HELD_AT(step, i, r);        \
            rlx_copy_unit(&units[to], from + (place + (ahead) * STEP + 4u * i));                 \
            if (HIGH_WORDS) rlx_copy_unit(&units[to + 256u], from + high_at(at, b, UNIT_OF(i)) / 16u); \
        }                                                                                        \
    }
#define FETCH_SCALES(ahead)                                                                      \
    UNROLL for (uint r = 0u; r < 2u * TILES; r++) {                                              \
        if (EXCHANGED) given[r] = words_to_exchange(rows[r], at, block + (ahead) * STEP_BLOCKS); \
        UNROLL for (uint i = 0u; i < SPANS; i++) {                                               \
            const uint b = BLOCK_OF(i) + (ahead) * STEP_BLOCKS;                                  \
            if (HIGH_WORD) next[i][r].h.x = bytes_at(rows[r], high_at(at, b, UNIT_OF(i)), 4u);   \
            if (!EXCHANGED) next[i][r].words = scale_words(rows[r], at, b, UNIT_OF(i));          \
        }                                                                                        \
    }
// x of span i; STEP / 4 is the first span of the next step.
#define FETCH_X(i, run)                                                                          \
    UNROLL for (uint t = 0u; t < NT; t++) {                                                      \
        if (SPREAD) {                                                                            \
            x[t][2u * (run)] = PACKED4(0u, 0u, 0u, 0u);                                          \
            x[t][2u * (run) + 1u] = PACKED4(0u, 0u, 0u, 0u);                                     \
        }                                                                                        \
        if (SPREAD ? LANE_ROW == LANE_QUAD / 2u * 4u + (i) % SPANS * 2u : mine[t]) {             \
            const uint4* from = (const uint4*)(px[t] + X_AT(i, run));                            \
            x[t][2u * (run)] = KEPT_SIXTEEN(from);                                               \
            x[t][2u * (run) + 1u] = KEPT_SIXTEEN(from + 1);                                      \
        }                                                                                        \
    }

RLX_FN void packed_direct_body(PTR(T) x0, PTR(u32) q, PTR(i32) sizes, PTR(f32) scales, PTR(T) y, const uint m,
                               const uint n, const uint blocks, const uint pitch, const uint experts) {
    if (!EARLY) BEGIN;
    const uint k = blocks * BLOCK, tiles = (n + ROWS_HELD - 1u) / ROWS_HELD, chunks = blocks * UNITS;
    // Neighbouring groups read the same rows of q.
    const uint slots = shares_of(m, NT * ACROSS / TERMS, experts), tile = GROUP / slots;
    if (tile >= tiles) return;
    const Share share = share_of(sizes, GROUP % slots, m, NT * ACROSS / TERMS, experts);
    if (share.rows == 0u) return;
    const uint columns = share.rows * TERMS, part = WARP % PARTS;
    const uint first_row = tile * ROWS_HELD + WARP / PARTS * HIGH;
    const bool summed = share.expert < max_experts(experts);
    PTR(T) all_x = SKIP(T, x0, share.first * TERMS, k);
    const Planes at = planes_of(blocks);
    const uint matrix = summed ? share.expert * n : 0u;
    Row rows[2u * TILES];
    UNROLL for (uint r = 0u; r < 2u * TILES; r++) {
        rows[r] = row_of(q, matrix + lesser(first_row + r * 8u + LANE_ROW, n - 1u), pitch);
        KEPT_PTR(rows[r].words)
    }
    const uint end = summed ? chunks : 0u;
    uint place = 4u * SPANS * part + LANE_QUAD, block = 4u * SPANS * part / UNITS;
    bool mine[NT];
    PTR(T) px[NT];
    uvec4 x[NT][2u * RUNS];
    UNROLL for (uint t = 0u; t < NT; t++) {
        const uint column = t * ACROSS + LANE_ROW % ACROSS;
        mine[t] = LANE_ROW / ACROSS == LANE_QUAD * GROUPS / 4u && column < columns;
        px[t] = SKIP(T, all_x, lesser(column, columns - 1u), k) +
                element_of(block + LANE_QUAD / UNITS, LANE_QUAD % UNITS, 0u);
        KEPT_PTR(px[t])
        UNROLL for (uint i = 0u; i < 2u * RUNS; i++) x[t][i] = PACKED4(0u, 0u, 0u, 0u);
    }
    Small next[SPANS][2u * TILES];
    Exchanged given[2u * TILES];
    uint stage = 0u;
    float acc[TILES][NT][4];
    uint nan[2u * TILES];  // whether a byte of e4m3 was NaN, which has all bits set
    UNROLL for (uint t = 0u; t < TILES; t++) {
        nan[2u * t] = nan[2u * t + 1u] = 0u;
        UNROLL for (uint c = 0u; c < NT; c++) {
            UNROLL for (uint e = 0u; e < 4u; e++) acc[t][c][e] = 0.0f;
        }
    }
    UNROLL for (uint ahead = 0u; ahead + 1u < STAGES; ahead++) {
        if (place + ahead * STEP < end) FETCH_Q(ahead, ahead)
        COPIES_END
    }
    if (place < end) FETCH_SCALES(0u)
    if (EARLY) BEGIN;
    if (place < end) {
        UNROLL for (uint run = 0u; run < RUNS; run++) FETCH_X(0u, run)
    }
    const float zeros[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    uint one[4], less[LIFTED ? RUNS : 1u][4];
    SET_ALL(one, ONES)
    UNROLL for (uint run = 0u; run < (LIFTED ? RUNS : 1u); run++) {
        SET_ALL(less[run], (0x8000u | uint(zero_of()) << (4u * run)) * 0x00010001u)
    }
    while (place < end) {
        const bool more = place + STEP < end;
        if (place + (STAGES - 1u) * STEP < end) FETCH_Q(stage + STAGES - 1u, STAGES - 1u)
        COPIES_END
        COPIES_WAIT(STAGES - 1u)
        Small small[SPANS][2u * TILES];
        UNROLL for (uint i = 0u; i < SPANS; i++) {
            UNROLL for (uint r = 0u; r < 2u * TILES; r++) {
                small[i][r] = next[i][r];
                if (EXCHANGED && !(SPREAD && i > 0u)) small[i][r].words = words_of(given[r], i);
            }
        }
        if (more) FETCH_SCALES(1u)
        float sums[SPREAD ? RUNS : 1u][TILES][NT][4], ones[SPREAD ? RUNS : 1u][NT][4], start[NT][4];
        UNROLL for (uint i = 0u; i < SPANS; i++) {
            const uint u = UNIT_OF(i);
            Chunk held[2u * TILES];
            UNROLL for (uint r = 0u; r < 2u * TILES; r++) {
                held[r].q = units[HELD_AT(stage, i, r)];
                if (HIGH_WORD) held[r].h.x = small[i][r].h.x;
                if (HIGH_WORDS) held[r].h = units[HELD_AT(stage, i, r) + 256u];
            }
            UNROLL for (uint run = 0u; run < RUNS; run++) {
                const bool begins = SPREAD ? i == 0u : APART || run == 0u;
                const uint own = SPREAD ? run : 0u;
                uint b[NT][4][2];
                UNROLL for (uint t = 0u; t < NT; t++) {
                    UNROLL for (uint w = 0u; w < 4u; w++) {
                        const uvec4 both = x[t][2u * run + w / 2u];
                        const uvec2 placed = w % 2u == 0u ? PAIRED(both.x, both.y) : PAIRED(both.z, both.w);
                        b[t][w][0] = placed.x;
                        b[t][w][1] = placed.y;
                        if (HAS_SUMS) {
                            MULTIPLY_FROM(ones[own][t], one, b[t][w], begins && w == 0u ? zeros : ones[own][t])
                        }
                        if (LESS_ZERO) {
                            const float* before = begins && w == 0u ? zeros : start[t];
                            MULTIPLY_FROM(start[t], less[LIFTED ? run : 0u], b[t][w], before)
                        }
                    }
                }
                if (i + 1u < SPANS) {
                    FETCH_X(i + 1u, run)
                } else if (more) {
                    FETCH_X(STEP / 4u, run)
                }
                UNROLL for (uint w = 0u; w < 4u; w++) {
                    UNROLL for (uint t = 0u; t < TILES; t++) {
                        uint a[4];
                        UNROLL for (uint r = 0u; r < 2u; r++) {
                            const Chunk chunk = held[2u * t + r];
                            uvec2 made;
                            if (LIFTED) {
                                const uint word = WORD_OF(chunk.q, w), mask = 0x000f000fu << (4u * run);
                                made = make_uint2(word & mask, word >> 8 & mask);
                            } else if (LEADING) {
                                const uint word = WORD_OF(chunk.q, w) >> (4u * run), mask = 0x000f000fu;
                                made = make_uint2(word & mask | 0x43004300u, word >> 8 & mask | 0x43004300u);
                            } else {
                                const uint bytes = quad_of(chunk, u, run, w);
                                if (FORMAT == FP8_E4M3) nan[2u * t + r] |= (bytes & 0x7f7f7f7fu) + 0x01010101u;
                                made = PAIRS_OF(bytes, HAS_ZEROS ? 0.0f : zero_of());
                            }
                            a[r] = made.x;
                            a[r + 2u] = made.y;
                        }
                        UNROLL for (uint c = 0u; c < NT; c++) {
                            const bool starts = begins && w == 0u;
                            const float* before = !starts ? sums[own][t][c] : LESS_ZERO ? start[c] : zeros;
                            MULTIPLY_FROM(sums[own][t][c], a, b[c][w], before)
                        }
                    }
                }
                if ((!APART && run + 1u < RUNS) || (SPREAD && i + 1u < SPANS)) continue;
                const uint of = SPREAD ? LANE_QUAD % 2u * 4u + LANE_QUAD / 2u * 2u : u;
                UNROLL for (uint t = 0u; t < TILES; t++) {
                    UNROLL for (uint r = 0u; r < 2u; r++) {
                        const uvec4 words = small[SPREAD ? 0u : i][2u * t + r].words;
                        const Scale s = scale_from(words, of, SCALES > 1u ? run : 0u);
                        const float by = LIFTED && run == 1u ? s.s * 0.0625f : s.s;
                        UNROLL for (uint c = 0u; c < NT; c++) {
                            UNROLL for (uint e = 0u; e < (SPREAD ? 1u : 2u); e++) {
                                float sum = sums[own][t][c][2u * r + e];
                                if (HAS_ZEROS) sum = FMA(-s.zero, ones[own][c][e], sum);
                                if (LEADING) sum = FMA(-128.0f, ones[own][c][e], sum);
                                float all = FMA(by, sum, acc[t][c][2u * r + e]);
                                if (HAS_LOW) all = FMA(s.m, ones[own][c][e], all);
                                acc[t][c][2u * r + e] = all;
                            }
                        }
                    }
                }
            }
        }
        place += STEP;
        block += STEP_BLOCKS;
        stage++;
        UNROLL for (uint t = 0u; t < NT; t++) {
            px[t] += STEP_BLOCKS * BLOCK;
            KEPT_PTR(px[t])
        }
    }
    COPIES_WAIT(0u)
    BARRIER;
    float* joined = (float*)units;
    UNROLL for (uint t = 0u; t < TILES; t++) {
        UNROLL for (uint c = 0u; c < NT; c++) {
            UNROLL for (uint e = 0u; e < 4u; e++) {
                const uint row = WARP * HIGH + t * 16u + e / 2u * 8u + LANE_ROW;
                joined[row * COUNT + c * 8u + 2u * LANE_QUAD + e % 2u] = acc[t][c][e] * POWER;
            }
        }
    }
    if (FORMAT == FP8_E4M3) {
        // A row with NaN in it gives NaN for every row of x.
        WARP_SYNC
        UNROLL for (uint r = 0u; r < 2u * TILES; r++) {
            if ((nan[r] & 0x80808080u) == 0u) continue;
            float* row = joined + (WARP * HIGH + r * 8u + LANE_ROW) * COUNT;
            for (uint c = 0u; c < COUNT; c++) row[c] = RLX_FLOAT(0x7fc00000u);
        }
    }
    BARRIER;
    for (uint i = THREAD; i < ROWS_HELD * share.rows; i += 256u) {
        const uint row = i % ROWS_HELD, column = i / ROWS_HELD, to = tile * ROWS_HELD + row;
        if (to >= n) continue;
        float sum = 0.0f;
        for (uint p = 0u; p < PARTS; p++) {
            const uint from = ((row / HIGH * PARTS + p) * HIGH + row % HIGH) * COUNT;
            UNROLL for (uint t = 0u; t < TERMS; t++) {
                const uint own = column * TERMS + t;
                float whole = 0.0f;
                const uint place = from + own / ACROSS * 8u + own % ACROSS;
                UNROLL for (uint g = 0u; g < (SPREAD ? 4u : GROUPS); g++) {
                    whole += joined[place + g * (SPREAD ? 2u : ACROSS)];
                }
                sum += t == 0u ? whole : whole * TERM;
            }
        }
        // A sum with infinity in it may be NaN because zeros or minimums are added up apart; with a leading one it may
        // be infinite though the row's is not.
        if (summed && IS_NAN(LEADING ? sum - sum : sum)) {
            sum = dot_of_terms(all_x, row_of(q, matrix + to, pitch), at, chunks, column * k);
        }
        store_sum(y, scales, share.first + column, n, to, sum);
    }
}
