// C = act(A op(B) + bias) for few rows of halves (T: f16 or bf16) by matrix instructions. Reading B should determine the
// time, so that each warp works on its own, without barriers: it loads slabs of B, COLUMNS columns by 1024 / COLUMNS
// terms of the sum, and the same terms of A, puts them into its own part of shared memory and multiplies them there. The
// loads of the next slabs wait in registers meanwhile: of AHEAD slabs of B, rounded to 2 or 4, and of two of A. BESIDE
// warps of a workgroup have adjacent columns. The other warps have the same columns and split the sum; their sums are
// added up at the end, always in the same order. ROWS: rows of A that are read, 4, 8 or 16; the results of further rows
// of the matrices are not stored. A_OCTETS, B_OCTETS: A, B may be read eight elements at a time. B_TRANSPOSED,
// ACTIVATION, BIAS, C_QUADS, WIDE: see mma_tile.h.
#define TA T
#define TB T
#define MATRIX T
#define DEPTH (1024u / COLUMNS)
#define UNITS_K (DEPTH / 8u)
#define UNITS_N (COLUMNS / 8u)
#define STRIDE (DEPTH * (8u / BESIDE))
// A unit is 16 bytes. Each row of a slab has an unused unit, which puts the units of eight rows into different banks.
// Where the matrix instructions read rows of A that do not exist, they read units of B.
#define ROW_A (UNITS_K + 1u)
#define ROW_B (B_TRANSPOSED ? UNITS_K + 1u : UNITS_N + 1u)
#define PLANE_A (ROWS * ROW_A)
#define PLANE_B ((B_TRANSPOSED ? COLUMNS : DEPTH) * ROW_B)
#define SLAB (PLANE_A + PLANE_B)
#define ROW_C (COLUMNS / 4u + 1u)
#define STAGE (16u * ROW_C)
#define UNITS_A (ROWS * UNITS_K > 32u ? ROWS * UNITS_K / 32u : 1u)  // of a slab, for each lane
// The matrix instructions read 16 rows of A.
#define NEEDED (SLAB > 16u * ROW_A ? SLAB : 16u * ROW_A)

#include "matmul_out.h"
#include "stream.h"

#define SETS (AHEAD < 4u ? 2u : 4u)  // slabs of B in registers; of A there are two

SHARED uvec4 units[8u * (SLAB > STAGE ? SLAB : STAGE) + NEEDED - SLAB];

#define UNIT_AT RLX_JOIN(unit_, T)

// The row and the unit of load f of a lane, in a slab of A and in one of B as they are stored.
#define A_ROW(f) (((f) * 32u + LANE) / UNITS_K)
#define A_UNIT(f) (((f) * 32u + LANE) % UNITS_K)
#define B_ROW(f) (((f) * 32u + LANE) / (B_TRANSPOSED ? UNITS_K : UNITS_N))
#define B_UNIT(f) (((f) * 32u + LANE) % (B_TRANSPOSED ? UNITS_K : UNITS_N))
#define AT_A(f) (A_ROW(f) * ROW_A + A_UNIT(f))
#define AT_B(f) (PLANE_A + B_ROW(f) * ROW_B + B_UNIT(f))
// Load the slab that begins with term t. Beyond the edges of the matrices the last rows and columns are read again, and
// the terms there become zero when they are stored in shared memory, so that there is no branch between two loads.
#define FETCH_A(held, t)                                                                                     \
    UNROLL for (uint f = 0u; f < 4u; f++) {                                                                  \
        if (f < UNITS_A) {                                                                                   \
            const uint r = least(A_ROW(f), rows - 1u), q = (t) + A_UNIT(f) * 8u;                             \
            if (A_OCTETS) {                                                                                  \
                held_a[(held) + f] = LOAD_UNIT(a, (r * k + least(q, k1 - 8u)) / 8u);                         \
            } else {                                                                                         \
                held_a[(held) + f] = UNIT_AT(a, r, q, k1, k);                                                \
            }                                                                                                \
        }                                                                                                    \
    }
#define FETCH_B(held, t)                                                                                     \
    UNROLL for (uint f = 0u; f < 4u; f++) {                                                                  \
        if (B_TRANSPOSED) {                                                                                  \
            const uint r = least(n0 + B_ROW(f), n - 1u), q = (t) + B_UNIT(f) * 8u;                           \
            if (B_OCTETS) {                                                                                  \
                held_b[(held) + f] = LOAD_ONCE(b, (r * k + least(q, k1 - 8u)) / 8u);                         \
            } else {                                                                                         \
                held_b[(held) + f] = UNIT_AT(b, r, q, k1, k);                                                \
            }                                                                                                \
        } else {                                                                                             \
            const uint r = least((t) + B_ROW(f), k1 - 1u), q = n0 + B_UNIT(f) * 8u;                          \
            if (B_OCTETS) {                                                                                  \
                held_b[(held) + f] = LOAD_ONCE(b, (r * n + least(q, n - 8u)) / 8u);                          \
            } else {                                                                                         \
                held_b[(held) + f] = UNIT_AT(b, r, q, n, n);                                                 \
            }                                                                                                \
        }                                                                                                    \
    }
#define MULTIPLY_SLAB(slab)                                                                                  \
    UNROLL for (uint kk = 0u; kk < 4u; kk++) {                                                               \
        if (kk * 16u < DEPTH) {                                                                              \
            MATRIX_A ma;                                                                                     \
            LOAD_A(ma, (slab) + kk * 2u, ROW_A, false)                                                       \
            UNROLL for (uint j = 0u; j < 4u; j++) {                                                          \
                if (j * 16u < COLUMNS) {                                                                     \
                    MATRIX_B mb;                                                                             \
                    const uint at = (slab) + PLANE_A + (B_TRANSPOSED ? j * 16u * ROW_B + kk * 2u             \
                                                                     : kk * 16u * ROW_B + j * 2u);           \
                    LOAD_B(mb, at, ROW_B, B_TRANSPOSED)                                                      \
                    MULTIPLY(acc[j], ma, mb)                                                                 \
                }                                                                                            \
            }                                                                                                \
        }                                                                                                    \
    }

RLX_FN void skinny_tile(PTR(T) a, PTR(T) b, PTR(f32) bias, PTR(T) c, const uint rows, const uint n, const uint k,
                        const uint k0, const uint k1, const uint first) {
    const uint n0 = first + WARP % BESIDE * COLUMNS, slab = WARP * SLAB;
    SUMS acc[4];
    UNROLL for (uint j = 0u; j < 4u; j++) SUMS_ZERO(acc[j])
    const uint begin = k0 + WARP / BESIDE * DEPTH;
    const uvec4 zero = UVEC4(0u, 0u, 0u, 0u);
    uvec4 held_a[8];
    uvec4 held_b[16];
    UNROLL for (uint s = 0u; s < 4u; s++) {
        if (s < SETS) {
            if (begin + s * STRIDE < k1) {
                FETCH_B(s * 4u, begin + s * STRIDE)
                if (s < 2u) FETCH_A(s * 4u, begin + s * STRIDE)
            }
        }
    }
    for (uint t = begin; t < k1; t += SETS * STRIDE) {
        UNROLL for (uint s = 0u; s < 4u; s++) {
            const uint here = t + s * STRIDE, set = s % 2u * 4u;
            if (s < SETS) {
                if (here < k1) {
                    if (here + DEPTH > k1) {
                        UNROLL for (uint f = 0u; f < 4u; f++) {
                            if (here + A_UNIT(f) * 8u >= k1) held_a[set + f] = zero;
                            if (here + (B_TRANSPOSED ? B_UNIT(f) * 8u : B_ROW(f)) >= k1) held_b[s * 4u + f] = zero;
                        }
                    }
                    SYNC_WARP;
                    UNROLL for (uint f = 0u; f < 4u; f++) {
                        if (f < UNITS_A && A_ROW(f) < ROWS) units[slab + AT_A(f)] = held_a[set + f];
                        units[slab + AT_B(f)] = held_b[s * 4u + f];
                    }
                    if (here + SETS * STRIDE < k1) FETCH_B(s * 4u, here + SETS * STRIDE)
                    if (here + 2u * STRIDE < k1) FETCH_A(set, here + 2u * STRIDE)
                    SYNC_WARP;
                    MULTIPLY_SLAB(slab)
                }
            }
        }
    }
    BARRIER;
    UNROLL for (uint j = 0u; j < 4u; j++) {
        if (j * 16u < COLUMNS) STORE_SUMS(acc[j], WARP * STAGE + j * 4u, ROW_C)
    }
    BARRIER;
    const uint across = BESIDE * COLUMNS / 4u;
    for (uint i = THREAD; i < rows * across; i += 256u) {
        const uint row = i / across, q = i % across, column = first + q * 4u;
        if (column < n) {
            vec4 v = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
            UNROLL for (uint s = 0u; s < 8u / BESIDE; s++) {
                const uvec4 w = units[(s * BESIDE + q / (COLUMNS / 4u)) * STAGE + row * ROW_C + q % (COLUMNS / 4u)];
                ADD_QUAD(v, VEC4(RLX_FLOAT(w.x), RLX_FLOAT(w.y), RLX_FLOAT(w.z), RLX_FLOAT(w.w)))
            }
            put_quad(c, v, bias_quad(bias, column, n), row, column, n);
        }
    }
}

RLX_FN void matmul_skinny_body(PTR(T) a, PTR(T) b, PTR(f32) bias, PTR(T) c, const uint m, const uint n, const uint k,
                               const uint batch, const uint parts, const uint d1, const uint d2, const uint a0,
                               const uint a1, const uint a2, const uint b0, const uint b1, const uint b2,
                               const uint bias_step) {
    const uint width = BESIDE * COLUMNS, tiles = (n + width - 1u) / width, blocks = (m + 15u) / 16u;
    uint matrix = 0u, tile = GROUP, z = 0u, part = 0u, z0 = 0u, z1 = 0u, z2 = 0u;
    if (batch * parts > 1u) {  // integer divisions are slow, and most products are not batched
        matrix = GROUP / (tiles * blocks);
        tile = GROUP % (tiles * blocks);
        z = matrix % batch;
        part = matrix / batch;
        z2 = z % d2;
        z1 = z / d2 % d1;
        z0 = z / (d2 * d1);
    }
    uint m0 = 0u;
    if (blocks > 1u) {  // workgroups that read the same columns of B follow one another
        m0 = tile % blocks * 16u;
        tile /= blocks;
    }
    if (matrix >= batch * parts || tile >= tiles) return;
    uint k0 = 0u, k1 = k;
    if (parts > 1u) {
        const uint length = ((k + STRIDE - 1u) / STRIDE + parts - 1u) / parts * STRIDE;
        k0 = least(part * length, k);
        k1 = k - k0 < length ? k : k0 + length;
    }
    PTR(T) pa = SKIP(T, SKIP(T, SKIP(T, SKIP(T, a, z0, a0), z1, a1), z2, a2), m0, k);
    PTR(T) pb = SKIP(T, SKIP(T, SKIP(T, b, z0, b0), z1, b1), z2, b2);
    PTR(T) pc = SKIP(T, SKIP(T, c, matrix, WIDE ? 2u * m * n : m * n), m0, WIDE ? 2u * n : n);
    skinny_tile(pa, pb, SKIP(f32, bias, z, bias_step), pc, least(m - m0, 16u), n, k, k0, k1, tile * width);
}
