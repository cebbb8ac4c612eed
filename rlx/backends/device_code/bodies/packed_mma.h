// y (m, n) = x times the transposed packed rows of q, for few rows of x, by matrix instructions: see packed.h and
// packed_pairs.h. CUDA alone: each thread makes the elements of a matrix that it holds, whose places Vulkan leaves
// open. A group takes steps of eight chunks for each of its PARTS, of which a row is a multiple, four of them on either
// side. x of a side goes through shared memory, placed as matrices take it. A subgroup takes TILES times 16 rows of q
// and the four chunks of its part. They are copied to shared memory 16 bytes at a time, STAGES sides ahead, and read so
// that a matrix holds one run of a chunk; scales multiply the sums of runs, zeros and minimums the sums of x, which are
// a product with ones. SCALES: the scales of a chunk, one or one for each run; IN_PAIRS: chunks 2 i and 2 i + 1 of a
// row share them. COLS: rows of x that a group multiplies, or with TERMS = 2 twice as many: x is then two halves for
// each f32, with a power of two in `scales` (see half_terms.h), and y is f32. T: the 16-bit type. GROUPED: see
// packed_experts.h; ALIGN is 16, and so is that of x. RESIDENT: groups that a multiprocessor holds.
#define MATRIX T
#include "packed.h"
#include "packed_dot.h"
#include "packed_experts.h"
#include "packed_pairs.h"
#define COUNT_8 8u
#define COUNT_16 16u
#define COUNT_32 32u
#define COUNT RLX_JOIN(COUNT_, COLS)
#define NT (COUNT / 8u)
#define PERIOD (IN_PAIRS ? 2u : 1u)  // neighbouring chunks that share scales
#define SLOTS (4u / PERIOD)
// Blocks of few chunks: scales of both sides are decoded at once, by each lane those of its two chunks. Else each lane
// decodes that of its chunk of a side, of every second row where two have the same.
#define AT_ONCE (SCALES == 1u && UNITS < 8u)
#define SLOTS_HELD (AT_ONCE ? 2u * SLOTS : SLOTS)
#define SCALED_ROWS (AT_ONCE || PERIOD == 1u ? 2u * TILES : TILES)
#define SCALED_CHUNKS (AT_ONCE && PERIOD == 1u ? 2u : 1u)
#define FOR_BOTH (UNITS >= 8u && FORMAT != Q6_K)  // the words of scales serve both sides
#define HIGH (16u * TILES)
#define ROWS_HELD (8u / PARTS * HIGH)
#define STEP (8u * PARTS)
#define HAS_SUMS (HAS_LOW || HAS_ZEROS)
// Where the nibbles of the second run have a scale of their own, they stay where they lie: 16 times as large.
#define LIFTED (RAW && FORMAT == Q4_K)
// Of x: two neighbouring runs of a row are a unit, of which each lane has 16 bytes. Threads read eight elements at a
// time.
#define PAIRS_OF_RUNS (2u * PARTS * RUNS)
#define X_UNITS (PAIRS_OF_RUNS * NT * 32u)
#define X_EIGHTS (8u * PARTS * RUNS)
#define X_EACH ((X_EIGHTS * COUNT + 255u) / 256u)
// Which run of four chunks the i-th 16 of their elements are.
#define RUN_AT(i)                                                    \
    (FORMAT == Q4_K || FORMAT == Q5_K ? ((i) / 4u * 2u + (i) % 2u) * 2u + (i) / 2u % 2u \
     : FORMAT == Q6_K ? (i) % 4u * 2u + (i) / 4u                     \
     : IS_TWO_BITS ? ((i) / 8u * 2u + (i) % 2u) * 4u + (i) / 2u % 4u \
                   : (i))
#define Q_UNITS (8u * HIGH * 4u)
#define H_UNITS (HIGH_WORDS ? 8u * HIGH * 2u : 0u)
#define STAGES 3u  // sides in shared memory, of which all but one are under way; an odd number
#define UNITS_HELD (2u * X_UNITS + STAGES * (Q_UNITS + 256u * X_EACH) + H_UNITS)
#define X_COPIED (2u * X_UNITS + STAGES * Q_UNITS + H_UNITS)  // where x lies as it was copied
#define UNITS_JOINED (8u * HIGH * COUNT / 4u)

SHARED_UNITS(UNITS_HELD > UNITS_JOINED ? UNITS_HELD : UNITS_JOINED)
SHARED float factors[8u * TILES * SCALES * 16u * SLOTS_HELD];  // of each subgroup: by tile, scale, row and chunk or two
SHARED float lows[HAS_LOW || HAS_ZEROS ? 8u * TILES * SCALES * 16u * SLOTS_HELD : 1u];  // minimums, or zeros
SHARED uint high_words[HIGH_WORD ? 8u * HIGH * 4u : 1u];

// The elements of x of a side: each thread places those that it has copied. Rows that are not there stay zeros.
#define COPY_OF_X(ring, i) units[X_COPIED + ((ring) % STAGES * X_EACH + (i)) * 256u + THREAD]
#define FETCH_X(ring, side)                                                                      \
    UNROLL for (uint i = 0u; i < X_EACH; i++) {                                                  \
        if (here[i]) rlx_copy_unit(&COPY_OF_X(ring, i), (const uint4*)from[i]);                  \
        from[i] += ((side) == 0u ? 4u : STEP - 4u) * 16u * RUNS;                                 \
    }
#define PLACE_X(ring, side)                                                                      \
    UNROLL for (uint i = 0u; i < X_EACH; i++) {                                                  \
        const uvec4 given = COPY_OF_X(ring, i);                                                  \
        const uvec2 a = PAIRED(given.x, given.y), b = PAIRED(given.z, given.w);                  \
        uvec2* to = (uvec2*)units + (side) * 2u * X_UNITS;                                       \
        if (i * 256u + THREAD >= X_EIGHTS * COUNT) break;                                        \
        to[x_to[i]] = a;                                                                         \
        to[x_to[i] ^ (IS_INT4 ? 1u : 2u)] = b;                                                   \
    }
// The lane's own chunk of the side from chunk `c` on, of all rows, and what belongs to it.
#define FETCH_Q(ring, c)                                                                         \
    UNROLL for (uint r = 0u; r < 2u * TILES; r++) {                                              \
        rlx_copy_unit(&units[q_to + (ring) % STAGES * Q_UNITS + r * 32u], (const uint4*)rows[r].words + ((c) + own)); \
    }
#define FETCH_HIGH(c)                                                                            \
    UNROLL for (uint r = 0u; r < 2u * TILES; r++) {                                              \
        const uint b = ((c) + own) / UNITS, u = ((c) + own) % UNITS;                             \
        if (HIGH_WORD) high[r].x = bytes_at(rows[r], high_at(at, b, u), 4u);                     \
        if (HIGH_WORDS && LANE_QUAD < 2u) high[r] = sixteen_at(rows[r], high_at(at, b, u));      \
    }
#define SCALED_CHUNK(c, v) ((c) + 8u * part + (AT_ONCE ? 2u * LANE_QUAD + (v) : LANE_QUAD))
#define FETCH_SCALES(c)                                                                          \
    UNROLL for (uint r = 0u; r < SCALED_ROWS; r++) {                                             \
        if (ONE_HALF) {                                                                          \
            words[r][0].x = bytes_at(scaled[r], (FORMAT == Q5_0 ? at.at2 : at.at1) + SCALED_CHUNK(c, 0u) * 2u, 4u); \
            continue;                                                                            \
        }                                                                                        \
        UNROLL for (uint v = 0u; v < SCALED_CHUNKS; v++) {                                       \
            words[r][v] = scale_words(scaled[r], at, SCALED_CHUNK(c, v) / UNITS, SCALED_CHUNK(c, v) % UNITS); \
        }                                                                                        \
    }

// Units of x whose parts would lie in the same banks change places.
#define SWIZZLE(unit) ((unit) % 2u + (unit) / 2u % 2u * 4u)
#define X_OF(v, c, i) ((v) % 2u == 0u ? xs[(v) / 2u][c].i : xs[(v) / 2u][c].X_SECOND_##i)
#define X_SECOND_x z
#define X_SECOND_y w

RLX_FN void packed_mma_body(PTR(T) x0, PTR(u32) q, PTR(i32) sizes, PTR(f32) scales, PTR(T) y, const uint m,
                            const uint n, const uint blocks, const uint pitch, const uint experts) {
    const uint k = blocks * BLOCK, tiles = (n + ROWS_HELD - 1u) / ROWS_HELD, chunks = blocks * UNITS;
    // Neighbouring groups read the same rows of q.
    const uint slots = shares_of(m, COUNT / TERMS, experts), tile = GROUP / slots;
    if (tile >= tiles) return;
    const Share share = share_of(sizes, GROUP % slots, m, COUNT / TERMS, experts);
    if (share.rows == 0u) return;
    const uint columns = share.rows * TERMS, part = WARP % PARTS;
    const uint first_row = tile * ROWS_HELD + WARP / PARTS * HIGH;
    const bool summed = share.expert < max_experts(experts);
    PTR(T) px = SKIP(T, x0, share.first * TERMS, k);
    const Planes at = planes_of(blocks);
    const uint matrix = summed ? share.expert * n : 0u;
    // A row that is not there is read as the last one, and not stored.
    Row rows[2u * TILES];
    UNROLL for (uint r = 0u; r < 2u * TILES; r++) {
        rows[r] = row_of(q, matrix + lesser(first_row + r * 8u + LANE_ROW, n - 1u), pitch);
        KEPT_PTR(rows[r].words)
    }
    const uint end = summed ? chunks : 0u, own = 8u * part + LANE_QUAD;
    // Where the lane's parts of shared memory begin.
    const uint mine = WARP * TILES * SCALES * 16u * SLOTS_HELD, row16 = LANE % 16u;
    const uint first_q = 2u * X_UNITS + WARP * HIGH * 4u;
    const uint first_high = 2u * X_UNITS + STAGES * Q_UNITS + WARP * HIGH * 2u;
    uint q_to = first_q + LANE_ROW * 4u + (LANE_QUAD ^ LANE_ROW / 2u), q_from[2];
    uint high_to = first_high + LANE_ROW * 2u + (LANE_QUAD % 2u ^ LANE_ROW / 4u);
    uint high_from = first_high + row16 * 2u + (LANE / 16u ^ row16 / 4u % 2u);
    uint factor_from = mine + LANE_ROW * SLOTS_HELD, factor_to = factor_from, x_from[4];
    if (AT_ONCE) {
        factor_to += SCALED_CHUNKS * LANE_QUAD;
    } else {
        factor_to += LANE_QUAD / PERIOD + (PERIOD == 2u ? LANE_QUAD % 2u * 8u * SLOTS_HELD : 0u);
    }
    UNROLL for (uint i = 0u; i < 4u; i++) {
        x_from[i] = part * (2u * RUNS * NT * 32u) + (LANE ^ SWIZZLE(part * 2u * RUNS + i));
        KEPT(x_from[i])
    }
    q_from[0] = first_q + row16 * 4u + (LANE / 16u ^ row16 / 2u % 4u);
    q_from[1] = first_q + row16 * 4u + ((2u + LANE / 16u) ^ row16 / 2u % 4u);
    KEPT(q_to)
    KEPT(q_from[0])
    KEPT(q_from[1])
    KEPT(factor_from)
    KEPT(factor_to)
    uint one[4];  // one in every place of a matrix, or minus the zero
    SET_ALL(one, LESS_ZERO ? MINUS_ZERO : ONES)
    const float zeros[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    float acc[TILES][NT][4];
    uint nan[2u * TILES];  // whether a byte of e4m3 was NaN, which has all bits set
    UNROLL for (uint t = 0u; t < TILES; t++) {
        nan[2u * t] = nan[2u * t + 1u] = 0u;
        UNROLL for (uint c = 0u; c < NT; c++) {
            UNROLL for (uint e = 0u; e < 4u; e++) acc[t][c][e] = 0.0f;
        }
    }
    uint first = 0u;
    bool here[X_EACH];
    PTR(T) from[X_EACH];
    uint x_to[X_EACH];
    UNROLL for (uint i = 0u; i < X_EACH; i++) {
        const uint piece = i * 256u + THREAD, column = piece / X_EIGHTS, eight = piece % (8u * RUNS);
        const uint run = IS_INT4 ? eight / 4u * 2u : RUN_AT(eight / 2u), quad = IS_INT4 ? eight % 4u : eight % 2u * 2u;
        const uint its_part = piece % X_EIGHTS / (8u * RUNS), unit = its_part * 2u * RUNS + run / 2u;
        here[i] = column < columns;
        from[i] = SKIP(T, px, lesser(column, columns - 1u), k) + (8u * its_part * 16u * RUNS + 8u * eight);
        x_to[i] = ((unit * NT + column / 8u) * 32u + ((column % 8u * 4u + quad) ^ SWIZZLE(unit))) * 2u + run % 2u;
        KEPT_PTR(from[i])
        UNROLL for (uint r = 0u; r < STAGES; r++) {
            if (!here[i]) COPY_OF_X(r, i) = PACKED4(0u, 0u, 0u, 0u);
        }
    }
    Row scaled[SCALED_ROWS];
    UNROLL for (uint i = 0u; i < SCALED_ROWS; i++) {
        scaled[i] = SCALED_ROWS == 2u * TILES ? rows[i] : LANE_QUAD % 2u == 0u ? rows[2u * i] : rows[2u * i + 1u];
        if (SCALED_ROWS == TILES) {
            KEPT_PTR(scaled[i].words)
        }
    }
    uvec4 words[SCALED_ROWS][SCALED_CHUNKS], high[2u * TILES];
    uint ring = 0u;
    UNROLL for (uint ahead = 0u; ahead + 1u < STAGES; ahead++) {
        if (first + ahead / 2u * STEP < end) {
            FETCH_Q(ahead, first + ahead / 2u * STEP + ahead % 2u * 4u)
            FETCH_X(ahead, ahead % 2u)
        }
        COPIES_END
    }
    if (first < end) {
        FETCH_SCALES(first)
        FETCH_HIGH(first)
        COPIES_WAIT(STAGES - 2u)
        PLACE_X(0u, 0u)
    }
    while (first < end) {
        const bool more = first + STEP < end;
        UNROLL for (uint side = 0u; side < 2u; side++) {
            BARRIER;
            UNROLL for (uint r = 0u; r < 2u * TILES; r++) {
                if (HIGH_WORD) high_words[(WARP * HIGH + r * 8u + LANE_ROW) * 4u + LANE_QUAD] = high[r].x;
                if (HIGH_WORDS && LANE_QUAD < 2u) units[high_to + r * 16u] = high[r];
            }
            UNROLL for (uint i = 0u; i < SCALED_ROWS; i++) {
                if (AT_ONCE && side == 1u) break;
                const uint row = SCALED_ROWS == TILES ? i * SCALES * 16u : i / 2u * SCALES * 16u + i % 2u * 8u;
                UNROLL for (uint v = 0u; v < SCALED_CHUNKS; v++) {
                    UNROLL for (uint s = 0u; s < SCALES; s++) {
                        if (ONE_HALF && v == 1u) words[i][1].x = words[i][0].x >> 16;
                        const uint u = SCALED_CHUNK(first + 4u * side, v) % UNITS;
                        const Scale made = scale_from(words[i][v], u, s);
                        const uint to = factor_to + (row + s * 16u) * SLOTS_HELD + v;
                        factors[to] = LIFTED && s == 1u ? made.s * 0.0625f : made.s;
                        if (HAS_LOW || HAS_ZEROS) lows[to] = HAS_LOW ? made.m : made.zero;
                    }
                }
            }
            const uint after = first + STAGES / 2u * STEP;  // whose side follows those under way
            if (after < end) {
                FETCH_Q(ring + STAGES - 1u, after + 4u * side)
                FETCH_X(ring + STAGES - 1u, side)
            }
            COPIES_END
            if (side == 0u) {
                if (AT_ONCE && more) FETCH_SCALES(first + STEP)
                if (!AT_ONCE && !FOR_BOTH) FETCH_SCALES(first + 4u)
                FETCH_HIGH(first + 4u)
            } else if (more) {
                if (!AT_ONCE) FETCH_SCALES(first + STEP)
                FETCH_HIGH(first + STEP)
            }
            WARP_SYNC
            const uint stage = ring % STAGES * Q_UNITS;
            Matrix quants[TILES], highs[TILES];
            if (HIGH_WORDS) {
                UNROLL for (uint t = 0u; t < TILES; t++) rlx_ldmatrix(highs[t].r, &units[high_from + t * 32u]);
            }
            UNROLL for (uint p = 0u; p < SLOTS; p++) {
                // Of two chunks at once.
                if (p * PERIOD % 2u == 0u) {
                    UNROLL for (uint t = 0u; t < TILES; t++) {
                        rlx_ldmatrix(quants[t].r, &units[q_from[p * PERIOD / 2u] + stage + t * 64u]);
                    }
                }
                float sums[SCALES][TILES][NT][4], all[SCALES][NT][4];
                // Zeros are taken from sums of which they are the start, so that all of x of a scale comes first.
                uvec4 xs[PERIOD * RUNS / 2u][NT];
                UNROLL for (uint v = 0u; v < PERIOD * RUNS; v++) {
                    const uint s = SCALES > 1u ? v % RUNS : 0u;
                    UNROLL for (uint c = 0u; c < NT; c++) {
                        if (v % 2u == 0u) {
                            const uint unit = (p * PERIOD * RUNS + v) / 2u;
                            xs[v / 2u][c] = units[x_from[unit % 4u] + side * X_UNITS + (unit * NT + c) * 32u];
                        }
                        if (!LESS_ZERO && !HAS_SUMS) continue;
                        const uint b[2] = {X_OF(v, c, x), X_OF(v, c, y)};
                        MULTIPLY_FROM(all[s][c], one, b, v == s ? zeros : all[s][c])
                    }
                }
                UNROLL for (uint v = 0u; v < PERIOD * RUNS; v++) {
                    const uint j = p * PERIOD + v / RUNS, run = v % RUNS, s = SCALES > 1u ? run : 0u;
                    const uint u = (4u * side + j) % UNITS;
                    UNROLL for (uint t = 0u; t < TILES; t++) {
                        uint a[4];
                        UNROLL for (uint r = 0u; r < 2u; r++) {
                            const uint word = quants[t].r[j % 2u * 2u + r];
                            uvec2 made;
                            if (LIFTED) {
                                const uint mask = 0x000f000fu << (4u * run);
                                made = make_uint2(word & mask, word >> 8 & mask);
                            } else {
                                uint h = 0u;
                                if (HIGH_WORD) h = high_words[(WARP * HIGH + t * 16u + r * 8u + LANE_ROW) * 4u + j];
                                if (HIGH_WORDS) h = highs[t].r[j % 2u * 2u + r];
                                const uint bytes = bytes_of(word, h, u, run, IS_INT4 ? run : LANE_QUAD);
                                if (FORMAT == FP8_E4M3) nan[2u * t + r] |= (bytes & 0x7f7f7f7fu) + 0x01010101u;
                                made = PAIRS_OF(bytes, HAS_ZEROS ? 0.0f : zero_of());
                            }
                            a[r] = made.x;
                            a[r + 2u] = made.y;
                        }
                        UNROLL for (uint c = 0u; c < NT; c++) {
                            const uint b[2] = {X_OF(v, c, x), X_OF(v, c, y)};
                            MULTIPLY_FROM(sums[s][t][c], a, b, v != s ? sums[s][t][c] : LESS_ZERO ? all[s][c] : zeros)
                        }
                    }
                }
                UNROLL for (uint s = 0u; s < SCALES; s++) {
                    UNROLL for (uint t = 0u; t < TILES; t++) {
                        UNROLL for (uint r = 0u; r < 2u; r++) {
                            const uint slot = p + (AT_ONCE ? side * SLOTS : 0u);
                            const uint from = factor_from + ((t * SCALES + s) * 16u + r * 8u) * SLOTS_HELD + slot;
                            const float by = factors[from], low = HAS_LOW || HAS_ZEROS ? lows[from] : 0.0f;
                            UNROLL for (uint c = 0u; c < NT; c++) {
                                UNROLL for (uint e = 0u; e < 2u; e++) {
                                    float sum = sums[s][t][c][2u * r + e];
                                    if (HAS_ZEROS) sum = FMA(-low, all[s][c][e], sum);
                                    float whole = FMA(by, sum, acc[t][c][2u * r + e]);
                                    if (HAS_LOW) whole = FMA(low, all[s][c][e], whole);
                                    acc[t][c][2u * r + e] = whole;
                                }
                            }
                        }
                    }
                }
            }
            ring++;
            if (side == 0u || more) {
                COPIES_WAIT(STAGES - 2u)
                PLACE_X(ring, 1u - side)
            }
        }
        first += STEP;
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
            const uint from = ((row / HIGH * PARTS + p) * HIGH + row % HIGH) * COUNT + column * TERMS;
            sum += joined[from];
            if (TERMS == 2u) sum += joined[from + 1u] * TERM;
        }
        // A sum with infinity in it may be NaN because zeros or minimums are added up apart.
        if (summed && IS_NAN(sum)) sum = dot_of_terms(px, row_of(q, matrix + to, pitch), at, chunks, column * k);
        store_sum(y, scales, share.first + column, n, to, sum);
    }
}
