// y (m, n) = x times the transposed packed rows of q, for one row of x a workgroup, by multiply-adds, and what stands around
// it: see packed_around.h. 32 threads share four rows of q and take every 32nd chunk of them; the next chunks are under way
// meanwhile. The row of x lies in shared memory, SLAB chunks of it at a time, a multiple of 32, placed for quants that stay
// as they lie in their words: see packed_lifted.h.
#define ROWS 4u
#define PARTS 1u
#define PLACE(i) (i)
#include "packed_around.h"

SHARED float thread_squares[256];
SHARED float joined_squares[32];

// Chunk c of each row, and the words of its scales.
#define FETCH(c)                                                                                    \
    UNROLL for (uint r = 0u; r < ROWS; r++) {                                                       \
        next[r] = chunk_of(rows[r], at, (c) / UNITS, (c) % UNITS);                                  \
        next_words[r] = scale_words(rows[r], at, (c) / UNITS, (c) % UNITS);                         \
    }

RLX_FN void packed_vector_body(PTR(T) x, PTR(f32) gamma, PTR(u32) q, PTR(f32) bias, PTR(T) y, const uint m,
                               const uint n, const uint blocks, const uint pitch, const float eps) {
    const uint k = blocks * BLOCK, chunks = blocks * UNITS;
    const uint lane = THREAD % 32u, start = GROUP / m * ROWS_HELD, first = start + THREAD / 32u * MADE;
    if (start >= n) return;
    fill_table();
    PTR(T) px = SKIP(T, x, GROUP % m, k);
    const Planes at = planes_of(blocks);
    Row rows[ROWS];
    Chunk next[ROWS];
    uvec4 next_words[ROWS];
    float acc[ROWS];
    uint special[ROWS];
    UNROLL for (uint r = 0u; r < ROWS; r++) {
        const uint of = first + r % MADE;
        rows[r] = row_of(q, (of < n ? of : n - 1u) + (GATED && r >= MADE ? n : 0u), pitch);
        acc[r] = 0.0f;
        special[r] = 0u;
    }
    FETCH(lane < chunks ? lane : chunks - 1u)
    float squares = 0.0f;
    for (uint slab = 0u; slab < chunks; slab += SLAB) {
        // Chunks that are not there have zeros.
        for (uint i = THREAD; i < SLAB; i += 256u) {
            const uint from = slab + i;
            vec4 v[RUNS * 4u];
            float size = 0.0f;
            UNROLL for (uint run = 0u; run < RUNS; run++) {
                float sum = 0.0f;
                UNROLL for (uint w = 0u; w < 4u; w++) {
                    vec4 four = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
                    if (from < chunks) {
                        const uint e = element_of(from / UNITS, from % UNITS, run) / 4u + w;
                        four = LOAD4(T, px, e);
                        if (NORMED) {
                            squares = squares_of(four, squares);
                            four = times_four(four, LOAD4(f32, gamma, e));
                        }
                    }
                    v[run * 4u + w] = four;
                    sum += (four.x + four.y) + (four.z + four.w);
                    if (!NARROW) size += (RLX_ABS(four.x) + RLX_ABS(four.y)) + (RLX_ABS(four.z) + RLX_ABS(four.w));
                }
                given_sums[run * SLAB + i] = sum * ALL_DOWN;
            }
            const uint kept = exponent_kept(size);
            if (!NARROW) given_back[i] = back_of(kept);
            UNROLL for (uint run = 0u; run < RUNS; run++) {
                UNROLL for (uint w = 0u; w < 4u; w++) {
                    given[(run * 4u + w) * SLAB + i] = placed_four(v[run * 4u + w], scale_of_x(kept), run);
                }
            }
        }
        BARRIER;
        const uint count = chunks - slab < SLAB ? chunks - slab : SLAB;
        for (uint i = lane; i < (count + 31u) / 32u * 32u; i += 32u) {
            Chunk held[ROWS];
            uvec4 words[ROWS];
            const uint c = slab + i < chunks ? slab + i : chunks - 1u, u = c % UNITS;
            const uint after = slab + i + 32u < chunks ? slab + i + 32u : chunks - 1u;
            UNROLL for (uint r = 0u; r < ROWS; r++) {
                held[r] = next[r];
                words[r] = next_words[r];
                next[r] = chunk_of(rows[r], at, after / UNITS, after % UNITS);
                next_words[r] = scale_words(rows[r], at, after / UNITS, after % UNITS);
            }
            const float back = back_at(i);
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
                const float all = given_sums[run * SLAB + i];
                UNROLL for (uint r = 0u; r < ROWS; r++) {
                    acc[r] = with_scale(acc[r], scale_from(words[r], u, run), sums[r] * back, all);
                }
            }
        }
        if (slab + SLAB < chunks) BARRIER;
    }
    UNROLL for (uint r = 0u; r < ROWS; r++) parts[r * 256u + THREAD] = part_made(acc[r], special[r]);
    if (NORMED) thread_squares[THREAD] = squares;
    BARRIER;
    join_parts();
    if (NORMED && THREAD < 32u) {
        float sum = 0.0f;
        UNROLL for (uint j = 0u; j < 8u; j++) sum += thread_squares[j * 32u + THREAD];
        joined_squares[THREAD] = sum;
    }
    BARRIER;
    if (THREAD >= ROWS_HELD) return;
    float down = 1.0f, inverse = 1.0f;
    if (NORMED) {
        float total = 0.0f;
        for (uint j = 0u; j < 32u; j++) total += joined_squares[j];
        if (!(total < INFINITE)) {  // so rare that each row may be computed by one thread
            down = LESS;
            total = 0.0f;
            for (uint i = 0u; i < k / 4u; i++) total = squares_of(scaled_four(LOAD4(T, px, i), down), total);
        }
        inverse = inverse_of(total, k, eps, down);
    }
    put_rows(y, px, gamma, q, bias, start, n, GROUP % m * n, pitch, at, chunks, down, inverse, down != 1.0f);
}
