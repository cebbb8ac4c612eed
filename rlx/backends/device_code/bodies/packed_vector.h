// y (m, n) = x times the transposed packed rows of q, for one row of x a workgroup, by multiply-adds: see packed.h. 32
// threads share four rows of q and take every 32nd chunk of them; the next chunks are under way meanwhile. The row of x
// lies in shared memory, SLAB chunks of it at a time, a multiple of 32, placed for quants that stay as they lie in
// their words: see packed_lifted.h. Zeros and minimums are multiplied by the sum of x. IN_CHUNKS holds, and x may be
// read four at a time.
#define TABLED
#include "packed.h"
#include "packed_dot.h"
#include "packed_lifted.h"
#define HIGH 4u
#define ROWS_HELD 32u
#define LIST (8u * HIGH)

SHARED vec4 given[RUNS * 4u * SLAB];
SHARED float given_sums[RUNS * SLAB];
SHARED float given_back[SLAB];
SHARED float parts[256u * HIGH];
SHARED float joined[256u];

RLX_FN void packed_vector_body(PTR(T) x, PTR(u32) q, PTR(T) y, const uint m, const uint n, const uint blocks,
                               const uint pitch) {
    const uint k = blocks * BLOCK, chunks = blocks * UNITS;
    const uint lane = THREAD % 32u, start = GROUP / m * ROWS_HELD, first = start + THREAD / 32u * HIGH;
    if (start >= n) return;
    fill_table();
    PTR(T) px = SKIP(T, x, GROUP % m, k);
    const Planes at = planes_of(blocks);
    Row rows[HIGH];
    float acc[HIGH];
    uint special[HIGH];
    Chunk next[HIGH];
    uvec4 next_words[HIGH];
    const uint c0 = lane < chunks ? lane : chunks - 1u;
    UNROLL for (uint r = 0u; r < HIGH; r++) {
        rows[r] = row_of(q, first + r < n ? first + r : n - 1u, pitch);
        next[r] = chunk_of(rows[r], at, c0 / UNITS, c0 % UNITS);
        next_words[r] = scale_words(rows[r], at, c0 / UNITS, c0 % UNITS);
        acc[r] = 0.0f;
        special[r] = 0u;
    }
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
                    if (from < chunks) four = LOAD4(T, px, element_of(from / UNITS, from % UNITS, run) / 4u + w);
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
            Chunk held[HIGH];
            uvec4 words[HIGH];
            const uint c = slab + i < chunks ? slab + i : chunks - 1u, u = c % UNITS;
            const uint after = slab + i + 32u < chunks ? slab + i + 32u : chunks - 1u;
            UNROLL for (uint r = 0u; r < HIGH; r++) {
                held[r] = next[r];
                words[r] = next_words[r];
                next[r] = chunk_of(rows[r], at, after / UNITS, after % UNITS);
                next_words[r] = scale_words(rows[r], at, after / UNITS, after % UNITS);
            }
            const float back = NARROW ? 1.0f : given_back[i];
            UNROLL for (uint run = 0u; run < RUNS; run++) {
                float sums[HIGH];
                UNROLL for (uint r = 0u; r < HIGH; r++) sums[r] = 0.0f;
                UNROLL for (uint w = 0u; w < 4u; w++) {
                    const vec4 a = given[(run * 4u + w) * SLAB + i];
                    UNROLL for (uint r = 0u; r < HIGH; r++) {
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
                UNROLL for (uint r = 0u; r < HIGH; r++) {
                    const Scale s = scale_from(words[r], u, run);
                    const float sum = NARROW ? sums[r] : sums[r] * power_left() * back;
                    if (HAS_LOW) {
                        acc[r] = FMA(s.s, sum, FMA(s.m, all, acc[r]));
                    } else {
                        acc[r] = FMA(s.s, FMA(-s.zero, all, sum), acc[r]);
                    }
                }
            }
        }
        if (slab + SLAB < chunks) BARRIER;
    }
    UNROLL for (uint r = 0u; r < HIGH; r++) {
        const bool odd = IS_FP8 && (special[r] & 0x80808080u) != 0u;
        parts[r * 256u + THREAD] = odd ? RLX_FLOAT(0x7fc00000u) : acc[r] * ALL_BACK;
    }
    BARRIER;
    // Eight threads for each row.
    const uint own = THREAD / 8u % HIGH * 256u + THREAD / LIST * 32u + THREAD % 8u;
    joined[THREAD] = (parts[own] + parts[own + 8u]) + (parts[own + 16u] + parts[own + 24u]);
    BARRIER;
    const uint to = start + THREAD;
    if (THREAD < ROWS_HELD && to < n) {
        float sum = 0.0f;
        UNROLL for (uint j = 0u; j < 8u; j++) sum += joined[THREAD * 8u + j];
        // A sum with infinity in it may be NaN because zeros and minimums are added up apart.
        if (IS_NAN(sum)) sum = dot_of(px, row_of(q, to, pitch), at, chunks, 0u);
        STORE(T, y, GROUP % m * n + to, sum);
    }
}
