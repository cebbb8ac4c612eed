// What convolutions by matrix instructions share. TILE names the sides of a tile, BM and BN, which four warps share, two
// by two; where WARPGROUPS is a constant two warpgroups do, each with half of the rows. A slice of BK terms of a sum lies in
// shared memory with 16 bytes of padding in each row, which keeps eight rows in different banks; for warpgroups in panels
// (wgmma.h). STAGES: 1: the next slice waits in registers; more: shared memory holds so many slices, which asynchronous
// copies fill ahead.
#define BM RLX_JOIN(BM_, TILE)
#define BN RLX_JOIN(BN_, TILE)
#define BM_s 64u
#define BN_s 64u
#define BM_t 128u
#define BN_t 64u
#define BM_m 128u
#define BN_m 128u
#define BM_l 256u
#define BN_l 128u
// Of a warp's part of the tile: how many times it has 16 rows (WARP_ROW is the first of them), and its columns.
#ifdef WARPGROUPS
#define BK 64u
#define THREADS 256u
#define BLOCKS (BM / 128u)
#define WARP_ROW(i) (WARP / 4u * (BM / 2u) + (i) * 64u + WARP % 4u * 16u)
#define WARP_COLUMN 0u
#define WARP_COLUMNS BN
#else
#define BK 32u
#define THREADS 128u
#define BLOCKS (BM / 32u)
#define WARP_ROW(i) ((WARP / 2u * BLOCKS + (i)) * 16u)
#define WARP_COLUMN (WARP % 2u * WARP_COLUMNS)
#define WARP_COLUMNS (BN / 2u)
#endif
#define MATRICES (WARP_COLUMNS / 16u)  // in 16 of a warp's rows
// PARTS: elements are sums of so many parts, which lie PART_A and PART_B units apart in a slice. UNIT_OF: unit i of part p
// in memory; SET_WORD: a word of a unit.
#ifndef PARTS
#define PARTS 1u
#define PART_A 0u
#define PART_B 0u
#endif
#define UNIT_OF(i, p, plane) ((p) == 0u ? (i) : (i) + (p) * META(plane))
#ifdef RLX_GLSL
#define SET_WORD(unit, c, w) unit[c] = w;
#else
#define SET_WORD(unit, c, w) ((uint*)&(unit))[c] = w;
#endif
// Matrix units cut off what a sum does not hold, so that their errors have one sign. Of parts, the products of 16 terms
// therefore begin at zero: of three, those of first parts by themselves, where little is cut off, the others, which are
// smaller by 2^8, in a sum of their own. Additions that round add them to `acc`.
#ifdef IN_PARTS
#if PARTS > 2
#define ADD_SMALL(i, j) SUMS_ADD(acc[(i) * MATRICES + j], small[j])
#define SMALL small
#else
#define ADD_SMALL(i, j)
#define SMALL great
#endif
#define BEGIN_SUMS                                 \
    SUMS great[MATRICES];                          \
    SUMS small[MATRICES];                          \
    UNROLL for (uint j = 0u; j < MATRICES; j++) {  \
        SUMS_ZERO(great[j])                        \
        SUMS_ZERO(small[j])                        \
    }
#define MULTIPLY_PARTS(i, j, ma, p, q)             \
    if ((p) + (q) == 0u) {                         \
        MULTIPLY(great[j], ma, mb[j * PARTS + (q)]) \
    } else {                                       \
        MULTIPLY(SMALL[j], ma, mb[j * PARTS + (q)]) \
    }
#define END_SUMS(i)                                \
    UNROLL for (uint j = 0u; j < MATRICES; j++) {  \
        ADD_SMALL(i, j)                            \
        SUMS_ADD(acc[(i) * MATRICES + j], great[j]) \
    }
#else
#define BEGIN_SUMS
#define MULTIPLY_PARTS(i, j, ma, p, q) MULTIPLY(acc[(i) * MATRICES + j], ma, mb[j])
#define END_SUMS(i)
#endif
// What becomes of a matrix that is loaded.
#ifdef IN_TF32
#include "tf32.h"
#define TAKEN(matrix) \
    UNROLL for (uint e = 0u; e < 4u; e++) matrix.r[e] = tf32_near(matrix.r[e]);
#else
#define TAKEN(matrix)
#endif
// Multiplies a slice into `acc`: the place of 16 terms of block i of A, of 16 columns j of B, the distance of their rows,
// and whether they lie there transposed. Parts p of A and q of B are multiplied where p + q < PARTS, small ones first.
#define MULTIPLY_SLICE(PLACE_A, PITCH_A, TURNED_A, PLACE_B, PITCH_B, TURNED_B)                     \
    UNROLL for (uint kk = 0u; kk < BK / 16u; kk++) {                                               \
        MATRIX_B mb[MATRICES * PARTS];                                                             \
        UNROLL for (uint j = 0u; j < MATRICES; j++) {                                              \
            UNROLL for (uint q = 0u; q < PARTS; q++) {                                             \
                LOAD_B(mb[j * PARTS + q], PLACE_B(j, kk) + q * PART_B, PITCH_B, TURNED_B)          \
                TAKEN(mb[j * PARTS + q])                                                           \
            }                                                                                      \
        }                                                                                          \
        UNROLL for (uint i = 0u; i < BLOCKS; i++) {                                                \
            BEGIN_SUMS                                                                             \
            UNROLL for (uint back = 0u; back < PARTS; back++) {                                    \
                const uint p = PARTS - 1u - back;                                                  \
                MATRIX_A ma;                                                                       \
                LOAD_A(ma, PLACE_A(i, kk) + p * PART_A, PITCH_A, TURNED_A)                         \
                TAKEN(ma)                                                                          \
                UNROLL for (uint j = 0u; j < MATRICES; j++) {                                      \
                    UNROLL for (uint r = 0u; r <= back; r++) {                                     \
                        MULTIPLY_PARTS(i, j, ma, p, back - r)                                      \
                    }                                                                              \
                }                                                                                  \
            }                                                                                      \
            END_SUMS(i)                                                                            \
        }                                                                                          \
    }
// Sums on their way out: the units of a row, and of 16 rows of each warp.
#define ROW_C (WARP_COLUMNS / 4u + 1u)
#define STAGE (THREADS / 2u * ROW_C)
#include "stream.h"
#include "matmul_ahead.h"
#ifdef RLX_GLSL
#define ROLLED [[dont_unroll]]
#define UNITS(n) shared uvec4 units[n];
#else
#define ROLLED _Pragma("unroll 1")
#endif
// LOAD_AHEAD of units beside which those of the next slices lie: the device's cache fetches 256 bytes at once.
#ifdef RLX_GLSL
#define LOAD_NEAR(to, at, p, i, there) LOAD_AHEAD(to, at, p, i, there)
#else
#define LOAD_NEAR(to, at, p, i, there) rlx_load_near(&units[at], (const uint4*)(p) + (i), there);
RLX_FN void rlx_load_near(uint4* to, const uint4* from, const bool there) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;"
                 :
                 : "r"((uint)__cvta_generic_to_shared(to)), "l"(from), "r"(there ? 16u : 0u)
                 : "memory");
#else
    *to = there ? *from : make_uint4(0u, 0u, 0u, 0u);
#endif
}
#endif
#ifdef WARPGROUPS
#include "wgmma.h"
#define MULTIPLY_PANELS RLX_WG_CALL(rows, RLX_JOIN(BN_OF_, TILE), MATRIX)
#define MULTIPLY_HELD RLX_WG_CALL(held, RLX_JOIN(BN_OF_, TILE), MATRIX)
#define BN_OF_t 64
#define BN_OF_m 128
#define BN_OF_l 128
#undef UNITS
#define UNITS(n) PANELS_IN_UNITS(n)
#endif
#ifndef RLX_GLSL
// Whether one of the four sums of a unit is infinite or no number: then `most`, which begins at 0, becomes NOT_FINITE or
// more. A tile looks at all its sums so, and only then for which of them are to be computed again. Through Vulkan, which
// looks for these at once, the driver's code took longer with it (measured on an H200).
#define NOT_FINITE 0xff000000u
RLX_FN uint most_bits(const uint most, const uvec4 v) {
    const uint x = v.x << 1, y = v.y << 1, z = v.z << 1, w = v.w << 1;
    const uint xy = x > y ? x : y, zw = z > w ? z : w, four = xy > zw ? xy : zw;
    return four > most ? four : most;
}
#endif
