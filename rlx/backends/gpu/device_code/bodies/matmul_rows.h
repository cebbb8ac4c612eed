// C = act(A op(B) + bias) for few rows, ROWS of them a group: as many groups share what they read of B as A has blocks
// of ROWS. B_TRANSPOSED: as B is stored; ACTIVATION: see activation.h; BIAS: see bias.h; A_QUADS, B_QUADS: A, B may be
// read four at a time (rows of B); ACROSS: quads of columns that a group makes where B is not transposed, else threads
// that share a row of B, up to 32; PARTS: parts of k, where B is transposed; a group makes 256 / ACROSS / PARTS columns
// then. The threads that share a column add up every so many terms of k; where B is not transposed, two rounds of sums
// join them, four rows at a time.
#include "pair.h"
#define MANY_1 1u
#define MANY_4 4u
#define MANY_8 8u
#define MANY_16 16u
#define MANY RLX_JOIN(MANY_, ROWS)
#define TOGETHER (MANY < 4u ? MANY : 4u)
#define SEGMENTS (16u * TOGETHER * ACROSS > 256u ? 256u / (TOGETHER * ACROSS) : 16u)
#define COLUMNS (B_TRANSPOSED ? 256u / (ACROSS * PARTS) : 4u * ACROSS)
#include "activation.h"
#include "bias.h"
#include "quads.h"

SHARED vec4 part[B_TRANSPOSED ? MANY * 64u / ACROSS : 256u * TOGETHER];
SHARED vec4 sums[B_TRANSPOSED ? 1u : MANY * ACROSS];

RLX_FN float plus(const float a, const float b) { return a + b; }
LANES_OP(lane_sum, ACROSS, plus)
RLX_FN vec4 plus_quad(const vec4 a, const vec4 b) { return VEC4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

RLX_QUAD(quad_a, TA, A_QUADS)
RLX_QUAD(quad_b, TB, B_QUADS)

// Adds up what the `lanes` of each column hold of the TOGETHER rows from r on. Every thread of the group calls it.
RLX_FN void join(const uint r, const uint lanes) {
    const uint made = THREAD / SEGMENTS, segment = THREAD % SEGMENTS;
    vec4 sum = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    if (made < TOGETHER * ACROSS) {
        for (uint l = segment; l < lanes; l += SEGMENTS)
            sum = plus_quad(sum, part[made / ACROSS * 256u + l * ACROSS + made % ACROSS]);
    }
    BARRIER;
    part[THREAD] = sum;
    BARRIER;
    if (THREAD < TOGETHER * ACROSS) {
        sum = part[THREAD * SEGMENTS];
        for (uint s = 1u; s < SEGMENTS; s++) sum = plus_quad(sum, part[THREAD * SEGMENTS + s]);
        sums[r * ACROSS + THREAD] = sum;
    }
}

RLX_FN void finish(PTR(f32) bias, PTR(TA) c, const uint row, const uint column, const uint n, const float sum) {
    float v = sum;
    if (HAS_BIAS) v += bias_at(bias, column);
    STORE(TA, c, row * n + column, activated(v));
}

RLX_FN void matmul_rows_body(PTR(TA) a, PTR(TB) b, PTR(f32) bias, PTR(TA) c, const uint m, const uint n, const uint k,
                             const uint batch, const uint d1, const uint d2, const uint a0, const uint a1,
                             const uint a2, const uint b0, const uint b1, const uint b2, const uint bias_step) {
    const uint tiles = (n + COLUMNS - 1u) / COLUMNS, blocks = (m + MANY - 1u) / MANY;
    const uint z = GROUP / (tiles * blocks), block = GROUP % (tiles * blocks) % blocks;
    const uint tile = GROUP % (tiles * blocks) / blocks;
    if (z >= batch) return;
    const uint z2 = z % d2, z1 = z / d2 % d1, z0 = z / (d2 * d1);
    PTR(TA) pa = SKIP(TA, SKIP(TA, SKIP(TA, SKIP(TA, a, z0, a0), z1, a1), z2, a2), block * MANY, k);
    PTR(TB) pb = SKIP(TB, SKIP(TB, SKIP(TB, b, z0, b0), z1, b1), z2, b2);
    PTR(TA) pc = SKIP(TA, c, z * m + block * MANY, n);
    PTR(f32) add = SKIP(f32, bias, z, bias_step);
    const uint rows = m - block * MANY < MANY ? m - block * MANY : MANY;
    if (B_TRANSPOSED) {
        const uint lane = THREAD % ACROSS, at = THREAD / ACROSS % COLUMNS, piece = THREAD / ACROSS / COLUMNS;
        const uint column = tile * COLUMNS + at;
        float acc[MANY];
        UNROLL for (uint r = 0u; r < MANY; r++) acc[r] = 0.0f;
        const uint first = (piece * ACROSS + lane) * 4u, step = PARTS * ACROSS * 4u;
        vec4 next = quad_b(pb, column, first, n, k, k);
        for (uint t = first; t < (column < n ? k : 0u); t += step) {
            const vec4 vb = next;
            vec4 va[MANY];
            // All under way at once: no branch stands between them. What a row that is not there adds up is not stored.
            UNROLL for (uint r = 0u; r < MANY; r++) {
                const uint row = r < rows ? r : 0u;
                if (A_QUADS) {
                    va[r] = LOAD4(TA, pa, (row * k + t) / 4u);
                } else {
                    va[r] = quad_a(pa, row, t, rows, k, k);
                }
            }
            next = quad_b(pb, column, t + step, n, k, k);
            UNROLL for (uint r = 0u; r < MANY; r++) {
                acc[r] = FMA(va[r].x, vb.x, acc[r]);
                acc[r] = FMA(va[r].y, vb.y, acc[r]);
                acc[r] = FMA(va[r].z, vb.z, acc[r]);
                acc[r] = FMA(va[r].w, vb.w, acc[r]);
            }
        }
        UNROLL for (uint r = 0u; r < MANY; r++) {
            const float sum = lane_sum(acc[r]);
            if (lane == r % ACROSS) ELEMENT(part, (r * PARTS + piece) * COLUMNS + at) = sum;
        }
        BARRIER;
        for (uint i = THREAD; i < rows * COLUMNS; i += 256u) {
            const uint row = i / COLUMNS, place = tile * COLUMNS + i % COLUMNS;
            float sum = 0.0f;
            UNROLL for (uint s = 0u; s < PARTS; s++) sum += ELEMENT(part, (row * PARTS + s) * COLUMNS + i % COLUMNS);
            if (place < n) finish(add, pc, row, place, n, sum);
        }
    } else {
        const uint lane = THREAD / ACROSS, lanes = 256u / ACROSS;
        const uint column = (tile * ACROSS + THREAD % ACROSS) * 4u;
        vec4 acc[MANY];
        UNROLL for (uint r = 0u; r < MANY; r++) acc[r] = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
        for (uint t = lane; t < (column < n ? k : 0u); t += lanes) {
            const vec4 vb = quad_b(pb, t, column, k, n, n);
            UNROLL for (uint r = 0u; r < MANY; r++) {
                if (r < rows) {
                    const float va = LOAD(TA, pa, r * k + t);
                    FMA_ROW(acc[r], va, vb)
                }
            }
        }
        UNROLL for (uint r = 0u; r < MANY; r += TOGETHER) {
            BARRIER;
            UNROLL for (uint g = 0u; g < TOGETHER; g++) part[g * 256u + THREAD] = acc[r + g];
            BARRIER;
            join(r, lanes);
        }
        BARRIER;
        for (uint i = THREAD; i < rows * COLUMNS; i += 256u) {
            const uint row = i / COLUMNS, at = i % COLUMNS, place = tile * COLUMNS + at;
            const vec4 sum = sums[row * ACROSS + at / 4u];
            const float v = at % 4u == 0u ? sum.x : (at % 4u == 1u ? sum.y : (at % 4u == 2u ? sum.z : sum.w));
            if (place < n) finish(add, pc, row, place, n, v);
        }
    }
}
