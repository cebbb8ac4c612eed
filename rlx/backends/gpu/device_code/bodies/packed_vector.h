// y (m, n) = x times the transposed packed rows of q, for one row of x a workgroup, by multiply-adds, and what stands around
// it: see packed_around.h. PARTS of the eight warps share four rows of q and take their chunks by turns; the next chunks
// are under way meanwhile, also those of the rows that a workgroup takes next, `step` tiles further on. The row of x lies in
// shared memory, SLAB chunks of it at a time, a multiple of 32 PARTS, placed for quants that stay as they lie in their
// words: see packed_lifted.h.
#define ROWS 4u
#define PLACE(i) (i)
#include "packed_around.h"
#define WIDTH (32u * PARTS)  // chunks of a step

// Chunk c of each row, and the words of its scales.
#define FETCH(c)                                                                                    \
    UNROLL for (uint r = 0u; r < ROWS; r++) {                                                       \
        Row of = ROW_AIMED(rows[r]);                                                                \
        next[r] = chunk_of(of, at, (c) / UNITS, (c) % UNITS);                                       \
        next_words[r] = scale_words(of, at, (c) / UNITS, (c) % UNITS);                              \
    }

RLX_FN void packed_vector_body(PTR(T) x, PTR(f32) gamma, PTR(u32) q, PTR(f32) bias, PTR(T) y, const uint m,
                               const uint n, const uint blocks, const uint pitch, const uint step, const float eps) {
    const uint k = blocks * BLOCK, chunks = blocks * UNITS, tiles = (n + ROWS_HELD - 1u) / ROWS_HELD;
    const uint team = THREAD / WIDTH, lane = THREAD % WIDTH, begin = lane < chunks ? lane : chunks - 1u;
    uint tile = GROUP / m;
    if (tile >= tiles) return;
    fill_table();
    PTR(T) px = SKIP(T, x, GROUP % m, k);
    const Planes at = planes_of(blocks);
    Aim rows[ROWS];
    Chunk next[ROWS];
    uvec4 next_words[ROWS];
    AIM(tile)
    FETCH(begin)
    float down = 1.0f, inverse = 1.0f;
    bool placed = false;
    while (tile < tiles) {
        float acc[ROWS];
        uint special[ROWS];
        float squares = 0.0f;
        UNROLL for (uint r = 0u; r < ROWS; r++) {
            acc[r] = 0.0f;
            special[r] = 0u;
        }
        for (uint slab = 0u; slab < chunks; slab += SLAB) {
            if (!placed || chunks > SLAB) {
                squares = placed_x(px, gamma, slab, chunks, down, squares);
                BARRIER;
            }
            const uint count = chunks - slab < SLAB ? chunks - slab : SLAB;
            for (uint i = lane; i < count; i += WIDTH) {
                Chunk held[ROWS];
                uvec4 words[ROWS];
                const uint u = (slab + i) % UNITS, after = slab + i + WIDTH < chunks ? slab + i + WIDTH : chunks - 1u;
                UNROLL for (uint r = 0u; r < ROWS; r++) {
                    held[r] = next[r];
                    words[r] = next_words[r];
                }
                FETCH(after)
                UNROLL for (uint run = 0u; run < RUNS; run++) {
                    float sums[ROWS];
                    UNROLL for (uint r = 0u; r < ROWS; r++) sums[r] = 0.0f;
                    UNROLL for (uint w = 0u; w < 4u; w++) {
                        const vec4 a = given[(run * 4u + w) * SLAB + i];
                        UNROLL for (uint r = 0u; r < ROWS; r++) {
                            const uint bits = NIBBLES ? WORD_OF(held[r].q, w) : quad_of(held[r], u, run, w);
                            if (IS_FP8) special[r] |= special_bits(bits);
                            const vec4 v = lifted_four(bits, run, MAGIC(n));
                            sums[r] = FMA(a.x, v.x, sums[r]);
                            sums[r] = FMA(a.y, v.y, sums[r]);
                            sums[r] = FMA(a.z, v.z, sums[r]);
                            sums[r] = FMA(a.w, v.w, sums[r]);
                        }
                    }
                    const float all = given_sums[run * SLAB + i], back = back_at(run * SLAB + i);
                    UNROLL for (uint r = 0u; r < ROWS; r++) {
                        acc[r] = with_scale(acc[r], scale_from(words[r], u, run), sums[r] * back, all);
                    }
                }
            }
            if (chunks > SLAB) BARRIER;
        }
        const uint own = tile;
        if (NORMED && !placed) {
            const float total = row_sum(squares);
            if (!(total < INFINITE) && down == 1.0f) {
                down = LESS;
                FETCH(begin)
                continue;
            }
            inverse = inverse_of(total, k, eps, down);
        }
        placed = true;
        tile += step;
        if (tile < tiles) {
            AIM(tile)
            FETCH(begin)
        }
        UNROLL for (uint r = 0u; r < ROWS; r++) parts[r * 256u + THREAD] = part_made(acc[r], special[r]);
        BARRIER;
        join_parts();
        BARRIER;
        put_rows(y, px, gamma, q, bias, own * ROWS_HELD, n, GROUP % m * n, pitch, at, chunks, down, inverse);
    }
}
