// The matrix instructions of bodies/mma.h on the host: what each lane of a warp holds and gets, after the PTX ISA
// (ldmatrix, mma.m16n8k16). Sums in double, rounded once.
#define RLX_ON_HOST 1
static const unsigned short* rlx_rows[RLX_THREADS];
static uint rlx_held_a[RLX_THREADS][4], rlx_held_b[RLX_THREADS][2];

static void rlx_load(uint* r, const void* row, bool trans) {
    rlx_rows[threadIdx.x] = static_cast<const unsigned short*>(row);
    rlx_meet(-4);
    const uint warp = threadIdx.x / 32u * 32u, lane = threadIdx.x % 32u;
    for (uint i = 0; i < 4; i++) {
        uint half[2];
        for (uint h = 0; h < 2; h++) {
            const uint across = lane % 4u * 2u + h, down = lane / 4u;
            half[h] = trans ? rlx_rows[warp + i * 8u + across][down] : rlx_rows[warp + i * 8u + down][across];
        }
        r[i] = half[0] | half[1] << 16;
    }
    rlx_meet(-5);
}
#define rlx_ldmatrix(r, row) rlx_load(r, row, false)
#define rlx_ldmatrix_trans(r, row) rlx_load(r, row, true)

typedef float (*rlx_value)(uint);
static void rlx_mma(float* c, const uint* a, const uint* b, rlx_value value) {
    for (int i = 0; i < 4; i++) rlx_held_a[threadIdx.x][i] = a[i];
    for (int i = 0; i < 2; i++) rlx_held_b[threadIdx.x][i] = b[i];
    rlx_meet(-6);
    const uint warp = threadIdx.x / 32u * 32u, lane = threadIdx.x % 32u;
    for (uint e = 0; e < 4; e++) {
        const uint row = lane / 4u + e / 2u * 8u, column = lane % 4u * 2u + e % 2u;
        double sum = c[e];
        for (uint k = 0; k < 16; k++) {
            const uint inner = k % 8u / 2u, shift = k % 2u * 16u;
            const uint x = rlx_held_a[warp + row % 8u * 4u + inner][row / 8u + k / 8u * 2u] >> shift & 0xffffu;
            const uint y = rlx_held_b[warp + column * 4u + inner][k / 8u] >> shift & 0xffffu;
            sum += double(value(x)) * double(value(y));
        }
        c[e] = float(sum);
    }
    rlx_meet(-7);
}
static float rlx_f16(uint h) { return host_half(h); }
static float rlx_bf16(uint h) { return host_float(h << 16); }
#define rlx_mma_f16(c, a, b) rlx_mma(c, a, b, rlx_f16)
#define rlx_mma_bf16(c, a, b) rlx_mma(c, a, b, rlx_bf16)
