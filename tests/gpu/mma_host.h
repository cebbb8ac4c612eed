// The matrix instructions of bodies/mma.h on the host: what each lane of a warp holds and gets, after the PTX ISA
// (ldmatrix, mma.m16n8k16, mma.m16n8k8). Sums in double, cut off once.
#define RLX_ON_HOST 1
void rlx_load(uint* r, const void* row, bool trans);
#define rlx_ldmatrix(r, row) rlx_load(r, row, false)
#define rlx_ldmatrix_trans(r, row) rlx_load(r, row, true)

void rlx_mma(float* c, const uint* a, const uint* b, bool bf16);
#define rlx_mma_f16(c, a, b) rlx_mma(c, a, b, false)
#define rlx_mma_bf16(c, a, b) rlx_mma(c, a, b, true)
void rlx_mma_tf32(float* c, const uint* a, const uint* b);

// wgmma of 64 or 128 columns, whose operands lie in the shared `units`.
void rlx_wg_rows(const uint4* units, uint n, float* c, rlx_u64 a, rlx_u64 b, uint more, bool bf16);
void rlx_wg_columns(const uint4* units, uint n, float* c, const uint* a, rlx_u64 b, bool bf16);
void rlx_wg_held(const uint4* units, uint n, float* c, const uint* a, rlx_u64 b);
#define rlx_wg_held_64_tf32(c, a, b) rlx_wg_held(units, 64, c, a, b)
#define rlx_wg_held_128_tf32(c, a, b) rlx_wg_held(units, 128, c, a, b)
#define rlx_wg_rows_64_f16(c, a, b, more) rlx_wg_rows(units, 64, c, a, b, more, false)
#define rlx_wg_rows_64_bf16(c, a, b, more) rlx_wg_rows(units, 64, c, a, b, more, true)
#define rlx_wg_rows_128_f16(c, a, b, more) rlx_wg_rows(units, 128, c, a, b, more, false)
#define rlx_wg_rows_128_bf16(c, a, b, more) rlx_wg_rows(units, 128, c, a, b, more, true)
#define rlx_wg_columns_64_f16(c, a, b) rlx_wg_columns(units, 64, c, a, b, false)
#define rlx_wg_columns_64_bf16(c, a, b) rlx_wg_columns(units, 64, c, a, b, true)
#define rlx_wg_columns_128_f16(c, a, b) rlx_wg_columns(units, 128, c, a, b, false)
#define rlx_wg_columns_128_bf16(c, a, b) rlx_wg_columns(units, 128, c, a, b, true)
// wgmma of 256 columns, of operands that lie by rows or by columns.
void rlx_wg_tile(const uint4* units, float* c, rlx_u64 a, rlx_u64 b, uint more, bool ta, bool tb, bool bf16);
#define rlx_wg_tile_f16(units, c, a, b, more, ta, tb) rlx_wg_tile(units, c, a, b, more, ta, tb, false)
#define rlx_wg_tile_bf16(units, c, a, b, more, ta, tb) rlx_wg_tile(units, c, a, b, more, ta, tb, true)
