// What the attention kernels in f32 share: masking, and two products of tiles of 64 by 64, computed by 256 threads,
// each of which computes four rows and four columns. WIDE: the size of a head in units of 16, rounded up. FLAGS, MASK:
// see attention_masks.h. ALIGNED: heads may be read four elements at a time. M is the mask's storage dtype. Query i has
// the position of key i + len - sq, where len is the number of keys.
#include "attention_masks.h"
#include "quads.h"
#define TILE 64u
#define STEP 16u  // columns of both operands in shared memory at once
#define SLICE (WIDE <= 2u ? 64u : (WIDE <= 4u ? 32u : (WIDE <= 8u ? 16u : 8u)))  // rows of x: 2048 elements at most
// A warp has eight threads along columns and four along rows, so that its reads of shared memory have no conflicts.
#define TX (THREAD % 8u + THREAD / 32u % 2u * 8u)
#define TY (THREAD / 8u % 4u + THREAD / 64u * 4u)
// The columns of a result that this thread computes, four neighbours where the head is wide enough.
#define TOGETHER (WIDE % 4u == 0u)
#define COLUMN(j) (TOGETHER ? (j) / 4u * 64u + TX * 4u + (j) % 4u : TX + 16u * (j))
// The index of four rows of one column of an operand. Columns that are stored together are shifted, so that their rows
// lie in different banks.
#define QUAD_AT(column, rows4) ((column) * 16u + ((rows4) ^ ((column) / 4u % 4u * 2u)))

// First a (1024 floats, [column][row]) and b (1024, [column][row]); then maxima and sums; then a slice of x.
SHARED vec4 pool[512];
SHARED vec4 weights[TILE * TILE / 4u];  // [column][row / 4]

RLX_FN vec4 larger4(const vec4 a, const vec4 b) {
    return VEC4(larger(a.x, b.x), larger(a.y, b.y), larger(a.z, b.z), larger(a.w, b.w));
}
RLX_FN vec4 plus4(const vec4 a, const vec4 b) { return VEC4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
RLX_FN vec4 minus4(const vec4 a, const vec4 b) { return VEC4(a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w); }
RLX_FN vec4 times4(const vec4 a, const vec4 b) { return VEC4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }
RLX_FN vec4 all4(const float x) { return VEC4(x, x, x, x); }
RLX_FN vec4 exp4(const vec4 a, const vec4 top) {
    return VEC4(p_exp_f(a.x - base_of(top.x)), p_exp_f(a.y - base_of(top.y)), p_exp_f(a.z - base_of(top.z)),
                p_exp_f(a.w - base_of(top.w)));
}
// The soft cap c tanh(s) of scores already divided by c, and tanh itself.
RLX_FN vec4 bend4(const vec4 s, const float inverse_cap) {
    if (!CAPPED) return all4(0.0f);
    return VEC4(p_tanh_f(s.x * inverse_cap), p_tanh_f(s.y * inverse_cap), p_tanh_f(s.z * inverse_cap),
                p_tanh_f(s.w * inverse_cap));
}

RLX_QUAD(quad, T, ALIGNED)

// PRODUCT: s[column] = the sums over d of rows a0 … a0 + 63 of A times rows b0 … b0 + 63 of B, rows of d elements that
// lie a_row and b_row elements apart: of this thread's four rows of A with its four of B. The first columns were
// fetched by PRODUCT_START; the next ones are loaded while these are multiplied. So are the rows of X in APPLY.
#define PRODUCT_START(A, a0, a_rows, a_row, B, b0, b_rows, b_row, d)                      \
    next_a = quad(A, (a0) + THREAD / 4u, THREAD % 4u * 4u, a_rows, d, a_row);             \
    next_b = quad(B, (b0) + THREAD / 4u, THREAD % 4u * 4u, b_rows, d, b_row);
#define PLACE_COLUMNS(base, v)                                                            \
    ELEMENT(pool, base + QUAD_AT(THREAD % 4u * 4u, THREAD / 16u) * 4u + THREAD / 4u % 4u) = v.x;      \
    ELEMENT(pool, base + QUAD_AT(THREAD % 4u * 4u + 1u, THREAD / 16u) * 4u + THREAD / 4u % 4u) = v.y; \
    ELEMENT(pool, base + QUAD_AT(THREAD % 4u * 4u + 2u, THREAD / 16u) * 4u + THREAD / 4u % 4u) = v.z; \
    ELEMENT(pool, base + QUAD_AT(THREAD % 4u * 4u + 3u, THREAD / 16u) * 4u + THREAD / 4u % 4u) = v.w;
#define PRODUCT(s, A, a0, a_rows, a_row, B, b0, b_rows, b_row, d)                         \
    UNROLL for (uint tp = 0u; tp < 4u; tp++) s[tp] = VEC4(0.0f, 0.0f, 0.0f, 0.0f);        \
    for (uint d0 = 0u; d0 < d; d0 += STEP) {                                              \
        BARRIER;                                                                          \
        PLACE_COLUMNS(0u, next_a)                                                         \
        PLACE_COLUMNS(1024u, next_b)                                                      \
        BARRIER;                                                                          \
        if (d0 + STEP < d) {                                                              \
            next_a = quad(A, (a0) + THREAD / 4u, d0 + STEP + THREAD % 4u * 4u, a_rows, d, a_row); \
            next_b = quad(B, (b0) + THREAD / 4u, d0 + STEP + THREAD % 4u * 4u, b_rows, d, b_row); \
        }                                                                                 \
        UNROLL for (uint tp = 0u; tp < STEP; tp++) {                                      \
            const vec4 row4 = pool[QUAD_AT(tp, TY)], column4 = pool[256u + QUAD_AT(tp, TX)]; \
            FMA_ROW(s[0], column4.x, row4)                                                \
            FMA_ROW(s[1], column4.y, row4)                                                \
            FMA_ROW(s[2], column4.z, row4)                                                \
            FMA_ROW(s[3], column4.w, row4)                                                \
        }                                                                                 \
    }

// APPLY: Y[j] += the sums over the tile's 64 columns of `weights` times rows x0 … x0 + 63 of X, x_row elements apart:
// of this thread's four rows of weights, COLUMN(j) of X. It begins with a barrier, after which `weights` are complete.
#define FETCH_SLICE(X, x0, x_rows, x_row, d)                                              \
    UNROLL for (uint tn = 0u; tn < 2u; tn++) {                                            \
        const uint ta = THREAD + tn * 256u;                                               \
        if (ta < SLICE * 4u * WIDE)                                                       \
            next_x[tn] = quad(X, (x0) + ta / (4u * WIDE), ta % (4u * WIDE) * 4u, x_rows, d, x_row); \
    }
#define APPLY_START(X, x0, x_rows, x_row, d) FETCH_SLICE(X, x0, x_rows, x_row, d)
#define APPLY(Y, X, x0, x_rows, x_row, d)                                                 \
    for (uint s0 = 0u; s0 < TILE; s0 += SLICE) {                                          \
        BARRIER;                                                                          \
        UNROLL for (uint tn = 0u; tn < 2u; tn++) {                                        \
            if (THREAD + tn * 256u < SLICE * 4u * WIDE) pool[THREAD + tn * 256u] = next_x[tn]; \
        }                                                                                 \
        BARRIER;                                                                          \
        if (s0 + SLICE < TILE) {                                                          \
            FETCH_SLICE(X, (x0) + s0 + SLICE, x_rows, x_row, d)                           \
        }                                                                                 \
        for (uint r = 0u; r < SLICE; r++) {                                               \
            const vec4 w = weights[(s0 + r) * 16u + TY];                                  \
            if (TOGETHER) {                                                               \
                UNROLL for (uint j = 0u; j < WIDE / 4u; j++) {                            \
                    const vec4 e = pool[r * 4u * WIDE + j * 16u + TX];                    \
                    FMA_ROW(Y[j * 4u], e.x, w)                                            \
                    FMA_ROW(Y[j * 4u + 1u], e.y, w)                                       \
                    FMA_ROW(Y[j * 4u + 2u], e.z, w)                                       \
                    FMA_ROW(Y[j * 4u + 3u], e.w, w)                                       \
                }                                                                         \
            } else {                                                                      \
                UNROLL for (uint j = 0u; j < WIDE; j++) {                                 \
                    const float e = ELEMENT(pool, r * 16u * WIDE + TX + 16u * j);         \
                    FMA_ROW(Y[j], e, w)                                                   \
                }                                                                         \
            }                                                                             \
        }                                                                                 \
    }

// This thread's rows r0 … r0 + 3 of TO, `row` elements apart, each times its part of factor.
#define TILE_STORE(TO, Y, r0, rows, row, d, factor)                                       \
    UNROLL for (uint j = 0u; j < WIDE; j++) Y[j] = times4(Y[j], factor);                  \
    if (TOGETHER && ALIGNED) {                                                            \
        UNROLL for (uint j = 0u; j < WIDE / 4u; j++) {                                    \
            const uint c = COLUMN(j * 4u);                                                \
            const vec4 y0 = Y[j * 4u], y1 = Y[j * 4u + 1u], y2 = Y[j * 4u + 2u], y3 = Y[j * 4u + 3u]; \
            if (c < d) {                                                                  \
                if (r0 < rows) STORE4(T, TO, ((r0) * (row) + c) / 4u, VEC4(y0.x, y1.x, y2.x, y3.x));           \
                if (r0 + 1u < rows) STORE4(T, TO, ((r0 + 1u) * (row) + c) / 4u, VEC4(y0.y, y1.y, y2.y, y3.y)); \
                if (r0 + 2u < rows) STORE4(T, TO, ((r0 + 2u) * (row) + c) / 4u, VEC4(y0.z, y1.z, y2.z, y3.z)); \
                if (r0 + 3u < rows) STORE4(T, TO, ((r0 + 3u) * (row) + c) / 4u, VEC4(y0.w, y1.w, y2.w, y3.w)); \
            }                                                                             \
        }                                                                                 \
    } else {                                                                              \
        UNROLL for (uint j = 0u; j < WIDE; j++) {                                         \
            const uint c = COLUMN(j);                                                     \
            if (c < d) {                                                                  \
                if (r0 < rows) STORE(T, TO, (r0) * (row) + c, Y[j].x);                        \
                if (r0 + 1u < rows) STORE(T, TO, (r0 + 1u) * (row) + c, Y[j].y);              \
                if (r0 + 2u < rows) STORE(T, TO, (r0 + 2u) * (row) + c, Y[j].z);              \
                if (r0 + 3u < rows) STORE(T, TO, (r0 + 3u) * (row) + c, Y[j].w);              \
            }                                                                             \
        }                                                                                 \
    }
