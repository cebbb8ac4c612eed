// y (m, n) = x times the transposed packed rows of q, for one row of x a workgroup, by multiply-adds, and what stands around
// it: see packed_around.h. PARTS of the eight warps share HIGH rows of q, of which each lane takes two neighbouring chunks
// in a step; the chunks of the next step are asked for as soon as those of this one are used, also before a workgroup takes
// its next rows, `step` tiles further on. The row of x lies in shared memory, SLAB chunks of it at a time, a multiple of 64
// PARTS, placed for quants that stay as they lie in their words: see packed_lifted.h. Zeros and minimums are multiplied by
// the sum of x. EARLY: no kernel of the program writes q, which may so be read before the kernel before has ended.
#include "begin.h"
#define COUNT_2 2u
#define COUNT_4 4u
#define ROWS RLX_JOIN(COUNT_, HIGH)
#define PLACE(i) ((i) % 2u * (SLAB / 2u) + (i) / 2u)
#include "packed_around.h"
#ifdef RLX_GLSL
// spirv-opt unrolls no loop around one whose length it does not know; what such a loop indexes would stay in memory.
#define OUTER_RUNS RUNS
#define INNER_RUNS 1u
#else
#define OUTER_RUNS 1u
#define INNER_RUNS RUNS
#endif
#define WIDE (64u * PARTS)
// Whether two neighbouring chunks have the same words of scales, and the same scales.
#define SAME_WORDS (UNITS % 2u == 0u)
#define SAME_SCALES (SAME_WORDS && FORMAT != Q2_K && FORMAT != Q3_K && FORMAT != Q6_K && FORMAT != IQ4_XS)
// Chunks c and c + 1 of each row, of those that are there, and the words of their scales.
#define FETCH(c)                                                                                    \
    UNROLL for (uint p = 0u; p < 2u; p++) {                                                         \
        const uint from = (c) + p < chunks ? (c) + p : chunks - 1u;                                 \
        UNROLL for (uint r = 0u; r < ROWS; r++) {                                                   \
            Row of = ROW_AIMED(rows[r]);                                                            \
            held[p * ROWS + r] = chunk_of(of, at, from / UNITS, from % UNITS);                      \
            if (p == 0u) {                                                                          \
                words[r] = scale_words(of, at, from / UNITS, from % UNITS);                         \
            } else if (!SAME_WORDS) {                                                               \
                others[r] = scale_words(of, at, from / UNITS, from % UNITS);                        \
            }                                                                                       \
        }                                                                                           \
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
            if (!placed || chunks > SLAB) {
                squares = placed_x(px, gamma, slab, chunks, down, squares);
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
                        const float back0 = back_at(to), back1 = back_at(to + SLAB / 2u);
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
                down = LESS;
                FETCH(part * 64u + 2u * lane)
                continue;
            }
            inverse = inverse_of(total, k, eps, down);
        }
        placed = true;
        if (next < tiles) {
            AIM(next)
            FETCH(part * 64u + 2u * lane)
        }
        UNROLL for (uint r = 0u; r < ROWS; r++) parts[r * 256u + THREAD] = part_made(acc[r], special[r]);
        BARRIER;
        join_parts();
        BARRIER;
        put_rows(y, px, gamma, q, bias, first_row, n, GROUP % m * n, pitch, at, chunks, down, inverse, false);
        tile = next;
    }
}
