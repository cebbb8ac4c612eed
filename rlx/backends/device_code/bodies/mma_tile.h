// product_tile computes BM x BN elements of C = act(op(A) op(B) + bias) from (m0, n0) on, summed over k0 <= k < k1, by
// matrix instructions on 16 x 16 matrices of MATRIX (f16 or bf16): products are exact, sums are f32. TILE names the
// sizes BM and BN. ABM names the storage dtypes of A and of B, and MATRIX; C is stored as A is, the bias in f32.
// A_TRANSPOSED, B_TRANSPOSED: A, B are stored transposed. ACTIVATION, BIAS: as in matmul_tile.h. A_OCTETS, B_OCTETS: A,
// B may be read eight elements at a time. C_QUADS: C may be written four at a time. IN_PARTS: after every slice the
// sums are added up in f32. WIDE: C is f32 whatever A is. BK: the depth of a slice along k, 16 or 32. SIDES: the number
// of slices in shared memory, 1 or 2.
// TERMS_A, TERMS_B: the number of terms of type MATRIX whose sum is an element of A, of B, each the rounded remainder
// of those before. Terms i of A and j of B are multiplied where i + j < max(TERMS_A, TERMS_B): with three terms of bf16
// each, the products left out are below the last place of an f32.
// Eight warps compute a tile, each FM x FN matrices. A slice is stored in shared memory as it is in global memory, with
// 16 bytes of padding in each row, which keeps eight rows in different banks.
// Results that are not finite after operands were rounded are computed again, term by term, from the operands
// themselves: an operand may exceed the range of MATRIX, or the remainder of an infinity may be NaN.
#define A_f32_f32_f16 f32
#define A_f32_f32_bf16 f32
#define A_f32_f16_f16 f32
#define A_f32_f16_bf16 f32
#define A_f32_bf16_bf16 f32
#define A_f16_f16_f16 f16
#define A_bf16_bf16_bf16 bf16
#define B_f32_f32_f16 f32
#define B_f32_f32_bf16 f32
#define B_f32_f16_f16 f16
#define B_f32_f16_bf16 f16
#define B_f32_bf16_bf16 bf16
#define B_f16_f16_f16 f16
#define B_bf16_bf16_bf16 bf16
#define M_f32_f32_f16 f16
#define M_f32_f32_bf16 bf16
#define M_f32_f16_f16 f16
#define M_f32_f16_bf16 bf16
#define M_f32_bf16_bf16 bf16
#define M_f16_f16_f16 f16
#define M_bf16_bf16_bf16 bf16
// The largest number of terms of an operand: 1 where MATRIX is f16, whose range is small, or where the operand is
// stored as MATRIX and copied unchanged.
#define MOST_A_f32_f32_f16 1u
#define MOST_A_f32_f32_bf16 3u
#define MOST_A_f32_f16_f16 1u
#define MOST_A_f32_f16_bf16 3u
#define MOST_A_f32_bf16_bf16 3u
#define MOST_A_f16_f16_f16 1u
#define MOST_A_bf16_bf16_bf16 1u
#define MOST_B_f32_f32_f16 1u
#define MOST_B_f32_f32_bf16 3u
#define MOST_B_f32_f16_f16 1u
#define MOST_B_f32_f16_bf16 2u
#define MOST_B_f32_bf16_bf16 1u
#define MOST_B_f16_f16_f16 1u
#define MOST_B_bf16_bf16_bf16 1u
#define KIND_A_f32_f32_f16 split
#define KIND_A_f32_f32_bf16 split
#define KIND_A_f32_f16_f16 split
#define KIND_A_f32_f16_bf16 split
#define KIND_A_f32_bf16_bf16 split
#define KIND_A_f16_f16_f16 copy
#define KIND_A_bf16_bf16_bf16 copy
#define KIND_B_f32_f32_f16 split
#define KIND_B_f32_f32_bf16 split
#define KIND_B_f32_f16_f16 copy
#define KIND_B_f32_f16_bf16 split
#define KIND_B_f32_bf16_bf16 copy
#define KIND_B_f16_f16_f16 copy
#define KIND_B_bf16_bf16_bf16 copy
#define TA RLX_JOIN(A_, ABM)
#define TB RLX_JOIN(B_, ABM)
#define MATRIX RLX_JOIN(M_, ABM)
#define MOST_A RLX_JOIN(MOST_A_, ABM)
#define MOST_B RLX_JOIN(MOST_B_, ABM)
#define KIND_A RLX_JOIN(KIND_A_, ABM)
#define KIND_B RLX_JOIN(KIND_B_, ABM)

#define BM_s 64u
#define BN_s 64u
#define BM_m 128u
#define BN_m 128u
#define BM_l 128u
#define BN_l 256u
#define BM RLX_JOIN(BM_, TILE)
#define BN RLX_JOIN(BN_, TILE)
// Warps lie in two rows of four.
#define FM (BM / 32u)
#define FN (BN / 64u)
#define TERMS (TERMS_A > TERMS_B ? TERMS_A : TERMS_B)
// A unit is sixteen bytes. The rows of a slice in shared memory, the units of a row, of a plane (there is one for each
// term), and of a whole slice.
#define ROW_A (A_TRANSPOSED ? BM / 8u + 1u : BK / 8u + 1u)
#define ROW_B (B_TRANSPOSED ? BK / 8u + 1u : BN / 8u + 1u)
#define PLANE_A ((A_TRANSPOSED ? BK : BM) * ROW_A)
#define PLANE_B ((B_TRANSPOSED ? BN : BK) * ROW_B)
#define SIDE (TERMS_A * PLANE_A + TERMS_B * PLANE_B)
#define FETCH_A (BM / 64u)  // octets of a slice of 32 along k that a thread fetches
#define FETCH_B (BN / 64u)
#define ROW_C (FN * 4u + 1u)
#define STAGE (8u * 16u * ROW_C)

#include "matmul_out.h"

SHARED uvec4 units[SIDES * SIDE > STAGE ? SIDES * SIDE : STAGE];

// NAME(p, r, c, rows, columns, pitch): eight neighbours of a matrix from (r, c) on, zero outside it, as registers hold
// them until they are stored in shared memory. `copy`: of an operand stored as MATRIX. `split`: of any other.
#define HELD_copy uvec4
#define HELD_split RLX_EIGHT
#define RLX_OCTET_split(NAME, S, ALIGNED)                                                                \
    RLX_QUAD(NAME##_quad, S, ALIGNED)                                                                 \
    RLX_FN RLX_EIGHT NAME(PTR(S) p, const uint r, const uint c, const uint rows, const uint columns,     \
                          const uint pitch) {                                                            \
        RLX_EIGHT v;                                                                                     \
        v.lo = NAME##_quad(p, r, c, rows, columns, pitch);                                               \
        v.hi = NAME##_quad(p, r, c + 4u, rows, columns, pitch);                                          \
        return v;                                                                                        \
    }
#define RLX_OCTET_copy(NAME, S, ALIGNED)                                                                      \
    RLX_FN uvec4 NAME(PTR(S) p, const uint r, const uint c, const uint rows, const uint columns,         \
                      const uint pitch) {                                                                \
        uvec4 v = UVEC4(0u, 0u, 0u, 0u);                                                                 \
        if (r >= rows || c >= columns) return v;                                                         \
        const uint i = r * pitch + c, last = columns - c;                                                \
        if (ALIGNED) return LOAD_UNIT(p, i / 8u);                                                        \
        v.x = uint(p AT(i));                                                                             \
        if (last > 1u) v.x |= uint(p AT(i + 1u)) << 16;                                                  \
        if (last > 2u) v.y = uint(p AT(i + 2u));                                                         \
        if (last > 3u) v.y |= uint(p AT(i + 3u)) << 16;                                                  \
        if (last > 4u) v.z = uint(p AT(i + 4u));                                                         \
        if (last > 5u) v.z |= uint(p AT(i + 5u)) << 16;                                                  \
        if (last > 6u) v.w = uint(p AT(i + 6u));                                                         \
        if (last > 7u) v.w |= uint(p AT(i + 7u)) << 16;                                                  \
        return v;                                                                                        \
    }

// The first element of octet f of the slice from t on: octets lie along k where k is the last axis, else along the
// other axis.
#define ROW_OF(ALONG_K, EXTENT, first, t, f) ((ALONG_K) ? first + (f) / (BK / 8u) : t + (f) / (EXTENT / 8u))
#define COLUMN_OF(ALONG_K, EXTENT, first, t, f) ((ALONG_K) ? t + (f) % (BK / 8u) * 8u : first + (f) % (EXTENT / 8u) * 8u)
#define UNIT_OF(ALONG_K, EXTENT, ROW, f)                                                                 \
    ((ALONG_K) ? (f) / (BK / 8u) * (ROW) + (f) % (BK / 8u) : (f) / (EXTENT / 8u) * (ROW) + (f) % (EXTENT / 8u))

RLX_JOIN(RLX_OCTET_, KIND_A)(octet_a, TA, A_OCTETS)
RLX_JOIN(RLX_OCTET_, KIND_B)(octet_b, TB, B_OCTETS)

// Fetches octet f of the slice from t on into registers; with ASYNC into shared memory at once.
#define FETCH(HELD, OCTET, P, ASYNC, ALONG_K, EXTENT, ROW, BASE, first, t, rows, pitch, f)           \
    {                                                                                                        \
        const uint r = ROW_OF(ALONG_K, EXTENT, first, t, f), q = COLUMN_OF(ALONG_K, EXTENT, first, t, f);    \
        const uint rs = (ALONG_K) ? rows : k1, qs = (ALONG_K) ? k1 : rows, ld = (ALONG_K) ? pitch : rows;    \
        if ((ASYNC) && r < rs && q < qs) {                                                                   \
            COPY_UNIT((BASE) + UNIT_OF(ALONG_K, EXTENT, ROW, f), P, (r * ld + q) / 8u)                       \
        } else if (ASYNC) {                                                                                  \
            units[(BASE) + UNIT_OF(ALONG_K, EXTENT, ROW, f)] = UVEC4(0u, 0u, 0u, 0u);                        \
        } else {                                                                                             \
            HELD = OCTET(P, r, q, rs, qs, ld);                                                               \
        }                                                                                                    \
    }
// Stores a fetched octet, or the terms it is split into, in shared memory.
#define PLACE_copy(HELD, MOST, TERMS_, PLANE, AT_) units[AT_] = HELD;
#define PLACE_split(HELD, MOST, TERMS_, PLANE, AT_)                                                           \
    UNROLL for (uint i = 0u; i < MOST; i++) {                                                          \
        if (i < TERMS_) {                                                                                    \
            const uvec4 w = UVEC4(pair_bits(HELD.lo.x, HELD.lo.y), pair_bits(HELD.lo.z, HELD.lo.w),          \
                                  pair_bits(HELD.hi.x, HELD.hi.y), pair_bits(HELD.hi.z, HELD.hi.w));         \
            units[(AT_) + i * (PLANE)] = w;                                                                  \
            if (i + 1u < TERMS_) {                                                                           \
                REST(HELD.lo, w.x, w.y)                                                                      \
                REST(HELD.hi, w.z, w.w)                                                                      \
            }                                                                                                \
        }                                                                                                    \
    }
#define REST(v, xy, zw)                                                                                      \
    v.x -= low_value(xy);                                                                                    \
    v.y -= high_value(xy);                                                                                   \
    v.z -= low_value(zw);                                                                                    \
    v.w -= high_value(zw);
#define IS_copy 1u
#define IS_split 0u
// Written as products because glslang evaluates && of these constants wrongly.
#define ASYNC_A (MMA_ASYNC * RLX_JOIN(IS_, KIND_A) * UINT(A_OCTETS) * (SIDES / 2u) != 0u)
#define ASYNC_B (MMA_ASYNC * RLX_JOIN(IS_, KIND_B) * UINT(B_OCTETS) * (SIDES / 2u) != 0u)
#define ROUNDED (RLX_JOIN(IS_, KIND_A) * RLX_JOIN(IS_, KIND_B) == 0u)

// Computes the element of C in this row and column again, in f32. This is rarely called.
RLX_FN float plain(PTR(TA) a, PTR(TB) b, const uint m, const uint n, const uint k, const uint k0, const uint k1,
                   const uint row, const uint column) {
    float sum = 0.0f;
    for (uint t = k0; t < k1; t++) {
        const float x = LOAD(TA, a, A_TRANSPOSED ? t * m + row : row * k + t);
        const float y = LOAD(TB, b, B_TRANSPOSED ? column * k + t : t * n + column);
        sum = FMA(x, y, sum);
    }
    return sum;
}
#define AGAIN(x, column) \
    if ((RLX_BITS(x) & 0x7f800000u) == 0x7f800000u && (column) < n) x = plain(a, b, m, n, k, k0, k1, row, column);

RLX_FN void product_tile(PTR(TA) a, PTR(TB) b, PTR(f32) bias, PTR(TA) c, const uint m, const uint n, const uint k,
                         const uint k0, const uint k1, const uint m0, const uint n0) {
    const uint wm = WARP / 4u * FM * 16u, wn = WARP % 4u * FN * 16u;
    SUMS acc[FM * FN];
    SUMS whole[FM * FN];
    RLX_JOIN(HELD_, KIND_A) held_a[FETCH_A];
    RLX_JOIN(HELD_, KIND_B) held_b[FETCH_B];
    UNROLL for (uint i = 0u; i < FM * FN; i++) {
        SUMS_ZERO(acc[i])
        SUMS_ZERO(whole[i])
    }
    uint side = 0u;
    // The first round only fetches; every other round multiplies what the round before has fetched.
    for (uint t = k0; t < k1 + BK; t += BK) {
        const bool first = t == k0, more = t < k1;
        const uint next = first || SIDES == 1u ? 0u : 1u - side;
        if (more) {
            UNROLL for (uint f = 0u; f < FETCH_A; f++) {
                const uint g = f * 256u + THREAD;
                if (g < BM * BK / 8u) {
                    FETCH(held_a[f], octet_a, a, ASYNC_A, !A_TRANSPOSED, BM, ROW_A, next * SIDE, m0, t, m, k, g)
                }
            }
            UNROLL for (uint f = 0u; f < FETCH_B; f++) {
                const uint g = f * 256u + THREAD;
                if (g < BN * BK / 8u) {
                    FETCH(held_b[f], octet_b, b, ASYNC_B, B_TRANSPOSED, BN, ROW_B,
                               next * SIDE + TERMS_A * PLANE_A, n0, t, n, k, g)
                }
            }
        }
        if (!first) {
            const uint slice_a = side * SIDE, slice_b = side * SIDE + TERMS_A * PLANE_A;
            UNROLL for (uint kk = 0u; kk < 2u; kk++) {
                if (kk * 16u < BK) {
                    MATRIX_B mb[FN * MOST_B];
                    UNROLL for (uint j = 0u; j < FN; j++) {
                        UNROLL for (uint q = 0u; q < MOST_B; q++) {
                            if (q < TERMS_B) {
                                const uint at = slice_b + q * PLANE_B +
                                                (B_TRANSPOSED ? (wn + j * 16u) * ROW_B + kk * 2u
                                                              : kk * 16u * ROW_B + (wn + j * 16u) / 8u);
                                LOAD_B(mb[j * MOST_B + q], at, ROW_B, B_TRANSPOSED)
                            }
                        }
                    }
                    UNROLL for (uint i = 0u; i < FM; i++) {
                        // Small terms first.
                        UNROLL for (uint back = 0u; back < MOST_A; back++) {
                            const uint p = MOST_A - 1u - back;
                            if (p < TERMS_A) {
                                MATRIX_A ma;
                                const uint at = slice_a + p * PLANE_A +
                                                (A_TRANSPOSED ? kk * 16u * ROW_A + (wm + i * 16u) / 8u
                                                              : (wm + i * 16u) * ROW_A + kk * 2u);
                                LOAD_A(ma, at, ROW_A, A_TRANSPOSED)
                                UNROLL for (uint j = 0u; j < FN; j++) {
                                    UNROLL for (uint r = 0u; r < MOST_B; r++) {
                                        const uint q = MOST_B - 1u - r;
                                        if (q < TERMS_B && p + q < TERMS) {
                                            MULTIPLY(acc[i * FN + j], ma, mb[j * MOST_B + q])
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            }
            if (IN_PARTS) {
                UNROLL for (uint i = 0u; i < FM * FN; i++) {
                    SUMS_ADD(whole[i], acc[i])
                    SUMS_ZERO(acc[i])
                }
            }
        }
        if (SIDES == 1u) BARRIER;
        if (more) {
            UNROLL for (uint f = 0u; f < FETCH_A; f++) {
                const uint g = f * 256u + THREAD;
                if (g < BM * BK / 8u) {
                    const uint at = next * SIDE + UNIT_OF(!A_TRANSPOSED, BM, ROW_A, g);
                    if (!ASYNC_A) {
                        RLX_JOIN(PLACE_, KIND_A)(held_a[f], MOST_A, TERMS_A, PLANE_A, at)
                    }
                }
            }
            UNROLL for (uint f = 0u; f < FETCH_B; f++) {
                const uint g = f * 256u + THREAD;
                if (g < BN * BK / 8u) {
                    const uint at = next * SIDE + TERMS_A * PLANE_A + UNIT_OF(B_TRANSPOSED, BN, ROW_B, g);
                    if (!ASYNC_B) {
                        RLX_JOIN(PLACE_, KIND_B)(held_b[f], MOST_B, TERMS_B, PLANE_B, at)
                    }
                }
            }
        }
        COPIES_DONE
        BARRIER;
        side = next;
    }

    const uint stage = WARP * 16u * ROW_C;
    UNROLL for (uint i = 0u; i < FM; i++) {
        UNROLL for (uint j = 0u; j < FN; j++) {
            if (IN_PARTS) {
                STORE_SUMS(whole[i * FN + j], stage + j * 4u, ROW_C)
            } else {
                STORE_SUMS(acc[i * FN + j], stage + j * 4u, ROW_C)
            }
        }
        BARRIER;
        UNROLL for (uint e = 0u; e < FN * 2u; e++) {
            const uint q = e * 32u + LANE;
            const uint row = m0 + wm + i * 16u + q / (FN * 4u), column = n0 + wn + q % (FN * 4u) * 4u;
            if (row < m && column < n) {
                const uvec4 w = units[stage + q / (FN * 4u) * ROW_C + q % (FN * 4u)];
                vec4 v = VEC4(RLX_FLOAT(w.x), RLX_FLOAT(w.y), RLX_FLOAT(w.z), RLX_FLOAT(w.w));
                if (ROUNDED) {
                    AGAIN(v.x, column)
                    AGAIN(v.y, column + 1u)
                    AGAIN(v.z, column + 2u)
                    AGAIN(v.w, column + 3u)
                }
                put_quad(c, v, bias_quad(bias, column, n), row, column, n);
            }
        }
        BARRIER;
    }
}
