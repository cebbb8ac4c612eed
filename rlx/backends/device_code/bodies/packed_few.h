// y (m, n) = x times the transposed packed rows of q, for four rows of x a workgroup, by multiply-adds: see packed.h.
// ACROSS threads share rows of q, four rows for each thread, and take every so many chunks of them. Four rows of x go
// through shared memory, placed for quants that stay as they lie in their words: see packed_lifted.h. IN_CHUNKS holds, and
// x may be read four at a time.
#define TABLED
#include "packed.h"
#include "packed_dot.h"
#include "packed_lifted.h"
#define HIGH 4u
#define MANY 4u
#define NEXT_TO (256u / ACROSS)  // rows of q beside each other in a workgroup
#define ROWS_HELD (NEXT_TO * HIGH)
#define PLACE(j, run, w) ((((j) * RUNS + (run)) * 4u + (w)) * ACROSS)

SHARED vec4 given[MANY * RUNS * 4u * ACROSS];
SHARED float given_sums[MANY * RUNS * ACROSS];
SHARED float given_back[MANY * ACROSS];
SHARED float parts[MANY * 256u];
SHARED float joined[16u * NEXT_TO * MANY];

RLX_FN void packed_few_body(PTR(T) x, PTR(u32) q, PTR(T) y, const uint m, const uint n, const uint blocks,
                            const uint pitch) {
    const uint k = blocks * BLOCK, chunks = blocks * UNITS, shares = (m + MANY - 1u) / MANY;
    const uint lane = THREAD % ACROSS, beside = THREAD / ACROSS;
    // Neighbouring groups read the same rows of q.
    const uint start = GROUP / shares * ROWS_HELD, first_x = GROUP % shares * MANY;
    if (start >= n) return;
    fill_table();
    const uint rows_x = m - first_x < MANY ? m - first_x : MANY;
    PTR(T) px = SKIP(T, x, first_x, k);
    const Planes at = planes_of(blocks);
    Row rows[HIGH];
    float acc[HIGH * MANY];
    uint special[HIGH];
    UNROLL for (uint r = 0u; r < HIGH; r++) {
        const uint own = start + r * NEXT_TO + beside;
        rows[r] = row_of(q, own < n ? own : n - 1u, pitch);
        UNROLL for (uint j = 0u; j < MANY; j++) acc[r * MANY + j] = 0.0f;
        special[r] = 0u;
    }
    for (uint slab = 0u; slab < chunks; slab += ACROSS) {
        // A chunk that is not there is read as the last one, and its elements of x are zeros.
        const uint c = slab + lane < chunks ? slab + lane : chunks - 1u, b = c / UNITS, u = c % UNITS;
        Chunk held[HIGH];
        uvec4 words[HIGH];
        UNROLL for (uint r = 0u; r < HIGH; r++) {
            held[r] = chunk_of(rows[r], at, b, u);
            words[r] = scale_words(rows[r], at, b, u);
        }
        for (uint i = THREAD; i < MANY * ACROSS; i += 256u) {
            const uint j = i / ACROSS, own = i % ACROSS, from = slab + own;
            const bool there = from < chunks && j < rows_x;
            vec4 v[RUNS * 4u];
            float size = 0.0f;
            UNROLL for (uint run = 0u; run < RUNS; run++) {
                float sum = 0.0f;
                UNROLL for (uint w = 0u; w < 4u; w++) {
                    vec4 four = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
                    if (there) four = LOAD4(T, px, (j * k + element_of(from / UNITS, from % UNITS, run)) / 4u + w);
                    v[run * 4u + w] = four;
                    sum += (four.x + four.y) + (four.z + four.w);
                    if (!NARROW) size += (RLX_ABS(four.x) + RLX_ABS(four.y)) + (RLX_ABS(four.z) + RLX_ABS(four.w));
                }
                given_sums[(j * RUNS + run) * ACROSS + own] = sum * ALL_DOWN;
            }
            const uint kept = exponent_kept(size);
            if (!NARROW) given_back[i] = back_of(kept);
            UNROLL for (uint run = 0u; run < RUNS; run++) {
                UNROLL for (uint w = 0u; w < 4u; w++) {
                    given[PLACE(j, run, w) + own] = placed_four(v[run * 4u + w], scale_of_x(kept), run);
                }
            }
        }
        BARRIER;
        UNROLL for (uint run = 0u; run < RUNS; run++) {
            float sums[HIGH * MANY];
            UNROLL for (uint i = 0u; i < HIGH * MANY; i++) sums[i] = 0.0f;
            UNROLL for (uint w = 0u; w < 4u; w++) {
                vec4 a[MANY];
                UNROLL for (uint j = 0u; j < MANY; j++) a[j] = given[PLACE(j, run, w) + lane];
                UNROLL for (uint r = 0u; r < HIGH; r++) {
                    const uint bits = NIBBLES ? WORD_OF(held[r].q, w) : quad_of(held[r], u, run, w);
                    if (IS_FP8) special[r] |= special_bits(bits);
                    const vec4 v = lifted_four(bits, run, MAGIC(n));
                    UNROLL for (uint j = 0u; j < MANY; j++) {
                        sums[r * MANY + j] = FMA(a[j].x, v.x, sums[r * MANY + j]);
                        sums[r * MANY + j] = FMA(a[j].y, v.y, sums[r * MANY + j]);
                        sums[r * MANY + j] = FMA(a[j].z, v.z, sums[r * MANY + j]);
                        sums[r * MANY + j] = FMA(a[j].w, v.w, sums[r * MANY + j]);
                    }
                }
            }
            UNROLL for (uint r = 0u; r < HIGH; r++) {
                const Scale s = scale_from(words[r], u, run);
                UNROLL for (uint j = 0u; j < MANY; j++) {
                    const float all = given_sums[(j * RUNS + run) * ACROSS + lane];
                    float sum = sums[r * MANY + j];
                    if (!NARROW) sum = sum * power_left() * given_back[j * ACROSS + lane];
                    if (HAS_LOW) {
                        acc[r * MANY + j] = FMA(s.s, sum, FMA(s.m, all, acc[r * MANY + j]));
                    } else {
                        acc[r * MANY + j] = FMA(s.s, FMA(-s.zero, all, sum), acc[r * MANY + j]);
                    }
                }
            }
        }
        BARRIER;
    }
    UNROLL for (uint r = 0u; r < HIGH; r++) {
        UNROLL for (uint j = 0u; j < MANY; j++) {
            const bool odd = IS_FP8 && (special[r] & 0x80808080u) != 0u;
            parts[j * 256u + THREAD] = odd ? RLX_FLOAT(0x7fc00000u) : acc[r * MANY + j] * ALL_BACK;
        }
        BARRIER;
        for (uint i = THREAD / 16u; i < NEXT_TO * MANY; i += 16u) {
            float sum = 0.0f;
            for (uint c = THREAD % 16u; c < ACROSS; c += 16u) sum += parts[i / NEXT_TO * 256u + i % NEXT_TO * ACROSS + c];
            joined[i * 16u + THREAD % 16u] = sum;
        }
        BARRIER;
        for (uint i = THREAD; i < NEXT_TO * MANY; i += 256u) {
            const uint j = i / NEXT_TO, to = start + r * NEXT_TO + i % NEXT_TO;
            if (to < n && j < rows_x) {
                float sum = 0.0f;
                for (uint c = 0u; c < 16u; c++) sum += joined[i * 16u + c];
                // A sum with infinity in it may be NaN because zeros and minimums are added up apart.
                if (IS_NAN(sum)) sum = dot_of(px, row_of(q, to, pitch), at, chunks, j * k);
                STORE(T, y, (first_x + j) * n + to, sum);
            }
        }
        BARRIER;
    }
}
