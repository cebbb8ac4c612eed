// y[part, g, row, col] = sum over images and positions of d[n, g, row, t] * x[n, g, t * step + the place of col]: the
// gradient of a convolution's weights, col running over input channels and taps. A group of 256 makes a tile of BM rows
// and BN columns (64 or 128 each) out of `chunk` of the terms (n, t). TI is the storage of x and d, TO of y.
// meta: input sizes (3), positions (3), steps (3), dilations (3), padding (3), kernel (3), elements of an image and of
// a group of x.
#define IN_f32_f32 f32
#define IN_f16_f16 f16
#define IN_bf16_bf16 bf16
#define IN_f16_f32 f16
#define IN_bf16_f32 bf16
#define OUT_f32_f32 f32
#define OUT_f16_f16 f16
#define OUT_bf16_bf16 bf16
#define OUT_f16_f32 f32
#define OUT_bf16_f32 f32
#define TI RLX_JOIN(IN_, IO)
#define TO RLX_JOIN(OUT_, IO)
#define BK 8u
// Four elements apart: the eight terms of a row then lie in different banks.
#define LINE_D (BM + 4u)
#define LINE_X (BN + 4u)
#define RM (BM / 64u)
#define RN (BN / 64u)
#define FETCH_D (BM / 32u)
#define FETCH_X (BN / 32u)
#define META(i) LOAD(u32, meta, i)

SHARED vec4 tile_d[2u * BK * LINE_D / 4u];  // [side][k][row / 4]
SHARED vec4 tile_x[2u * BK * LINE_X / 4u];

// Where a column looks: offset in x from the position's own element, then the offsets along each axis.
RLX_FN uvec4 column_place(PTR(u32) meta, const uint column) {
    const uint k0 = META(15u), k1 = META(16u), k2 = META(17u);
    const uint taps = k0 * k1 * k2, tap = column % taps;
    uvec4 at;
    at.y = tap / (k1 * k2) * META(9u) - META(12u);
    at.z = tap / k2 % k1 * META(10u) - META(13u);
    at.w = tap % k2 * META(11u) - META(14u);
    at.x = ((column / taps * META(0u) + at.y) * META(1u) + at.z) * META(2u) + at.w;
    return at;
}

RLX_FN void conv_weight_body(PTR(TI) x, PTR(TI) d, PTR(u32) meta, PTR(TO) y, const uint batch, const uint groups,
                             const uint rows, const uint columns, const uint chunk, const uint splits) {
    const uint tiles_m = (rows + BM - 1u) / BM, tiles_n = (columns + BN - 1u) / BN;
    const uint z = GROUP / (tiles_m * tiles_n), tile = GROUP % (tiles_m * tiles_n);
    const uint part = z % splits, g = z / splits;
    if (g >= groups) return;
    const uint m0 = tile % tiles_m * BM, n0 = tile / tiles_m * BN;
    const uint s0 = META(0u), s1 = META(1u), s2 = META(2u), t1 = META(4u), t2 = META(5u);
    const uint step0 = META(6u), step1 = META(7u), step2 = META(8u), image_size = META(18u);
    const uint positions = META(3u) * t1 * t2, terms = batch * positions;
    const uint begin = part * chunk;
    const uint end = terms < begin + chunk ? terms : begin + chunk;

    // This thread fetches one term of every 32nd row and column.
    const uint mine = THREAD % BK, line = THREAD / BK;
    uvec4 places[FETCH_X];
    UNROLL for (uint f = 0u; f < FETCH_X; f++) places[f] = column_place(meta, n0 + line + 32u * f);
    const uint ty = THREAD / 16u, tx = THREAD % 16u;
    vec4 acc[4u * RM * RN];
    float fetched_d[FETCH_D], fetched_x[FETCH_X];
    const vec4 zero = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    UNROLL for (uint i = 0u; i < 4u * RM * RN; i++) acc[i] = zero;

    uint side = 1u;
    // One turn more than there are slices: each fetches the next slice while it multiplies the last.
    for (uint k = begin; k < end + BK; k += BK) {
        const uint term = k + mine;
        const bool live = term < end;
        const uint image = term / positions, t = term % positions;
        const uint p0 = t / (t1 * t2) * step0, p1 = t / t2 % t1 * step1, p2 = t % t2 * step2;
        const uint base = image * image_size + g * META(19u) + (p0 * s1 + p1) * s2 + p2;
        const uint d_base = (image * groups * rows + g * rows) * positions + t;
        UNROLL for (uint f = 0u; f < FETCH_D; f++) {
            const uint row = m0 + line + 32u * f;
            fetched_d[f] = live && row < rows ? LOAD(TI, d, d_base + row * positions) : 0.0f;
        }
        UNROLL for (uint f = 0u; f < FETCH_X; f++) {
            const uvec4 at = places[f];
            const bool inside = live && n0 + line + 32u * f < columns && p0 + at.y < s0 && p1 + at.z < s1 &&
                                p2 + at.w < s2;
            fetched_x[f] = inside ? LOAD(TI, x, base + at.x) : 0.0f;
        }
        if (k > begin) {
            UNROLL for (uint kk = 0u; kk < BK; kk++) {
                vec4 ra[RM], rb[RN];
                UNROLL for (uint i = 0u; i < RM; i++) ra[i] = tile_d[(side * BK + kk) * (LINE_D / 4u) + ty + 16u * i];
                UNROLL for (uint j = 0u; j < RN; j++) rb[j] = tile_x[(side * BK + kk) * (LINE_X / 4u) + tx + 16u * j];
                UNROLL for (uint i = 0u; i < RM; i++) {
                    UNROLL for (uint j = 0u; j < RN; j++) {
                        FMA_ROW(acc[(i * 4u + 0u) * RN + j], ra[i].x, rb[j])
                        FMA_ROW(acc[(i * 4u + 1u) * RN + j], ra[i].y, rb[j])
                        FMA_ROW(acc[(i * 4u + 2u) * RN + j], ra[i].z, rb[j])
                        FMA_ROW(acc[(i * 4u + 3u) * RN + j], ra[i].w, rb[j])
                    }
                }
            }
        }
        side = 1u - side;
        UNROLL for (uint f = 0u; f < FETCH_D; f++) {
            ELEMENT(tile_d, (side * BK + mine) * LINE_D + line + 32u * f) = fetched_d[f];
        }
        UNROLL for (uint f = 0u; f < FETCH_X; f++) {
            ELEMENT(tile_x, (side * BK + mine) * LINE_X + line + 32u * f) = fetched_x[f];
        }
        BARRIER;
    }

    PTR(TO) py = SKIP(TO, SKIP(TO, y, part, groups * rows * columns), g, rows * columns);
    UNROLL for (uint j = 0u; j < RN; j++) {
        const uint column = n0 + (tx + 16u * j) * 4u;
        UNROLL for (uint r = 0u; r < 4u * RM; r++) {
            const uint row = m0 + (ty + r / 4u * 16u) * 4u + r % 4u;
            if (row < rows) {
                const vec4 v = acc[r * RN + j];
                if (column < columns) STORE(TO, py, row * columns + column, v.x);
                if (column + 1u < columns) STORE(TO, py, row * columns + column + 1u, v.y);
                if (column + 2u < columns) STORE(TO, py, row * columns + column + 2u, v.z);
                if (column + 3u < columns) STORE(TO, py, row * columns + column + 3u, v.w);
            }
        }
    }
}
