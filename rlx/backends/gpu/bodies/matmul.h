// C = act(op(A) op(B) + bias) in 256-thread groups, each a tile of C0 x C1 (64 or 128) of one matrix of the batch.
// C2, C3: A, B are stored transposed; C4: activation (0 none, 1 relu, 2 gelu, 3 gelu by tanh, 4 silu, 5 tanh,
// 6 sigmoid); C5: bias; C6, C7, C8: A, B, C may be read, read, written four at a time; C9: sums of more than 1024
// terms are made of sums of 1024. AB names the storage of A and B; C is stored as A is; bias is f32.
// A thread owns quads of rows and columns 64 apart. Slices of eight along k go through two shared buffers: while one
// is used, the next slice is on its way in registers.
#include "pair.h"
#define BM UINT(C0)
#define BN UINT(C1)
#define BK 8u
#define A_TRANSPOSED (UINT(C2) == 1u)
#define B_TRANSPOSED (UINT(C3) == 1u)
#define ACTIVATION UINT(C4)
#define HAS_BIAS (UINT(C5) == 1u)
#define A_QUADS (UINT(C6) == 1u)
#define B_QUADS (UINT(C7) == 1u)
#define C_QUADS (UINT(C8) == 1u)
#define IN_PARTS (UINT(C9) == 1u)
#define RM (BM / 64u)
#define RN (BN / 64u)
#define FETCH_A ((BM * BK / 4u + 255u) / 256u)
#define FETCH_B ((BN * BK / 4u + 255u) / 256u)

#include "activation.h"
#include "quads.h"

SHARED vec4 tile_a[2u * BK * BM / 4u];  // [side][k][row / 4]
SHARED vec4 tile_b[2u * BK * BN / 4u];

RLX_QUAD(quad_a, TA, A_QUADS)
RLX_QUAD(quad_b, TB, B_QUADS)

// Quad number f of a slice: along k in rows of `extent` (a matrix that has k last), or along the extent in BK rows.
#define FETCH(QUAD, P, ALONG_K, EXTENT, first, t, rows, k, f)                                     \
    ((ALONG_K) ? QUAD(P, first + (f) / (BK / 4u), t + (f) % (BK / 4u) * 4u, rows, k)              \
               : QUAD(P, t + (f) / (EXTENT / 4u), first + (f) % (EXTENT / 4u) * 4u, k, rows))

// Puts a quad fetched along k into four rows of the shared slice, or one fetched along the extent into one.
#define PLACE(TILE, BUFFER, ALONG_K, EXTENT, f, v)                                                \
    if (ALONG_K) {                                                                                \
        const uint at = (BUFFER) * BK + (f) % (BK / 4u) * 4u, e = (f) / (BK / 4u);                \
        SET4(TILE[at * (EXTENT / 4u) + e / 4u], e % 4u, v.x);                                     \
        SET4(TILE[(at + 1u) * (EXTENT / 4u) + e / 4u], e % 4u, v.y);                              \
        SET4(TILE[(at + 2u) * (EXTENT / 4u) + e / 4u], e % 4u, v.z);                              \
        SET4(TILE[(at + 3u) * (EXTENT / 4u) + e / 4u], e % 4u, v.w);                              \
    } else {                                                                                      \
        TILE[(BUFFER) * BK * (EXTENT / 4u) + (f)] = v;                                            \
    }

RLX_FN void matmul_body(PTR(TA) a, PTR(TB) b, PTR(f32) bias, PTR(TA) c, const uint m, const uint n, const uint k,
                        const uint batch, const uint d1, const uint d2, const uint a0, const uint a1, const uint a2,
                        const uint b0, const uint b1, const uint b2) {
    const uint tiles_m = (m + BM - 1u) / BM, tiles_n = (n + BN - 1u) / BN;
    const uint z = GROUP / (tiles_m * tiles_n), tile = GROUP % (tiles_m * tiles_n);
    if (z >= batch) return;
    // Eight rows of tiles are worked on side by side, so that neighbours find A and B in the cache.
    const uint band = tile / (8u * tiles_n) * 8u;
    const uint height = tiles_m - band < 8u ? tiles_m - band : 8u;
    const uint m0 = (band + tile % (8u * tiles_n) % height) * BM, n0 = tile % (8u * tiles_n) / height * BN;
    const uint z2 = z % d2, z1 = z / d2 % d1, z0 = z / (d2 * d1);
    PTR(TA) pa = SKIP(TA, SKIP(TA, SKIP(TA, a, z0, a0), z1, a1), z2, a2);
    PTR(TB) pb = SKIP(TB, SKIP(TB, SKIP(TB, b, z0, b0), z1, b1), z2, b2);
    PTR(TA) pc = SKIP(TA, c, z, m * n);
    const uint ty = THREAD / 16u, tx = THREAD % 16u;

    vec4 acc[4u * RM * RN], whole[IN_PARTS ? 4u * RM * RN : 1u];
    vec4 fetched_a[FETCH_A], fetched_b[FETCH_B];
    const vec4 zero = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    UNROLL for (uint i = 0u; i < 4u * RM * RN; i++) acc[i] = zero;
    if (IN_PARTS) {
        UNROLL for (uint i = 0u; i < 4u * RM * RN; i++) whole[i] = zero;
    }

    UNROLL for (uint f = 0u; f < FETCH_A; f++) {
        const uint g = f * 256u + THREAD;
        if (g < BM * BK / 4u) {
            const vec4 v = FETCH(quad_a, pa, !A_TRANSPOSED, BM, m0, 0u, m, k, g);
            PLACE(tile_a, 0u, !A_TRANSPOSED, BM, g, v)
        }
    }
    UNROLL for (uint f = 0u; f < FETCH_B; f++) {
        const uint g = f * 256u + THREAD;
        if (g < BN * BK / 4u) {
            const vec4 v = FETCH(quad_b, pb, B_TRANSPOSED, BN, n0, 0u, n, k, g);
            PLACE(tile_b, 0u, B_TRANSPOSED, BN, g, v)
        }
    }
    BARRIER;
    uint side = 0u;
    for (uint t = 0u; t < k; t += BK) {
        const bool more = t + BK < k;
        if (more) {
            UNROLL for (uint f = 0u; f < FETCH_A; f++) {
                const uint g = f * 256u + THREAD;
                if (g < BM * BK / 4u) fetched_a[f] = FETCH(quad_a, pa, !A_TRANSPOSED, BM, m0, t + BK, m, k, g);
            }
            UNROLL for (uint f = 0u; f < FETCH_B; f++) {
                const uint g = f * 256u + THREAD;
                if (g < BN * BK / 4u) fetched_b[f] = FETCH(quad_b, pb, B_TRANSPOSED, BN, n0, t + BK, n, k, g);
            }
        }
        UNROLL for (uint kk = 0u; kk < BK; kk++) {
            vec4 ra[RM], rb[RN];
            UNROLL for (uint i = 0u; i < RM; i++) ra[i] = tile_a[(side * BK + kk) * (BM / 4u) + ty + 16u * i];
            UNROLL for (uint j = 0u; j < RN; j++) rb[j] = tile_b[(side * BK + kk) * (BN / 4u) + tx + 16u * j];
            UNROLL for (uint i = 0u; i < RM; i++) {
                UNROLL for (uint j = 0u; j < RN; j++) {
                    FMA_ROW(acc[(i * 4u + 0u) * RN + j], ra[i].x, rb[j])
                    FMA_ROW(acc[(i * 4u + 1u) * RN + j], ra[i].y, rb[j])
                    FMA_ROW(acc[(i * 4u + 2u) * RN + j], ra[i].z, rb[j])
                    FMA_ROW(acc[(i * 4u + 3u) * RN + j], ra[i].w, rb[j])
                }
            }
        }
        if (IN_PARTS) {
            if ((t / BK & 127u) == 127u) {
                UNROLL for (uint i = 0u; i < 4u * RM * RN; i++) {
                    whole[i].x += acc[i].x;
                    whole[i].y += acc[i].y;
                    whole[i].z += acc[i].z;
                    whole[i].w += acc[i].w;
                    acc[i] = zero;
                }
            }
        }
        side = 1u - side;
        if (more) {
            UNROLL for (uint f = 0u; f < FETCH_A; f++) {
                const uint g = f * 256u + THREAD;
                if (g < BM * BK / 4u) {
                    PLACE(tile_a, side, !A_TRANSPOSED, BM, g, fetched_a[f])
                }
            }
            UNROLL for (uint f = 0u; f < FETCH_B; f++) {
                const uint g = f * 256u + THREAD;
                if (g < BN * BK / 4u) {
                    PLACE(tile_b, side, B_TRANSPOSED, BN, g, fetched_b[f])
                }
            }
        }
        BARRIER;
    }

    UNROLL for (uint j = 0u; j < RN; j++) {
        const uint column = n0 + (tx + 16u * j) * 4u;
        if (column < n) {
            vec4 add = zero;
            if (HAS_BIAS) {
                add.x = LOAD(f32, bias, column);
                if (column + 1u < n) add.y = LOAD(f32, bias, column + 1u);
                if (column + 2u < n) add.z = LOAD(f32, bias, column + 2u);
                if (column + 3u < n) add.w = LOAD(f32, bias, column + 3u);
            }
            UNROLL for (uint r = 0u; r < 4u * RM; r++) {
                const uint row = m0 + (ty + r / 4u * 16u) * 4u + r % 4u;
                if (row < m) {
                    vec4 v = acc[r * RN + j];
                    if (IN_PARTS) {
                        const vec4 w = whole[r * RN + j];
                        v = VEC4(v.x + w.x, v.y + w.y, v.z + w.z, v.w + w.w);
                    }
                    if (HAS_BIAS) v = VEC4(v.x + add.x, v.y + add.y, v.z + add.z, v.w + add.w);
                    v = VEC4(activated(v.x), activated(v.y), activated(v.z), activated(v.w));
                    const uint at = row * n + column;
                    if (C_QUADS) {
                        STORE4(TA, pc, at / 4u, v);
                    } else {
                        STORE(TA, pc, at, v.x);
                        if (column + 1u < n) STORE(TA, pc, at + 1u, v.y);
                        if (column + 2u < n) STORE(TA, pc, at + 2u, v.z);
                        if (column + 3u < n) STORE(TA, pc, at + 3u, v.w);
                    }
                }
            }
        }
    }
}
