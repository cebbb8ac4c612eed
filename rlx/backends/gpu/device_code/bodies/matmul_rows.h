// C = act(A op(B) + bias) for few rows: a workgroup computes ROWS rows, and B is read once for each block of ROWS rows
// of A. B_TRANSPOSED says how B is stored, ACTIVATION and BIAS are those of activation.h and bias.h. With A_QUADS, A is
// read four elements at a time; with B_UNITS, B is read 16 bytes (a unit) at a time.
//
// A site is the group of columns of C that one thread accumulates: QUADS times four columns. It has eight columns for
// 16 rows, because A would be most of what is read otherwise, and where a unit of B has eight elements. A workgroup has
// SITES sites side by side, and 256 / SITES threads split the sum over k of each site: in a step, a thread takes one
// unit of k where B is transposed, else four rows of B. Their sums are added up at the end, in two rounds. A thread has
// the loads of SETS steps outstanding. Unless there is only one row, a step's part of A is staged through shared
// memory.
#include "pair.h"
#define MANY_1 1u
#define MANY_4 4u
#define MANY_8 8u
#define MANY_16 16u
#define MANY RLX_JOIN(MANY_, ROWS)
#define PER_f32 4u
#define PER_f16 8u
#define PER_bf16 8u
#define PER RLX_JOIN(PER_, TB)  // elements of a unit of B
#define MOST_QUADS (PER == 8u || MANY == 16u ? 2u : 1u)
#define QUADS (B_TRANSPOSED && PER == 8u ? 1u : MOST_QUADS)  // of a site
#define LENGTH (B_TRANSPOSED ? PER : 4u)  // terms of the sum that a thread takes in a step
#define SPAN (SHARERS * LENGTH / 4u)      // quads of a row of A in a step
#define SETS (MANY > 4u ? 8u / PER : (MANY > 1u ? 3u : 4u))
#define LOADS (MANY == 16u && PER == 4u ? 8u : 4u)  // units of a step
#define COLUMNS (4u * QUADS * SITES)
#define SHARERS (256u / SITES)
#define TOGETHER (MANY < 4u ? MANY : 4u)
#define SEGMENTS (16u * TOGETHER * SITES > 256u ? 256u / (TOGETHER * SITES) : 16u)
#include "activation.h"
#include "bias.h"
#include "quads.h"
#include "stream.h"

SHARED vec4 part[256u * TOGETHER];  // a step's part of A, at most MANY * SPAN quads; at the end, sums
SHARED vec4 sums[MANY * QUADS * SITES];

RLX_FN vec4 plus_quad(const vec4 a, const vec4 b) { return VEC4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
RLX_QUAD(quad_a, TA, A_QUADS)
#define UNIT_AT RLX_JOIN(unit_, TB)
// The first four values of a unit, and the last four.
#define FLOATS(a, b, c, d) VEC4(RLX_FLOAT(a), RLX_FLOAT(b), RLX_FLOAT(c), RLX_FLOAT(d))
#define LOWER_f32(u) FLOATS(u.x, u.y, u.z, u.w)
#define UPPER_f32(u) LOWER_f32(u)
#define BRAINS(a, b) FLOATS((a) << 16, (a) & 0xffff0000u, (b) << 16, (b) & 0xffff0000u)
#define LOWER_bf16(u) BRAINS(u.x, u.y)
#define UPPER_bf16(u) BRAINS(u.z, u.w)
#define HALVES(a, b) \
    VEC4(p_f16_value((a) & 0xffffu), p_f16_value((a) >> 16), p_f16_value((b) & 0xffffu), p_f16_value((b) >> 16))
#define LOWER_f16(u) HALVES(u.x, u.y)
#define UPPER_f16(u) HALVES(u.z, u.w)
#define LOWER RLX_JOIN(LOWER_, TB)
#define UPPER RLX_JOIN(UPPER_, TB)
#define DOT(sum, p, q)            \
    sum = FMA((p).x, (q).x, sum); \
    sum = FMA((p).y, (q).y, sum); \
    sum = FMA((p).z, (q).z, sum); \
    sum = FMA((p).w, (q).w, sum);

#define FMA_HALF(sum, x, q, j)                                                              \
    if (q == 0u) {                                                                         \
        FMA_ROW(sum, x, lower[j])                                                          \
    } else {                                                                               \
        FMA_ROW(sum, x, upper[j])                                                          \
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

// The column at which quad q of a site begins. Adjacent sites read adjacent units of a row of B.
RLX_FN uint quad_column(const uint site, const uint q) {
    return !B_TRANSPOSED && PER == 8u ? (site * QUADS + q) * 4u : (q * SITES + site) * 4u;
}

// Loads the units of B from term t of the sum on: one for each column of a site where B is transposed, else one for
// each of four rows; unit j belongs to quad j / 4. Beyond the edge of B the last column or row is read again: the
// results of such columns are not stored, and such terms are set to zero before they are multiplied.
#define FETCH(held, t)                                                                                       \
    UNROLL for (uint j = 0u; j < LOADS; j++) {                                                               \
        const uint begins = tile * COLUMNS + quad_column(site, j / 4u);                                      \
        if (B_TRANSPOSED) {                                                                                  \
            const uint r = least(begins + j % 4u, n - 1u);                                                   \
            if (B_UNITS) {                                                                                   \
                w[(held) + j] = LOAD_ONCE(pb, (r * k + (t)) / PER);                                          \
            } else {                                                                                         \
                w[(held) + j] = UNIT_AT(pb, r, t, k, k);                                                     \
            }                                                                                                \
        } else {                                                                                             \
            const uint r = least((t) + j % 4u, k - 1u);                                                      \
            if (B_UNITS) {                                                                                   \
                w[(held) + j] = LOAD_ONCE(pb, (r * n + least(begins, n - PER)) / PER);                       \
            } else {                                                                                         \
                w[(held) + j] = UNIT_AT(pb, r, begins, n, n);                                                \
            }                                                                                                \
        }                                                                                                    \
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
    const uint step = SHARERS * LENGTH, begin = sharer * LENGTH;
    const uint end = tile * COLUMNS + quad_column(site, 0u) < n ? k : 0u;
    const vec4 zero = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    vec4 acc[MANY * MOST_QUADS];
    uvec4 w[SETS * LOADS];
    vec4 held[4];
    UNROLL for (uint e = 0u; e < MANY * MOST_QUADS; e++) acc[e] = zero;
    UNROLL for (uint h = 0u; h < SETS; h++) {
        if (begin + h * step < end) FETCH(h * LOADS, begin + h * step)
    }
    if (MANY > 1u) FETCH_A(0u)
    for (uint t = 0u; t < k; t += SETS * step) {
        UNROLL for (uint h = 0u; h < SETS; h++) {
            const uint now = t + h * step, here = now + begin;
            if (MANY > 1u && now < k) {
                BARRIER;
                UNROLL for (uint f = 0u; f < 4u; f++) {
                    if (f * 256u + THREAD < MANY * SPAN) part[f * 256u + THREAD] = held[f];
                }
                BARRIER;
                if (now + step < k) FETCH_A(now + step)
            }
            if (here < end) {
                vec4 lower[LOADS], upper[LOADS];
                UNROLL for (uint j = 0u; j < LOADS; j++) {
                    lower[j] = LOWER(w[h * LOADS + j]);
                    upper[j] = UPPER(w[h * LOADS + j]);
                    if (!B_TRANSPOSED && here + j % 4u >= k) {
                        lower[j] = zero;
                        upper[j] = zero;
                    }
                }
                if (here + SETS * step < end) FETCH(h * LOADS, here + SETS * step)
                UNROLL for (uint r = 0u; r < MANY; r++) {
                    vec4 va, more = zero;
                    if (MANY > 1u) {
                        va = part[r * SPAN + sharer * (LENGTH / 4u)];
                        if (LENGTH == 8u) more = part[r * SPAN + sharer * 2u + 1u];
                    } else {
                        va = quad_a(pa, r, here, rows, k, k);
                        if (LENGTH == 8u) more = quad_a(pa, r, here + 4u, rows, k, k);
                    }
                    UNROLL for (uint q = 0u; q < MOST_QUADS; q++) {
                        const uint e = r * MOST_QUADS + q, j = LOADS == 8u ? q * 4u : 0u;
                        if (B_TRANSPOSED && q < QUADS) {
                            DOT(acc[e].x, va, lower[j])
                            DOT(acc[e].y, va, lower[j + 1u])
                            DOT(acc[e].z, va, lower[j + 2u])
                            DOT(acc[e].w, va, lower[j + 3u])
                            if (PER == 8u) {
                                DOT(acc[e].x, more, upper[j])
                                DOT(acc[e].y, more, upper[j + 1u])
                                DOT(acc[e].z, more, upper[j + 2u])
                                DOT(acc[e].w, more, upper[j + 3u])
                            }
                        } else if (!B_TRANSPOSED && PER == 4u) {
                            FMA_ROW(acc[e], va.x, lower[j])
                            FMA_ROW(acc[e], va.y, lower[j + 1u])
                            FMA_ROW(acc[e], va.z, lower[j + 2u])
                            FMA_ROW(acc[e], va.w, lower[j + 3u])
                        } else if (!B_TRANSPOSED) {
                            FMA_HALF(acc[e], va.x, q, 0u)
                            FMA_HALF(acc[e], va.y, q, 1u)
                            FMA_HALF(acc[e], va.z, q, 2u)
                            FMA_HALF(acc[e], va.w, q, 3u)
                        }
                    }
                }
            }
        }
    }
    UNROLL for (uint e = 0u; e < MANY * MOST_QUADS; e += TOGETHER) {
        if (e < MANY * QUADS) {
            BARRIER;
            // A site with fewer than MOST_QUADS quads has gaps between the sums of its rows.
            UNROLL for (uint g = 0u; g < TOGETHER; g++)
                part[g * 256u + place(site, sharer)] = acc[QUADS == MOST_QUADS ? e + g : (e + g) % MANY * MOST_QUADS];
            BARRIER;
            join(e);
        }
    }
    BARRIER;
    for (uint i = THREAD; i < rows * COLUMNS; i += 256u) {
        const uint row = i / COLUMNS, at = i % COLUMNS, out_column = tile * COLUMNS + at;
        const bool pairs = !B_TRANSPOSED && PER == 8u;
        const uint q = pairs ? at / 4u % QUADS : at / 4u / SITES, of = pairs ? at / 4u / QUADS : at / 4u % SITES;
        const vec4 sum = sums[(row * QUADS + q) * SITES + of];
        const float v = at % 4u == 0u ? sum.x : (at % 4u == 1u ? sum.y : (at % 4u == 2u ? sum.z : sum.w));
        if (out_column < n) finish(add, pc, row, out_column, n, v);
    }
}
