// What the attention kernels for honest f32 share: who sees whom, and two products of tiles of 64 by 64, made by 256
// threads, each of which owns four rows and four columns.
// C0: width of a head in units of 16, rounded up; C1: flags, 1 causal (a query sees no key after its own), 2 window
// (none further than `window` from its own), 4 soft cap, 8 the number of keys is read from `lengths`; C2: mask 0 none,
// 1 true keeps a key, 2 added to the score; C3: heads may be read four elements at a time. M is the mask's storage.
// Query i stands at key i + len - sq, where len is how many keys there are.
#include "attention_masks.h"
#include "quads.h"
#define WIDE UINT(C0)
#define ALIGNED (UINT(C3) == 1u)
#define TILE 64u
#define STEP 16u  // columns of both operands in shared memory at once
#define SLICE (WIDE <= 2u ? 64u : (WIDE <= 4u ? 32u : (WIDE <= 8u ? 16u : 8u)))  // rows of x: 2048 elements at most

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
// c tanh(s) of scores already divided by c, and tanh itself.
RLX_FN vec4 bend4(const vec4 s, const float inverse_cap) {
    if (!CAPPED) return all4(0.0f);
    return VEC4(p_tanh_f(s.x * inverse_cap), p_tanh_f(s.y * inverse_cap), p_tanh_f(s.z * inverse_cap),
                p_tanh_f(s.w * inverse_cap));
}

RLX_QUAD(quad, T, ALIGNED)

// s[column] = the sums over d of rows a0 … a0 + 63 of A times rows b0 … b0 + 63 of B, both (rows, d): of this thread's
// four rows of A with its four of B.
#define TILE_PRODUCT(s, A, a0, a_rows, B, b0, b_rows, d)                                  \
    UNROLL for (uint tp = 0u; tp < 4u; tp++) s[tp] = VEC4(0.0f, 0.0f, 0.0f, 0.0f);        \
    for (uint d0 = 0u; d0 < d; d0 += STEP) {                                              \
        const uint r = THREAD / 4u, c = THREAD % 4u * 4u;                                 \
        const vec4 from_a = quad(A, a0 + r, d0 + c, a_rows, d);                           \
        const vec4 from_b = quad(B, b0 + r, d0 + c, b_rows, d);                           \
        BARRIER;                                                                          \
        ELEMENT(pool, c * TILE + r) = from_a.x;                                           \
        ELEMENT(pool, (c + 1u) * TILE + r) = from_a.y;                                    \
        ELEMENT(pool, (c + 2u) * TILE + r) = from_a.z;                                    \
        ELEMENT(pool, (c + 3u) * TILE + r) = from_a.w;                                    \
        ELEMENT(pool, 1024u + c * TILE + r) = from_b.x;                                   \
        ELEMENT(pool, 1024u + (c + 1u) * TILE + r) = from_b.y;                            \
        ELEMENT(pool, 1024u + (c + 2u) * TILE + r) = from_b.z;                            \
        ELEMENT(pool, 1024u + (c + 3u) * TILE + r) = from_b.w;                            \
        BARRIER;                                                                          \
        UNROLL for (uint tp = 0u; tp < STEP; tp++) {                                      \
            const vec4 row4 = pool[tp * 16u + THREAD / 16u];                              \
            const vec4 column4 = pool[256u + tp * 16u + THREAD % 16u];                    \
            FMA_ROW(s[0], column4.x, row4)                                                \
            FMA_ROW(s[1], column4.y, row4)                                                \
            FMA_ROW(s[2], column4.z, row4)                                                \
            FMA_ROW(s[3], column4.w, row4)                                                \
        }                                                                                 \
    }

// Y[j] += the sums over the tile's 64 columns of `weights` times rows x0 … x0 + 63 of X (x_rows, d): of this thread's
// four rows of weights, column THREAD % 16 + 16 j of X. `weights` are complete: a barrier comes first.
#define TILE_APPLY(Y, X, x0, x_rows, d)                                                   \
    for (uint s0 = 0u; s0 < TILE; s0 += SLICE) {                                          \
        BARRIER;                                                                          \
        for (uint ta = THREAD; ta < SLICE * 4u * WIDE; ta += 256u) {                      \
            const uint r = ta / (4u * WIDE), c = ta % (4u * WIDE) * 4u;                   \
            pool[ta] = quad(X, x0 + s0 + r, c, x_rows, d);                                \
        }                                                                                 \
        BARRIER;                                                                          \
        for (uint r = 0u; r < SLICE; r++) {                                               \
            const vec4 w = weights[(s0 + r) * 16u + THREAD / 16u];                        \
            UNROLL for (uint j = 0u; j < WIDE; j++) {                                     \
                const float e = ELEMENT(pool, r * 16u * WIDE + THREAD % 16u + 16u * j);   \
                FMA_ROW(Y[j], e, w)                                                       \
            }                                                                             \
        }                                                                                 \
    }

// This thread's rows r0 … r0 + 3 and columns THREAD % 16 + 16 j of TO (rows, d).
#define TILE_STORE(TO, Y, r0, rows, d, factor)                                            \
    UNROLL for (uint j = 0u; j < WIDE; j++) {                                             \
        const uint c = THREAD % 16u + 16u * j;                                            \
        const vec4 made = times4(Y[j], factor);                                           \
        if (c < d) {                                                                      \
            if (r0 < rows) STORE(T, TO, (r0) * d + c, made.x);                            \
            if (r0 + 1u < rows) STORE(T, TO, (r0 + 1u) * d + c, made.y);                  \
            if (r0 + 2u < rows) STORE(T, TO, (r0 + 2u) * d + c, made.z);                  \
            if (r0 + 3u < rows) STORE(T, TO, (r0 + 3u) * d + c, made.w);                  \
        }                                                                                 \
    }
