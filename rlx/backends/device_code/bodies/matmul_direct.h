// C = act(A op(B) + bias) for few rows by matrix instructions, whose matrices are made in registers: each lane reads from
// memory what it holds of them, 16 bytes (a unit) at a time. So only sums go through shared memory, and no warp waits for
// another. The order of the terms of a sum is free: the first elements of all units, which lie along k, make one pair of
// matrices, the second ones the next. In B stored [k, n] a unit is of one row or of two, and each of its columns has a
// matrix of its own.
// An f32 is the sum of three bf16, which are cut from its bits. Of nine products of such terms six are larger than its
// last place. Their sums are added up in f32 after every step. A result that is not finite is computed again from the
// operands themselves, since the second term of an infinity is NaN.
// The warps split the sum over k, and their sums are added up at the end, always in the same order. LAYOUT: n, or t where
// B is stored [n, k]. WIDE: C is f32 whatever A is. Requires: k >= DEPTH, n >= COLUMNS, and all rows of A and B begin at
// multiples of 16 bytes.
#define T_f32_f32 f32
#define T_f16_f16 f16
#define T_bf16_bf16 bf16
#define M_f32_f32 bf16
#define M_f16_f16 f16
#define M_bf16_bf16 bf16
#define TA RLX_JOIN(T_, AB)
#define TB TA
#define MATRIX RLX_JOIN(M_, AB)
#define UNIT_f32_f32 4u
#define UNIT_f16_f16 8u
#define UNIT_bf16_bf16 8u
#define UNIT RLX_JOIN(UNIT_, AB)  // elements of a unit
#define IN_TERMS (UNIT == 4u)
#define TERMS (IN_TERMS ? 3u : 1u)
#define TURNED_t true
#define TURNED_n false
#define TURNED RLX_JOIN(TURNED_, LAYOUT)
#define DEPTH (16u * UNIT)               // terms of the sum in a warp's step
// Matrices side by side, and groups of eight units of B, in a step; those in registers at once. In GLSL, where a matrix
// takes more instructions, wider workgroups of f32 make those of A less often.
#ifdef RLX_GLSL
#define WIDTH (IN_TERMS ? 2u : 1u)
#else
#define WIDTH 1u
#endif
#define SIDE (TURNED ? 2u * WIDTH : UNIT / 2u * WIDTH)
#define GROUPS 2u
// With the groups in registers: matrices of A, those of B for each of them, and the first of these in C.
#define MATRICES (TURNED ? UNIT : GROUPS * UNIT / SIDE)
#define BESIDE (TURNED ? GROUPS : SIDE)
#define FIRST (TURNED ? turn * GROUPS : 0u)
#define COLUMNS (16u * SIDE)
#define WARPS 4u
#define STRIDE (WARPS * DEPTH)
#define ROW_C (COLUMNS / 4u + 1u)
#define STAGE (16u * ROW_C)

#include "activation.h"
#include "bias.h"
#include "stream.h"

SHARED uvec4 units[WARPS * STAGE];

// Where in a step the unit of a term of a matrix lies. Lanes that hold every other term read neighbouring units by it.
#define PLACE(term) (((term) & 8u) | ((term) & 1u) << 2 | ((term) & 7u) >> 1)
#define PLACE_OF(places, e) ((places) >> (4u * (e)) & 15u)

#ifdef RLX_GLSL
#define ROLLED [[dont_unroll]]  // the driver would unroll it, beyond what the instruction cache holds
#define WORD(u, i) u[i]
#define HALF_f16(w) uint16BitsToHalf(w)
#define HALF_bf16(w) uintBitsToBFloat16EXT(w)
#define HALF RLX_JOIN(HALF_, MATRIX)
// Elements e and e + 1 of a matrix: the lower, or the upper, halves of two words. Shifts instead of vectors of two halves
// would cost the driver's compiler a fifth more instructions.
#define PUT(m, e, w0, w1, UPPER)                            \
    m[e] = HALF((UPPER) ? unpack16(w0).y : unpack16(w0).x); \
    m[(e) + 1u] = HALF((UPPER) ? unpack16(w1).y : unpack16(w1).x);
#define SUM_AT(i) RLX_FLOAT(units[(i) / 4u][(i) % 4u])
#define TWO_WORDS(p, i) ptr_uvec2(uvec2(p)).at[i]
#else
#define ROLLED _Pragma("unroll 1")
#define WORD(u, i) ((const uint*)&(u))[i]
#ifdef RLX_ON_HOST
#define HALVES_OF(w0, w1, UPPER) ((UPPER) ? (w0) >> 16 | ((w1) & 0xffff0000u) : ((w0) & 0xffffu) | (w1) << 16)
#else
#define HALVES_OF(w0, w1, UPPER) __byte_perm(w0, w1, (UPPER) ? 0x7632 : 0x5410)
#endif
#define PUT(m, e, w0, w1, UPPER) (m).r[(e) / 2u] = HALVES_OF(w0, w1, UPPER);
#define SUM_AT(i) ((const float*)units)[i]
#define TWO_WORDS(p, i) ((const uint2*)(p))[i]
#endif

// What the first bf16 of an f32, its upper half, leaves of it.
#define LEFT(w) RLX_BITS(RLX_FLOAT(w) - RLX_FLOAT((w) & 0xffff0000u))
// Makes matrices m[0 .. TERMS) of element i of the units u[first .. first + 8).
#define MAKE(m, u, first, i)                                                                                  \
    UNROLL for (uint e = 0u; e < 8u; e += 2u) {                                                               \
        if (IN_TERMS) {                                                                                       \
            const uint w0 = WORD(u[(first) + e], (i) % 4u), w1 = WORD(u[(first) + e + 1u], (i) % 4u);         \
            const uint left0 = LEFT(w0), left1 = LEFT(w1);                                                    \
            PUT(m[0], e, w0, w1, true)                                                                        \
            PUT(m[TERMS / 2u], e, left0, left1, true)                                                         \
            PUT(m[TERMS - 1u], e, LEFT(left0), LEFT(left1), true)                                             \
        } else {                                                                                              \
            PUT(m[0], e, WORD(u[(first) + e], (i) / 2u), WORD(u[(first) + e + 1u], (i) / 2u), (i) % 2u == 1u) \
        }                                                                                                     \
    }
// Adds the product of two numbers in terms, the smallest terms first.
#define MULTIPLY_TERMS(sums, ma, mb)               \
    MULTIPLY(sums, ma[TERMS - 1u], mb[0])          \
    MULTIPLY(sums, ma[0], mb[TERMS - 1u])          \
    MULTIPLY(sums, ma[TERMS / 2u], mb[TERMS / 2u]) \
    MULTIPLY(sums, ma[TERMS / 2u], mb[0])          \
    MULTIPLY(sums, ma[0], mb[TERMS / 2u])          \
    MULTIPLY(sums, ma[0], mb[0])
// Loads a group of B as w[8 to .. 8 to + 8).
#define FETCH(to, group)                                                                                    \
    UNROLL for (uint e = 0u; e < 8u; e++) {                                                                 \
        if (TURNED) {                                                                                       \
            w[(to) * 8u + e] = LOAD_ONCE(pb, at_b[e] + (group) * 16u * (k / UNIT) + from / UNIT);           \
        } else if (SIDE == UNIT) {                                                                          \
            w[(to) * 8u + e] = LOAD_ONCE(pb, at_b[e] + (from + (group)) * (n / SIDE));                      \
        } else {                                                                                            \
            const uvec2 above = TWO_WORDS(pb, at_b[e] + (from + 2u * (group)) * (n / SIDE));                \
            const uvec2 below = TWO_WORDS(pb, at_b[e] + (from + 2u * (group) + 1u) * (n / SIDE));           \
            w[(to) * 8u + e] = UVEC4(above.x, above.y, below.x, below.y);                                   \
        }                                                                                                   \
    }

// Computes the element of C in this row and column again. This is rarely called.
RLX_FN float plain(PTR(TA) a, PTR(TB) b, const uint n, const uint k, const uint row, const uint column) {
    float sum = 0.0f;
    for (uint t = 0u; t < k; t++)
        sum = FMA(LOAD(TA, a, row * k + t), LOAD(TB, b, TURNED ? column * k + t : t * n + column), sum);
    return sum;
}

RLX_FN void matmul_direct_body(PTR(TA) a, PTR(TB) b, PTR(f32) bias, PTR(TA) c, const uint m, const uint n, const uint k,
                               const uint batch, const uint d1, const uint d2, const uint a0, const uint a1,
                               const uint a2, const uint b0, const uint b1, const uint b2, const uint bias_step) {
    const uint tiles = (n + COLUMNS - 1u) / COLUMNS, blocks = (m + 15u) / 16u;
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
    PTR(TA) pa = SKIP(TA, SKIP(TA, SKIP(TA, SKIP(TA, a, z0, a0), z1, a1), z2, a2), block * 16u, k);
    PTR(TB) pb = SKIP(TB, SKIP(TB, SKIP(TB, b, z0, b0), z1, b1), z2, b2);
    PTR(TA) pc = SKIP(TA, SKIP(TA, c, z, WIDE ? 2u * m * n : m * n), block * 16u, WIDE ? 2u * n : n);
    PTR(f32) add = SKIP(f32, bias, z, bias_step);
    const uint rows = least(m - block * 16u, 16u);
    // The last columns are computed once more where n is no multiple of COLUMNS, but stored once.
    const uint n0 = least(tile * COLUMNS, n - COLUMNS);

    // Where the units of a lane's elements lie, from the first of a step on, and their places in the step, in four bits.
    uint at_a[8], at_b[8], places_a = 0u, places_b = 0u;
#ifdef RLX_GLSL
    // Which elements a lane holds is unspecified: matrices of indices tell.
    if (THREAD < 32u) {
        uvec4 w;
        UNROLL for (uint i = 0u; i < 4u; i++) {
            const uint index = THREAD * 8u + 2u * i;
            w[i] = pair_bits(float(index), float(index + 1u));
        }
        units[THREAD] = w;
    }
    BARRIER;
    MATRIX_A held_a;
    MATRIX_B held_b;
    LOAD_A(held_a, 0, 2, false)
    LOAD_B(held_b, 0, 2, false)
    BARRIER;
#define ROW_OF_A uint(float(held_a[e])) / 16u
#define TERM_OF_A uint(float(held_a[e])) % 16u
#define TERM_OF_B uint(float(held_b[e])) / 16u
#define COLUMN_OF_B uint(float(held_b[e])) % 16u
#else
#define ROW_OF_A LANE / 4u + e / 2u % 2u * 8u
#define TERM_OF_A LANE % 4u * 2u + e % 2u + e / 4u * 8u
#define TERM_OF_B LANE % 4u * 2u + e % 2u + e / 2u % 2u * 8u
#define COLUMN_OF_B LANE / 4u + e / 4u * 8u
#endif
    UNROLL for (uint e = 0u; e < 8u; e++) {
        const uint row = ROW_OF_A, column = COLUMN_OF_B, term_a = TERM_OF_A, term_b = TERM_OF_B;
        const uint place_a = PLACE(term_a), place_b = PLACE(term_b);
        places_a |= place_a << (4u * e);
        places_b |= place_b << (4u * e);
        at_a[e] = least(row, rows - 1u) * (k / UNIT) + place_a;
        at_b[e] = TURNED ? (n0 + column) * (k / UNIT) + place_b : place_b * UNIT * (n / SIDE) + n0 / SIDE + column;
    }

    SUMS sums[SIDE];
    UNROLL for (uint j = 0u; j < SIDE; j++) SUMS_ZERO(sums[j])
    const uvec4 zero = UVEC4(0u, 0u, 0u, 0u);
    ROLLED for (uint t = WARP * DEPTH; t < k; t += STRIDE) {
        // The last step begins earlier where k is no multiple of DEPTH: its units that others have are zero in it.
        const uint from = least(t, k - DEPTH), seen = (t - from) / UNIT;
        uvec4 x[8];
        uvec4 w[8u * GROUPS];
        UNROLL for (uint e = 0u; e < 8u; e++) x[e] = LOAD_UNIT(pa, at_a[e] + from / UNIT);
        if (seen > 0u) {
            UNROLL for (uint e = 0u; e < 8u; e++) {
                if (PLACE_OF(places_a, e) < seen) x[e] = zero;
            }
        }
        UNROLL for (uint turn = 0u; turn < SIDE / GROUPS; turn++) {
            UNROLL for (uint g = 0u; g < GROUPS; g++) FETCH(g, turn * GROUPS + g)
            if (seen > 0u) {
                UNROLL for (uint g = 0u; g < GROUPS; g++) {
                    UNROLL for (uint e = 0u; e < 8u; e++) {
                        if (PLACE_OF(places_b, e) < seen) w[g * 8u + e] = zero;
                    }
                }
            }
            SUMS part[BESIDE];
            if (IN_TERMS) {
                UNROLL for (uint j = 0u; j < BESIDE; j++) SUMS_ZERO(part[j])
            }
            UNROLL for (uint i = 0u; i < MATRICES; i++) {
                MATRIX_A ma[TERMS];
                MAKE(ma, x, 0u, TURNED ? i : turn * MATRICES + i)
                UNROLL for (uint j = 0u; j < BESIDE; j++) {
                    MATRIX_B mb[TERMS];
                    MAKE(mb, w, (TURNED ? j : i * SIDE / UNIT) * 8u, TURNED ? i : (i * SIDE + j) % UNIT)
                    if (IN_TERMS) {
                        MULTIPLY_TERMS(part[j], ma, mb)
                    } else {
                        MULTIPLY(sums[FIRST + j], ma[0], mb[0])
                    }
                }
            }
            if (IN_TERMS) {
                UNROLL for (uint j = 0u; j < BESIDE; j++) SUMS_ADD(sums[FIRST + j], part[j])
            }
        }
    }
    UNROLL for (uint j = 0u; j < SIDE; j++) STORE_SUMS(sums[j], WARP * STAGE + j * 4u, ROW_C)
    BARRIER;
    for (uint i = THREAD; i < rows * COLUMNS; i += WARPS * 32u) {
        const uint row = i / COLUMNS, at = i % COLUMNS, column = n0 + at;
        const uint of = row * ROW_C * 4u + (TURNED ? at : at % SIDE * 16u + at / SIDE);
        float v = 0.0f;
        UNROLL for (uint s = 0u; s < WARPS; s++) v += SUM_AT(s * STAGE * 4u + of);
        if (IN_TERMS && (RLX_BITS(v) & 0x7f800000u) == 0x7f800000u) v = plain(pa, pb, n, k, row, column);
        if (HAS_BIAS) v += bias_at(add, column);
        v = activated(v);
        if (column < tile * COLUMNS) continue;
        if (WIDE) {
            STORE(f32, AS(f32, pc), row * n + column, v);
        } else {
            STORE(TA, pc, row * n + column, v);
        }
    }
}
