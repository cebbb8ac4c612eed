// product_tile: BM x BN elements of C = act(op(A) op(B) + bias) from (m0, n0) on, summed over k0 <= k < k1, by 256
// threads with fused multiply-adds. TILE names the tile's sides: loops have bounds that every compiler can unroll.
// A_TRANSPOSED, B_TRANSPOSED: A, B are stored transposed; ACTIVATION (0 none, 1 relu, 2 gelu, 3 gelu by tanh, 4 silu, 5
// tanh, 6 sigmoid); BIAS: see bias.h; A_QUADS, B_QUADS, C_QUADS: A, B, C may be read, read, written four at a time;
// IN_PARTS: sums of more than 1024 terms are made of sums of 1024; WIDE: C is f32 whatever A is. AB names the storage
// of A and B; C is stored as A is; bias is f32. A thread owns quads of rows and columns 64 apart. Slices of eight along
// k go through two shared buffers: while one is used, the next slice is on its way in registers. A row of a shared
// slice has a quad to spare: it keeps the banks of four rows apart when a quad along k is put into them.
#include "pair.h"
#define BM_s 64u
#define BN_s 64u
#define BM_t 128u
#define BN_t 64u
#define BM_w 64u
#define BN_w 128u
#define BM_l 128u
#define BN_l 128u
#define BM RLX_JOIN(BM_, TILE)
#define BN RLX_JOIN(BN_, TILE)
#define BK 8u
#define RM (BM / 64u)
#define RN (BN / 64u)
#define FETCH_A ((BM * BK / 4u + 255u) / 256u)
#define FETCH_B ((BN * BK / 4u + 255u) / 256u)
#define ROW_A (BM / 4u + 1u)
#define ROW_B (BN / 4u + 1u)

#include "matmul_out.h"

SHARED vec4 tile_a[2u * BK * ROW_A];  // [side][k][row / 4]
SHARED vec4 tile_b[2u * BK * ROW_B];

RLX_QUAD(quad_a, TA, A_QUADS)
RLX_QUAD(quad_b, TB, B_QUADS)

// Quad number f of the slice from t on: along k in rows of the matrix (one that has k last), or along the extent.
// EXTENT and `first` are the tile's side and start, `rows` the matrix's side, `pitch` what a row of a matrix that has k
// last holds.
#define FETCH(QUAD, P, ALONG_K, EXTENT, first, t, rows, pitch, f)                                          \
    ((ALONG_K) ? QUAD(P, first + (f) / (BK / 4u), t + (f) % (BK / 4u) * 4u, rows, k1, pitch)               \
               : QUAD(P, t + (f) / (EXTENT / 4u), first + (f) % (EXTENT / 4u) * 4u, k1, rows, rows))

// Puts a quad fetched along k into four rows of the shared slice, or one fetched along the extent into one.
#define PLACE(TILE_, BUFFER, ALONG_K, EXTENT, ROW, f, v)                                          \
    if (ALONG_K) {                                                                                \
        const uint at = ((BUFFER) * BK + (f) % (BK / 4u) * 4u) * (ROW), e = (f) / (BK / 4u);      \
        SET4(TILE_[at + e / 4u], e % 4u, v.x);                                                    \
        SET4(TILE_[at + (ROW) + e / 4u], e % 4u, v.y);                                            \
        SET4(TILE_[at + 2u * (ROW) + e / 4u], e % 4u, v.z);                                       \
        SET4(TILE_[at + 3u * (ROW) + e / 4u], e % 4u, v.w);                                       \
    } else {                                                                                      \
        TILE_[((BUFFER) * BK + (f) / (EXTENT / 4u)) * (ROW) + (f) % (EXTENT / 4u)] = v;           \
    }

RLX_FN void product_tile(PTR(TA) a, PTR(TB) b, PTR(f32) bias, PTR(TA) c, const uint m, const uint n, const uint k,
                         const uint k0, const uint k1, const uint m0, const uint n0) {
    // A warp makes 4 x 8 of the 16 x 16 places: what its threads read of B's slice is as wide as the banks.
    const uint ty = THREAD / 64u * 4u + THREAD % 32u / 8u, tx = THREAD / 32u % 2u * 8u + THREAD % 8u;
    vec4 acc[4u * RM * RN], whole[4u * RM * RN];
    vec4 fetched_a[FETCH_A], fetched_b[FETCH_B];
    const vec4 zero = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    UNROLL for (uint i = 0u; i < 4u * RM * RN; i++) acc[i] = zero;
    UNROLL for (uint i = 0u; i < 4u * RM * RN; i++) whole[i] = zero;

    UNROLL for (uint f = 0u; f < FETCH_A; f++) {
        const uint g = f * 256u + THREAD;
        if (g < BM * BK / 4u) {
            const vec4 v = FETCH(quad_a, a, !A_TRANSPOSED, BM, m0, k0, m, k, g);
            PLACE(tile_a, 0u, !A_TRANSPOSED, BM, ROW_A, g, v)
        }
    }
    UNROLL for (uint f = 0u; f < FETCH_B; f++) {
        const uint g = f * 256u + THREAD;
        if (g < BN * BK / 4u) {
            const vec4 v = FETCH(quad_b, b, B_TRANSPOSED, BN, n0, k0, n, k, g);
            PLACE(tile_b, 0u, B_TRANSPOSED, BN, ROW_B, g, v)
        }
    }
    BARRIER;
    uint side = 0u;
    for (uint t = k0; t < k1; t += BK) {
        const bool more = t + BK < k1;
        if (more) {
            UNROLL for (uint f = 0u; f < FETCH_A; f++) {
                const uint g = f * 256u + THREAD;
                if (g < BM * BK / 4u) fetched_a[f] = FETCH(quad_a, a, !A_TRANSPOSED, BM, m0, t + BK, m, k, g);
            }
            UNROLL for (uint f = 0u; f < FETCH_B; f++) {
                const uint g = f * 256u + THREAD;
                if (g < BN * BK / 4u) fetched_b[f] = FETCH(quad_b, b, B_TRANSPOSED, BN, n0, t + BK, n, k, g);
            }
        }
        UNROLL for (uint kk = 0u; kk < BK; kk++) {
            vec4 ra[RM], rb[RN];
            UNROLL for (uint i = 0u; i < RM; i++) ra[i] = tile_a[(side * BK + kk) * ROW_A + ty + 16u * i];
            UNROLL for (uint j = 0u; j < RN; j++) rb[j] = tile_b[(side * BK + kk) * ROW_B + tx + 16u * j];
            UNROLL for (uint i = 0u; i < RM; i++) {
                UNROLL for (uint j = 0u; j < RN; j++) {
                    FMA_QUAD(acc[(i * 4u + 0u) * RN + j], ra[i].x, rb[j])
                    FMA_QUAD(acc[(i * 4u + 1u) * RN + j], ra[i].y, rb[j])
                    FMA_QUAD(acc[(i * 4u + 2u) * RN + j], ra[i].z, rb[j])
                    FMA_QUAD(acc[(i * 4u + 3u) * RN + j], ra[i].w, rb[j])
                }
            }
        }
        if (IN_PARTS) {
            if (((t - k0) / BK & 127u) == 127u) {
                UNROLL for (uint i = 0u; i < 4u * RM * RN; i++) {
                    ADD_QUAD(whole[i], acc[i])
                    acc[i] = zero;
                }
            }
        }
        side = 1u - side;
        if (more) {
            UNROLL for (uint f = 0u; f < FETCH_A; f++) {
                const uint g = f * 256u + THREAD;
                if (g < BM * BK / 4u) {
                    PLACE(tile_a, side, !A_TRANSPOSED, BM, ROW_A, g, fetched_a[f])
                }
            }
            UNROLL for (uint f = 0u; f < FETCH_B; f++) {
                const uint g = f * 256u + THREAD;
                if (g < BN * BK / 4u) {
                    PLACE(tile_b, side, B_TRANSPOSED, BN, ROW_B, g, fetched_b[f])
                }
            }
        }
        BARRIER;
    }

    UNROLL for (uint j = 0u; j < RN; j++) {
        const uint column = n0 + (tx + 16u * j) * 4u;
        if (column < n) {
            const vec4 add = bias_quad(bias, column, n);
            UNROLL for (uint r = 0u; r < 4u * RM; r++) {
                const uint row = m0 + (ty + r / 4u * 16u) * 4u + r % 4u;
                if (row < m) {
                    vec4 v = acc[r * RN + j];
                    if (IN_PARTS) ADD_QUAD(v, whole[r * RN + j])
                    put_quad(c, v, add, row, column, n);
                }
            }
        }
    }
}
