// C = act(A op(B) + bias) for few rows: a workgroup computes ROWS rows, and B is read once for each block of ROWS rows
// of A. B_TRANSPOSED says how B is stored, ACTIVATION and BIAS are those of activation.h and bias.h. With A_QUADS, A is
// read four elements at a time; with B_UNITS, B is read 16 bytes (a unit) at a time.
//
// A site is the group of columns of C that one thread accumulates: four, or eight where a unit of B has eight of them.
// A workgroup has SITES sites side by side, and 256 / SITES threads split the sum over k of each site: in a step, a
// thread takes one unit of k where B is transposed, else four rows of B. Their sums are added up at the end, in two
// rounds. A thread has the loads of SETS steps outstanding. With one row, the loads of A are among them. With more
// rows, a step's part of A goes through shared memory, which has two such parts, so that one barrier a step is enough.
#include "pair.h"
#define MANY_1 1u
#define MANY_4 4u
#define MANY_8 8u
#define MANY_16 16u
#define MANY RLX_JOIN(MANY_, ROWS)
#define PER RLX_JOIN(PER_, TB)  // elements of a unit of B
#define HALF_QUADS (PER / 4u)   // quads of a unit
#define QUADS (B_TRANSPOSED ? 1u : HALF_QUADS)  // of a site
#define LENGTH (B_TRANSPOSED ? PER : 4u)        // terms of the sum that a thread takes in a step
#define SHARERS (256u / SITES)
#define SPAN (SHARERS * LENGTH / 4u)  // quads of a row of A in a step
#ifdef RLX_GLSL
#define MOST_SETS (MANY == 4u ? 3u : 2u)  // steps whose units wait in registers
#define SETS (AHEAD < MOST_SETS ? AHEAD : MOST_SETS)
#define DISTANCE SETS  // in steps, of the loads of B; and of A's where it has one row
#define DISTANCE_A SETS
#else
#define MOST_SETS 1u
#define SETS 1u
#define DISTANCE AHEAD
#define DISTANCE_A 1u
#endif
#define COLUMNS (4u * QUADS * SITES)
#define TOGETHER (MANY < 4u ? MANY : 4u)
#define SEGMENTS (16u * TOGETHER * SITES > 256u ? 256u / (TOGETHER * SITES) : 16u)
#define STAGED (MANY > 1u ? 2u * MANY * SPAN : 0u)
#include "activation.h"
#include "bias.h"
#include "quads.h"
#include "stream.h"
#include "units.h"
#include "matmul_ahead.h"

#ifdef RLX_GLSL
#define UNIT(slot, j) w[(slot) * 4u + (j)]
#define AT_UNIT(slot, j) 0u
#else
UNITS(AHEAD * 1024u)
#define AT_UNIT(slot, j) (((slot) * 4u + (j)) * 256u + THREAD)
#define UNIT(slot, j) units[AT_UNIT(slot, j)]
#endif

SHARED vec4 part[STAGED > 256u * TOGETHER ? STAGED : 256u * TOGETHER];  // two steps' parts of A; at the end, sums
SHARED vec4 sums[MANY * QUADS * SITES];

RLX_FN vec4 plus_quad(const vec4 a, const vec4 b) { return VEC4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
RLX_QUAD(quad_a, TA, A_QUADS)
#define UNIT_AT RLX_JOIN(unit_, TB)
// The first four values of a unit, and the last four.
#define LOWER RLX_JOIN(LOWER_, TB)
#define UPPER RLX_JOIN(UPPER_, TB)

// acc += s.x * v[0] + s.y * v[1] + s.z * v[2] + s.w * v[3], and v with rows and columns exchanged.
#ifdef RLX_GLSL
#define FMA_QUADS(acc, s, v) \
    acc = fma(vec4((s).w), v[3], fma(vec4((s).z), v[2], fma(vec4((s).y), v[1], fma(vec4((s).x), v[0], acc))));
#else
#define FMA_QUADS(acc, s, v)    \
    FMA_ROW(acc, (s).x, (v[0])) \
    FMA_ROW(acc, (s).y, (v[1])) \
    FMA_ROW(acc, (s).z, (v[2])) \
    FMA_ROW(acc, (s).w, (v[3]))
#endif
#define TRANSPOSE(v)                                                \
    {                                                               \
        const vec4 v0 = v[0], v1 = v[1], v2 = v[2], v3 = v[3];      \
        v[0] = VEC4(v0.x, v1.x, v2.x, v3.x);                        \
        v[1] = VEC4(v0.y, v1.y, v2.y, v3.y);                        \
        v[2] = VEC4(v0.z, v1.z, v2.z, v3.z);                        \
        v[3] = VEC4(v0.w, v1.w, v2.w, v3.w);                        \
    }

// The index in `part` of the sums of thread `sharer` of a site. Adjacent threads write, or read, adjacent elements.
RLX_FN uint place(const uint site, const uint sharer) {
    return B_TRANSPOSED ? site * SHARERS + sharer : sharer * SITES + site;
}

// Adds up the sums that the threads of each site have stored in `part`: TOGETHER quads, from quad `first` on. Every
// thread of the workgroup must call it.
RLX_FN void join(const uint first) {
    const uint made = THREAD / SEGMENTS, segment = THREAD % SEGMENTS;
    vec4 sum = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    if (made < TOGETHER * SITES) {
        for (uint l = segment; l < SHARERS; l += SEGMENTS)
            sum = plus_quad(sum, part[made / SITES * 256u + place(made % SITES, l)]);
    }
    BARRIER;
    part[THREAD] = sum;
    BARRIER;
    if (THREAD < TOGETHER * SITES) {
        sum = part[THREAD * SEGMENTS];
        for (uint s = 1u; s < SEGMENTS; s++) sum = plus_quad(sum, part[THREAD * SEGMENTS + s]);
        sums[first * SITES + THREAD] = sum;
    }
}

RLX_FN void finish(PTR(f32) bias, PTR(TA) c, const uint row, const uint column, const uint n, const float sum) {
    float v = sum;
    if (HAS_BIAS) v += bias_at(bias, column);
    STORE(TA, c, row * n + column, activated(v));
}

// Loads unit j of a thread's step: where B is transposed, from term t of the sum on, of column `column` + j; else from
// this column on, of row t + j of B. Beyond the edge of B the last column or row is read again: the results of such
// columns are not stored, and such terms are set to zero before they are multiplied.
#define FETCH_B(slot, j, t)                                                                                  \
    if (B_UNITS) {                                                                                           \
        LOAD_AHEAD(w[(slot) * 4u + j], AT_UNIT(slot, j), pb, unit_at(column, t, j, n, k), true)              \
    } else {                                                                                                 \
        VALUE_AHEAD(w[(slot) * 4u + j], AT_UNIT(slot, j), unit_of(pb, column, t, j, n, k), true)             \
    }
RLX_FN uint unit_at(const uint column, const uint t, const uint j, const uint n, const uint k) {
    if (B_TRANSPOSED) return (least(column + j, n - 1u) * k + t) / PER;
    return (least(t + j, k - 1u) * n + least(column, n - PER)) / PER;
}
RLX_FN uvec4 unit_of(PTR(TB) b, const uint column, const uint t, const uint j, const uint n, const uint k) {
    if (B_TRANSPOSED) return UNIT_AT(b, least(column + j, n - 1u), t, k, k);
    return UNIT_AT(b, least(t + j, k - 1u), column, n, n);
}

// Loads a step's part of A, from term t of the sum on; elements beyond the edge of A are zero.
#define FETCH_A(t)                                                                                           \
    UNROLL for (uint f = 0u; f < 4u; f++) {                                                                  \
        const uint e = f * 256u + THREAD;                                                                    \
        if (e < MANY * SPAN) held[f] = quad_a(pa, e / SPAN, (t) + e % SPAN * 4u, rows, k, k);                \
    }

RLX_FN void matmul_rows_body(PTR(TA) a, PTR(TB) b, PTR(f32) bias, PTR(TA) c, const uint m, const uint n, const uint k,
                             const uint batch, const uint d1, const uint d2, const uint a0, const uint a1,
                             const uint a2, const uint b0, const uint b1, const uint b2, const uint bias_step) {
    const uint tiles = (n + COLUMNS - 1u) / COLUMNS, blocks = (m + MANY - 1u) / MANY;
    uint z = 0u, z0 = 0u, z1 = 0u, z2 = 0u, tile = GROUP, block = 0u;
    if (batch > 1u) {  // integer divisions are slow, and most products are not batched
        z = GROUP / (tiles * blocks);
        tile = GROUP % (tiles * blocks);
        z2 = z % d2;
        z1 = z / d2 % d1;
        z0 = z / (d2 * d1);
    }
    if (blocks > 1u) {
        block = tile % blocks;
        tile /= blocks;
    }
    if (z >= batch || tile >= tiles) return;
    PTR(TA) pa = SKIP(TA, SKIP(TA, SKIP(TA, SKIP(TA, a, z0, a0), z1, a1), z2, a2), block * MANY, k);
    PTR(TB) pb = SKIP(TB, SKIP(TB, SKIP(TB, b, z0, b0), z1, b1), z2, b2);
    PTR(TA) pc = SKIP(TA, c, z * m + block * MANY, n);
    PTR(f32) add = SKIP(f32, bias, z, bias_step);
    const uint rows = m - block * MANY < MANY ? m - block * MANY : MANY;
    // Adjacent threads read along k where B is transposed, else along the columns, so that loads are coalesced.
    const uint site = B_TRANSPOSED ? THREAD / ACROSS % SITES : THREAD % SITES;
    const uint sharer = B_TRANSPOSED ? THREAD / (ACROSS * SITES) * ACROSS + THREAD % ACROSS : THREAD / SITES;
    const uint step = SHARERS * LENGTH, begin = sharer * LENGTH, column = tile * COLUMNS + site * QUADS * 4u;
    const uint end = column < n ? k : 0u;
    const vec4 zero = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    vec4 acc[MANY * HALF_QUADS];
#ifdef RLX_GLSL
    uvec4 w[MOST_SETS * 4u];
#endif
    vec4 held[MANY > 1u ? 4u : MOST_SETS * 2u];
    UNROLL for (uint e = 0u; e < MANY * HALF_QUADS; e++) acc[e] = zero;
    uint staged = 0u, slot = 0u;
    if (MANY > 1u) FETCH_A(0u)
    // The first DISTANCE steps only load; every other step multiplies what was loaded so many steps before.
    for (uint t = 0u; t < k + DISTANCE * step; t += SETS * step) {
        UNROLL for (uint h = 0u; h < MOST_SETS; h++) {
            const uint next = t + h * step + begin, now = t + h * step - DISTANCE * step, here = now + begin;
            const uint next_a = here + DISTANCE_A * step;
            const bool loaded = t >= DISTANCE * step && h < SETS;
            if (MANY > 1u && loaded && now < k) {
                UNROLL for (uint f = 0u; f < 4u; f++) {
                    if (f * 256u + THREAD < MANY * SPAN) part[staged + f * 256u + THREAD] = held[f];
                }
                BARRIER;
                if (now + step < k) FETCH_A(now + step)
            }
            vec4 lower[4], upper[4], x[2];
            const bool mine = loaded && here < end;
            LOADS_WAIT(AHEAD - 1u)
            if (mine) {
                UNROLL for (uint j = 0u; j < 4u; j++) {
                    const uvec4 unit = UNIT(slot + h, j);
                    lower[j] = LOWER(unit);
                    upper[j] = UPPER(unit);
                    if (!B_TRANSPOSED && here + j >= k) {
                        lower[j] = zero;
                        upper[j] = zero;
                    }
                }
                if (MANY == 1u) {
                    x[0] = held[h * 2u];
                    x[1] = held[h * 2u + 1u];
                }
            }
            if (h < SETS && next < end) {
                UNROLL for (uint j = 0u; j < 4u; j++) FETCH_B(slot + h, j, next)
            }
            LOADS_END
            if (MANY == 1u && h < SETS && next_a < end) {
                held[h * 2u] = quad_a(pa, 0u, next_a, rows, k, k);
                if (LENGTH == 8u) held[h * 2u + 1u] = quad_a(pa, 0u, next_a + 4u, rows, k, k);
            }
            if (mine) {
                if (B_TRANSPOSED) {
                    TRANSPOSE(lower)
                    TRANSPOSE(upper)
                }
                UNROLL for (uint r = 0u; r < MANY; r++) {
                    if (MANY > 1u) {
                        const uint at = staged + r * SPAN + sharer * (LENGTH / 4u);
                        x[0] = part[at];
                        if (LENGTH == 8u) x[1] = part[at + 1u];
                    }
                    FMA_QUADS(acc[r * HALF_QUADS], x[0], lower)
                    if (PER == 8u && B_TRANSPOSED) {
                        FMA_QUADS(acc[r * HALF_QUADS], x[1], upper)
                    } else if (PER == 8u) {
                        FMA_QUADS(acc[r * HALF_QUADS + HALF_QUADS - 1u], x[0], upper)
                    }
                }
            }
            if (MANY > 1u && loaded) staged = MANY * SPAN - staged;
#ifndef RLX_GLSL
            slot = slot == AHEAD - 1u ? 0u : slot + 1u;
#endif
        }
    }
    UNROLL for (uint e = 0u; e < MANY * HALF_QUADS; e += TOGETHER) {
        if (e < MANY * QUADS) {
            BARRIER;
            // A site with fewer than HALF_QUADS quads has gaps between the sums of its rows.
            UNROLL for (uint g = 0u; g < TOGETHER; g++)
                part[g * 256u + place(site, sharer)] =
                    acc[QUADS == HALF_QUADS ? e + g : (e + g) % MANY * HALF_QUADS];
            BARRIER;
            join(e);
        }
    }
    BARRIER;
    for (uint i = THREAD; i < rows * COLUMNS; i += 256u) {
        const uint row = i / COLUMNS, at = i % COLUMNS, out_column = tile * COLUMNS + at;
        const uint q = at / 4u % QUADS, of = at / 4u / QUADS;
        const vec4 sum = sums[(row * QUADS + q) * SITES + of];
        const float v = at % 4u == 0u ? sum.x : (at % 4u == 1u ? sum.y : (at % 4u == 2u ? sum.z : sum.w));
        if (out_column < n) finish(add, pc, row, out_column, n, v);
    }
}
