// What mma_host.h declares: compiled once for all kernels, since it takes longer to compile than most of them.
static const unsigned short* rlx_rows[RLX_THREADS];
static uint rlx_held_a[RLX_THREADS][4], rlx_held_b[RLX_THREADS][2];

void rlx_load(uint* r, const void* row, bool trans) {
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

// The nearest float that is not larger: matrix units cut off what a sum does not hold.
static float rlx_cut(const double sum) {
    const float near = float(sum);
    uint bits;
    std::memcpy(&bits, &near, 4);
    if (__builtin_fabs(near) <= __builtin_fabs(sum) || !(__builtin_fabs(sum) < __builtin_inf())) return near;
    bits -= 1u;
    float less;
    std::memcpy(&less, &bits, 4);
    return less;
}

// Each row and each column is read once, and turned into numbers once, for all the sums that it is part of.
template <float value(uint)> static void rlx_mma_of(float* c, const uint* a, const uint* b) {
    for (int i = 0; i < 4; i++) rlx_held_a[threadIdx.x][i] = a[i];
    for (int i = 0; i < 2; i++) rlx_held_b[threadIdx.x][i] = b[i];
    rlx_meet(-6);
    const uint warp = threadIdx.x / 32u * 32u, lane = threadIdx.x % 32u;
    double x[2][16], y[2][16];
    for (uint h = 0; h < 2; h++)
        for (uint k = 0; k < 16; k++) {
            const uint inner = k % 8u / 2u, shift = k % 2u * 16u;
            x[h][k] = value(rlx_held_a[warp + lane / 4u * 4u + inner][h + k / 8u * 2u] >> shift & 0xffffu);
            y[h][k] = value(rlx_held_b[warp + (lane % 4u * 2u + h) * 4u + inner][k / 8u] >> shift & 0xffffu);
        }
    for (uint e = 0; e < 4; e++) {
        double sum = c[e];
        for (uint k = 0; k < 16; k++) sum += x[e / 2u][k] * y[e % 2u][k];
        c[e] = rlx_cut(sum);
    }
    rlx_meet(-7);
}
static float rlx_f16(uint h) { return host_half(h); }
static float rlx_bf16(uint h) { return host_float(h << 16); }

static float rlx_tf32(uint word) { return host_float(word & 0xffffe000u); }

void rlx_mma_tf32(float* c, const uint* a, const uint* b) {
    for (int i = 0; i < 4; i++) rlx_held_a[threadIdx.x][i] = a[i];
    for (int i = 0; i < 2; i++) rlx_held_b[threadIdx.x][i] = b[i];
    rlx_meet(-6);
    const uint warp = threadIdx.x / 32u * 32u, lane = threadIdx.x % 32u;
    for (uint e = 0; e < 4; e++) {
        double sum = c[e];
        for (uint k = 0; k < 8; k++)
            sum += double(rlx_tf32(rlx_held_a[warp + lane / 4u * 4u + k % 4u][e / 2u + k / 4u * 2u])) *
                   rlx_tf32(rlx_held_b[warp + (lane % 4u * 2u + e % 2u) * 4u + k % 4u][k / 4u]);
        c[e] = rlx_cut(sum);
    }
    rlx_meet(-7);
}

// Of wgmma: units of shared memory as a descriptor names them, eight units of a row changing places with the row; the
// sums are those of one warp's 16 rows of 64, as m16n8k16 spreads them. What runs on its own there is done at once here.
static uint rlx_panel_value(const uint4* units, uint unit, uint i) {
    const uint4& held = units[unit ^ (unit >> 3 & 7u)];
    const uint words[4] = {held.x, held.y, held.z, held.w};
    return words[i / 2u] >> i % 2u * 16u & 0xffffu;
}
static uint rlx_wg_at(rlx_u64 m) { return uint(m) & 0x3fffu; }
static uint rlx_wg_stride(rlx_u64 m) { return uint(m >> 32) & 0x3fffu; }
static uint rlx_row_value(const uint4* units, rlx_u64 m, uint row, uint k) {
    return rlx_panel_value(units, rlx_wg_at(m) + row / 8u * rlx_wg_stride(m) + row % 8u * 8u + k / 8u, k % 8u);
}
static uint rlx_column_value(const uint4* units, rlx_u64 m, uint column, uint k) {
    const uint panel = uint(m) >> 16 & 0x3fffu;
    const uint at = rlx_wg_at(m) + column / 64u * panel + k / 8u * rlx_wg_stride(m);
    return rlx_panel_value(units, at + k % 8u * 8u + column % 64u / 8u, column % 8u);
}
template <float value(uint)>
static void rlx_wg_rows_of(const uint4* units, uint n, float* c, rlx_u64 a, rlx_u64 b, uint more) {
    const uint warp = threadIdx.x % 128u / 32u, lane = threadIdx.x % 32u;
    double x[2][16], y[16];
    for (uint h = 0; h < 2; h++)
        for (uint k = 0; k < 16; k++) x[h][k] = value(rlx_row_value(units, a, warp * 16u + lane / 4u + h * 8u, k));
    for (uint e = 0; e < n / 2u; e += e % 2u ? 3 : 1) {
        const uint column = e / 4u * 8u + lane % 4u * 2u + e % 2u;
        for (uint k = 0; k < 16; k++) y[k] = value(rlx_row_value(units, b, column, k));
        for (uint h = 0; h < 2; h++) {
            double sum = more ? c[e + 2u * h] : 0.0;
            for (uint k = 0; k < 16; k++) sum += x[h][k] * y[k];
            c[e + 2u * h] = rlx_cut(sum);
        }
    }
}
template <float value(uint)>
static void rlx_wg_columns_of(const uint4* units, uint n, float* c, const uint* a, rlx_u64 b) {
    for (int i = 0; i < 4; i++) rlx_held_a[threadIdx.x][i] = a[i];
    rlx_meet(-6);
    const uint from = threadIdx.x / 32u * 32u + threadIdx.x % 32u / 4u * 4u, lane = threadIdx.x % 32u;
    double x[2][16], y[16];
    for (uint h = 0; h < 2; h++)
        for (uint k = 0; k < 16; k++)
            x[h][k] = value(rlx_held_a[from + k % 8u / 2u][h + k / 8u * 2u] >> k % 2u * 16u & 0xffffu);
    for (uint e = 0; e < n / 2u; e += e % 2u ? 3 : 1) {
        const uint column = e / 4u * 8u + lane % 4u * 2u + e % 2u;
        for (uint k = 0; k < 16; k++) y[k] = value(rlx_column_value(units, b, column, k));
        for (uint h = 0; h < 2; h++) {
            double sum = c[e + 2u * h];
            for (uint k = 0; k < 16; k++) sum += x[h][k] * y[k];
            c[e + 2u * h] = rlx_cut(sum);
        }
    }
    rlx_meet(-7);
}

static uint rlx_row_word(const uint4* units, rlx_u64 m, uint row, uint k) {
    const uint unit = rlx_wg_at(m) + row / 8u * rlx_wg_stride(m) + row % 8u * 8u + k / 4u;
    const uint4& held = units[unit ^ (unit >> 3 & 7u)];
    const uint words[4] = {held.x, held.y, held.z, held.w};
    return words[k % 4u];
}
void rlx_wg_held(const uint4* units, uint n, float* c, const uint* a, rlx_u64 b) {
    for (int i = 0; i < 4; i++) rlx_held_a[threadIdx.x][i] = a[i];
    rlx_meet(-6);
    const uint from = threadIdx.x / 32u * 32u + threadIdx.x % 32u / 4u * 4u, lane = threadIdx.x % 32u;
    double x[2][8], y[8];
    for (uint h = 0; h < 2; h++)
        for (uint k = 0; k < 8; k++) x[h][k] = rlx_tf32(rlx_held_a[from + k % 4u][h + k / 4u * 2u]);
    for (uint e = 0; e < n / 2u; e += e % 2u ? 3 : 1) {
        const uint column = e / 4u * 8u + lane % 4u * 2u + e % 2u;
        for (uint k = 0; k < 8; k++) y[k] = rlx_tf32(rlx_row_word(units, b, column, k));
        for (uint h = 0; h < 2; h++) {
            double sum = c[e + 2u * h];
            for (uint k = 0; k < 8; k++) sum += x[h][k] * y[k];
            c[e + 2u * h] = rlx_cut(sum);
        }
    }
    rlx_meet(-7);
}

template <float value(uint)>
static void rlx_wg_tile_of(const uint4* units, float* c, rlx_u64 a, rlx_u64 b, uint more, bool ta, bool tb) {
    const uint warp = threadIdx.x % 128u / 32u, lane = threadIdx.x % 32u;
    double x[2][16], y[16];
    for (uint h = 0; h < 2; h++)
        for (uint k = 0; k < 16; k++) {
            const uint row = warp * 16u + lane / 4u + h * 8u;
            x[h][k] = value(ta ? rlx_column_value(units, a, row, k) : rlx_row_value(units, a, row, k));
        }
    for (uint e = 0; e < 128u; e += e % 2u ? 3 : 1) {
        const uint column = e / 4u * 8u + lane % 4u * 2u + e % 2u;
        for (uint k = 0; k < 16; k++)
            y[k] = value(tb ? rlx_row_value(units, b, column, k) : rlx_column_value(units, b, column, k));
        for (uint h = 0; h < 2; h++) {
            double sum = more ? c[e + 2u * h] : 0.0;
            for (uint k = 0; k < 16; k++) sum += x[h][k] * y[k];
            c[e + 2u * h] = rlx_cut(sum);
        }
    }
}
void rlx_wg_tile(const uint4* units, float* c, rlx_u64 a, rlx_u64 b, uint more, bool ta, bool tb, bool bf16) {
    (bf16 ? rlx_wg_tile_of<rlx_bf16> : rlx_wg_tile_of<rlx_f16>)(units, c, a, b, more, ta, tb);
}
void rlx_mma(float* c, const uint* a, const uint* b, bool bf16) {
    (bf16 ? rlx_mma_of<rlx_bf16> : rlx_mma_of<rlx_f16>)(c, a, b);
}
void rlx_wg_rows(const uint4* units, uint n, float* c, rlx_u64 a, rlx_u64 b, uint more, bool bf16) {
    (bf16 ? rlx_wg_rows_of<rlx_bf16> : rlx_wg_rows_of<rlx_f16>)(units, n, c, a, b, more);
}
void rlx_wg_columns(const uint4* units, uint n, float* c, const uint* a, rlx_u64 b, bool bf16) {
    (bf16 ? rlx_wg_columns_of<rlx_bf16> : rlx_wg_columns_of<rlx_f16>)(units, n, c, a, b);
}
