// C = act(op(A) op(B) + bias) for halves (T: f16 or bf16) by matrix instructions: products are exact, sums are f32.
// Requires: k is BK at least, what A and B have in a row is a multiple of eight, and they begin at multiples of 16 bytes.
// TILE names the sides of a tile, BM and BN, and WR and WC, the rows and columns of warps that share it. A slice of BK
// terms lies in shared memory as it does in A and B, with 16 bytes of padding in each row, which keeps eight rows in
// different banks; the next slice waits in registers meanwhile. A second slice in shared memory would save a barrier, but
// then a multiprocessor had room for fewer workgroups. There is no branch between two loads: beyond the edges of A and B
// the last rows and columns are read again, and the last slice begins so early that it ends with the sum; what it has of
// the slice before becomes zero. A_TRANSPOSED, B_TRANSPOSED, ACTIVATION, BIAS, C_QUADS, WIDE: see mma_tile.h.
#define TA T
#define TB T
#define MATRIX T
#define BM RLX_JOIN(BM_, TILE)
#define BN RLX_JOIN(BN_, TILE)
#define WR RLX_JOIN(WR_, TILE)
#define WC RLX_JOIN(WC_, TILE)
#define BK RLX_JOIN(BK_, TILE)
#define BM_m 128u
#define BN_m 128u
#define BK_m 32u
#define WR_m 2u
#define WC_m 2u
#define BM_l 128u
#define BN_l 256u
#define BK_l 48u
#define WR_l 2u
#define WC_l 4u
#define THREADS (32u * WR * WC)
// The 16 x 16 matrices of a warp's part of the tile.
#define FM (BM / (16u * WR))
#define FN (BN / (16u * WC))
// A unit is sixteen bytes: those of a row of a slice, and the distance of rows in shared memory.
#define ACROSS_A (A_TRANSPOSED ? BM / 8u : BK / 8u)
#define ACROSS_B (B_TRANSPOSED ? BK / 8u : BN / 8u)
#define ROW_A (ACROSS_A + 1u)
#define ROW_B (ACROSS_B + 1u)
#define PLANE_A ((A_TRANSPOSED ? BK : BM) * ROW_A)
#define SLICE (PLANE_A + (B_TRANSPOSED ? BN : BK) * ROW_B)
#define LOADS_A (BM * BK / (8u * THREADS))  // units of a slice for each thread
#define LOADS_B (BN * BK / (8u * THREADS))
#define ROW_C (FN * 4u + 1u)
#define STAGE (16u * ROW_C)

#include "matmul_out.h"
#include "stream.h"
#ifdef RLX_GLSL
#define ROLLED [[dont_unroll]]
#else
#define ROLLED _Pragma("unroll 1")
#endif

SHARED uvec4 units[SLICE > WR * WC * STAGE ? SLICE : WR * WC * STAGE];

// The row and the unit of a thread's load f in a slice.
#define ROW_OF(f, ACROSS) (((f) * THREADS + THREAD) / ACROSS)
#define UNIT_OF(f, ACROSS) (((f) * THREADS + THREAD) % ACROSS)
// The unit in A (B) of load f of the slice from term 0 on: in this row where k is the last axis, else among columns from
// `first` on, of which there are `extent`.
#define PLACE_OF(ALONG_K, row, f, ACROSS, first, extent)                                                     \
    ((ALONG_K) ? (row) * (k / 8u) + UNIT_OF(f, ACROSS)                                                       \
               : ROW_OF(f, ACROSS) * (extent / 8u) + least(first / 8u + UNIT_OF(f, ACROSS), extent / 8u - 1u))
#define ROW_OF_A(f) least(m0 + ROW_OF(f, ACROSS_A), m - 1u)
#define ROW_OF_B(f) least(n0 + ROW_OF(f, ACROSS_B), n - 1u)
// Loads the slice from term t on, or the last one.
#define LOAD_SLICE(t)                                                                                        \
    {                                                                                                        \
        const uint begin = least(t, k1 - BK);                                                                \
        UNROLL for (uint f = 0u; f < LOADS_A; f++) {                                                         \
            held_a[f] = LOAD_UNIT(a, place_a[f] + (A_TRANSPOSED ? begin * (m / 8u) : begin / 8u));           \
        }                                                                                                    \
        UNROLL for (uint f = 0u; f < LOADS_B; f++) {                                                         \
            held_b[f] = LOAD_UNIT(b, place_b[f] + (B_TRANSPOSED ? begin / 8u : begin * (n / 8u)));           \
        }                                                                                                    \
    }
// Stores the slice from term t on in shared memory.
#define STORE_SLICE(t)                                                                                       \
    if ((t) + BK > k1) {                                                                                     \
        const uint before = (t) + BK - k1;                                                                   \
        UNROLL for (uint f = 0u; f < LOADS_A; f++) {                                                         \
            if ((A_TRANSPOSED ? ROW_OF(f, ACROSS_A) : UNIT_OF(f, ACROSS_A) * 8u) < before) held_a[f] = zero; \
        }                                                                                                    \
        UNROLL for (uint f = 0u; f < LOADS_B; f++) {                                                         \
            if ((B_TRANSPOSED ? UNIT_OF(f, ACROSS_B) * 8u : ROW_OF(f, ACROSS_B)) < before) held_b[f] = zero; \
        }                                                                                                    \
    }                                                                                                        \
    UNROLL for (uint f = 0u; f < LOADS_A; f++) {                                                             \
        units[ROW_OF(f, ACROSS_A) * ROW_A + UNIT_OF(f, ACROSS_A)] = held_a[f];                               \
    }                                                                                                        \
    UNROLL for (uint f = 0u; f < LOADS_B; f++) {                                                             \
        units[PLANE_A + ROW_OF(f, ACROSS_B) * ROW_B + UNIT_OF(f, ACROSS_B)] = held_b[f];                     \
    }
#define MULTIPLY_SLICE                                                                                       \
    UNROLL for (uint kk = 0u; kk < BK / 16u; kk++) {                                                         \
        MATRIX_B mb[FN];                                                                                     \
        UNROLL for (uint j = 0u; j < FN; j++) {                                                              \
            const uint at = PLANE_A + (B_TRANSPOSED ? (wn + j * 16u) * ROW_B + kk * 2u                       \
                                                    : kk * 16u * ROW_B + (wn + j * 16u) / 8u);               \
            LOAD_B(mb[j], at, ROW_B, B_TRANSPOSED)                                                           \
        }                                                                                                    \
        UNROLL for (uint i = 0u; i < FM; i++) {                                                              \
            MATRIX_A ma;                                                                                     \
            const uint at = A_TRANSPOSED ? kk * 16u * ROW_A + (wm + i * 16u) / 8u                            \
                                         : (wm + i * 16u) * ROW_A + kk * 2u;                                 \
            LOAD_A(ma, at, ROW_A, A_TRANSPOSED)                                                              \
            UNROLL for (uint j = 0u; j < FN; j++) {                                                          \
                MULTIPLY(acc[i * FN + j], ma, mb[j])                                                         \
            }                                                                                                \
        }                                                                                                    \
    }

RLX_FN void product_tile(PTR(T) a, PTR(T) b, PTR(f32) bias, PTR(T) c, const uint m, const uint n, const uint k,
                         const uint k0, const uint k1, const uint m0, const uint n0) {
    const uint wm = WARP / WC * FM * 16u, wn = WARP % WC * FN * 16u;
    const uvec4 zero = UVEC4(0u, 0u, 0u, 0u);
    SUMS acc[FM * FN];
    uvec4 held_a[LOADS_A];
    uvec4 held_b[LOADS_B];
    UNROLL for (uint i = 0u; i < FM * FN; i++) SUMS_ZERO(acc[i])
    uint place_a[LOADS_A];
    uint place_b[LOADS_B];
    UNROLL for (uint f = 0u; f < LOADS_A; f++) place_a[f] = PLACE_OF(!A_TRANSPOSED, ROW_OF_A(f), f, ACROSS_A, m0, m);
    UNROLL for (uint f = 0u; f < LOADS_B; f++) place_b[f] = PLACE_OF(B_TRANSPOSED, ROW_OF_B(f), f, ACROSS_B, n0, n);
    LOAD_SLICE(k0)
    ROLLED for (uint t = k0; t < k1; t += BK) {
        STORE_SLICE(t)
        BARRIER;
        LOAD_SLICE(t + BK)
        MULTIPLY_SLICE
        BARRIER;
    }
    const uint stage = WARP * STAGE;
    UNROLL for (uint i = 0u; i < FM; i++) {
        UNROLL for (uint j = 0u; j < FN; j++) STORE_SUMS(acc[i * FN + j], stage + j * 4u, ROW_C)
        SYNC_WARP;
        UNROLL for (uint e = 0u; e < FN * 2u; e++) {
            const uint q = e * 32u + LANE;
            const uint row = m0 + wm + i * 16u + q / (FN * 4u), column = n0 + wn + q % (FN * 4u) * 4u;
            if (row < m && column < n) {
                const uvec4 w = units[stage + q / (FN * 4u) * ROW_C + q % (FN * 4u)];
                const vec4 v = VEC4(RLX_FLOAT(w.x), RLX_FLOAT(w.y), RLX_FLOAT(w.z), RLX_FLOAT(w.w));
                put_quad(c, v, bias_quad(bias, column, n), row, column, n);
            }
        }
        SYNC_WARP;
    }
}

#include "matmul_batch.h"
