// What convolutions by matrix instructions share. TILE names the sides of a tile, BM and BN, which four warps share, two
// by two. A slice of BK terms of a sum lies in shared memory with 16 bytes of padding in each row, which keeps eight rows
// in different banks. STAGES: 1: the next slice waits in registers; more: shared memory holds so many slices, which
// asynchronous copies fill ahead.
#define BM RLX_JOIN(BM_, TILE)
#define BN RLX_JOIN(BN_, TILE)
#define BM_s 64u
#define BN_s 64u
#define BM_t 128u
#define BN_t 64u
#define BM_m 128u
#define BN_m 128u
#define BK 32u
#define THREADS 128u
// The 16 x 16 matrices of a warp's part of the tile.
#define FM (BM / 32u)
#define FN (BN / 32u)
// Sums on their way out: the units of a row of 16 x 16 matrices, and of all warps' rows.
#define ROW_C (FN * 4u + 1u)
#define STAGE (4u * 16u * ROW_C)
#ifdef RLX_GLSL
#define ROLLED [[dont_unroll]]
#define UNITS(n) shared uvec4 units[n];
#else
#define ROLLED _Pragma("unroll 1")
#endif
#include "stream.h"
#include "matmul_ahead.h"
