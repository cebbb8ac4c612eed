// y[n, g, row, t] = act(sum over k of w[g, row, k] * x[n, g, t * step + taps[k]] + bias[g, row]): convolution as a
// product of weights and columns that are never stored. A group of 256 makes a tile of BM rows and BN columns (64 or
// 128 each); columns run over images and the positions t of one phase. SPARSE: weights lie where `places` says (a
// transposed convolution: each phase of the output has taps of its own), else in rows; HAS_BIAS; ACTIVATION as in
// activation.h; W_QUADS, Y_QUADS: weights may be read, y written, four at a time. AB names the storage of x and y, and
// of w. meta: input sizes (3), steps (3), elements of an image and of a group of x, of a channel of y, strides of y
// along t (3), elements of a group and of a row of w, elements of y, 0; then for each phase terms, first tap, positions
// (3), first element of y. taps[k]: offset in x, then the offsets along each axis, as i32. With several splits the sums
// of `chunk` terms each go to y one after another, without bias and activation.
#include "pair.h"
#define BK 8u
#define RM (BM / 64u)
#define RN (BN / 64u)
#define FETCH_W ((BM * BK / 4u + 255u) / 256u)
#define FETCH_X (BN * BK / 256u)
#define META(i) LOAD(u32, meta, i)
#define PHASE(i) LOAD(u32, meta, 16u + phase * 8u + (i))

#include "activation.h"
#include "quads.h"

SHARED vec4 tile_w[2u * BK * BM / 4u];  // [side][k][row / 4]
SHARED vec4 tile_x[2u * BK * BN / 4u];

RLX_QUAD(quad_w, TB, W_QUADS)

// Four terms of a row of weights from k on, of those below `end`.
RLX_FN vec4 weights(PTR(TB) w, PTR(u32) places, const uint row, const uint rows, const uint stride, const uint first,
                    const uint k, const uint end) {
    vec4 v = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    if (row >= rows) return v;
    if (k < end) v.x = LOAD(TB, w, row * stride + LOAD(u32, places, first + k));
    if (k + 1u < end) v.y = LOAD(TB, w, row * stride + LOAD(u32, places, first + k + 1u));
    if (k + 2u < end) v.z = LOAD(TB, w, row * stride + LOAD(u32, places, first + k + 2u));
    if (k + 3u < end) v.w = LOAD(TB, w, row * stride + LOAD(u32, places, first + k + 3u));
    return v;
}

// Term k of the column that begins at `base` of x, at (p0, p1, p2); zero in the padding and where !live.
RLX_FN float column_term(PTR(TA) x, PTR(b16) taps, const uint k, const bool live, const uint base, const uint p0,
                         const uint p1, const uint p2, const uint s0, const uint s1, const uint s2) {
    if (!live) return 0.0f;
    const uvec4 tap = taps AT(k);
    return p0 + tap.y < s0 && p1 + tap.z < s1 && p2 + tap.w < s2 ? LOAD(TA, x, base + tap.x) : 0.0f;
}

#define FETCH_WEIGHTS(row, k) \
    (SPARSE ? weights(pw, places, m0 + (row), rows, w_row, first, k, terms) : quad_w(pw, m0 + (row), k, rows, terms, terms))
#define FETCH_COLUMN(k) column_term(x, taps, first + (k), live && (k) < terms, base, p0, p1, p2, s0, s1, s2)
#define PLACE_WEIGHTS(side, f, v)                                           \
    {                                                                       \
        const uint at = ((side) * BK + (f) % 2u * 4u) * BM + (f) / 2u;      \
        ELEMENT(tile_w, at) = v.x;                                          \
        ELEMENT(tile_w, at + BM) = v.y;                                     \
        ELEMENT(tile_w, at + 2u * BM) = v.z;                                \
        ELEMENT(tile_w, at + 3u * BM) = v.w;                                \
    }

RLX_FN void conv_body(PTR(TA) x, PTR(TB) w, PTR(f32) bias, PTR(b16) taps, PTR(u32) places, PTR(u32) meta, PTR(TA) y,
                      const uint batch, const uint groups, const uint rows, const uint phases, const uint columns,
                      const uint chunk, const uint splits) {
    const uint tiles_m = (rows + BM - 1u) / BM, tiles_n = (columns + BN - 1u) / BN;
    const uint z = GROUP / (tiles_m * tiles_n), tile = GROUP % (tiles_m * tiles_n);
    const uint part = z % splits, phase = z / splits % phases, g = z / (splits * phases);
    if (g >= groups) return;
    const uint terms = PHASE(0u), first = PHASE(1u), t1 = PHASE(3u), t2 = PHASE(4u);
    const uint positions = PHASE(2u) * t1 * t2, count = batch * positions;
    const uint m0 = tile % tiles_m * BM, n0 = tile / tiles_m * BN;
    if (n0 >= count) return;
    const uint s0 = META(0u), s1 = META(1u), s2 = META(2u);
    const uint w_row = META(13u);
    PTR(TB) pw = SKIP(TB, w, g, META(12u));
    const uint begin = part * chunk;
    const uint end = terms < begin + chunk ? terms : begin + chunk;

    // The column of x that this thread fetches.
    const uint mine = n0 + THREAD % BN;
    const bool live = mine < count;
    const uint image = mine / positions, t = mine % positions;
    const uint p0 = t / (t1 * t2) * META(3u), p1 = t / t2 % t1 * META(4u), p2 = t % t2 * META(5u);
    const uint base = image * META(6u) + g * META(7u) + (p0 * s1 + p1) * s2 + p2;

    const uint ty = THREAD / 16u, tx = THREAD % 16u;
    vec4 acc[4u * RM * RN];
    vec4 fetched_w[FETCH_W];
    float fetched_x[FETCH_X];
    const vec4 zero = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    UNROLL for (uint i = 0u; i < 4u * RM * RN; i++) acc[i] = zero;

    UNROLL for (uint f = 0u; f < FETCH_W; f++) {
        const uint q = f * 256u + THREAD;
        if (q < BM * BK / 4u) {
            const vec4 v = FETCH_WEIGHTS(q / 2u, begin + q % 2u * 4u);
            PLACE_WEIGHTS(0u, q, v)
        }
    }
    UNROLL for (uint f = 0u; f < FETCH_X; f++) {
        ELEMENT(tile_x, f * 256u + THREAD) = FETCH_COLUMN(begin + f * (256u / BN) + THREAD / BN);
    }
    BARRIER;
    uint side = 0u;
    for (uint k = begin; k < end; k += BK) {
        const bool more = k + BK < end;
        if (more) {
            UNROLL for (uint f = 0u; f < FETCH_W; f++) {
                const uint q = f * 256u + THREAD;
                if (q < BM * BK / 4u) fetched_w[f] = FETCH_WEIGHTS(q / 2u, k + BK + q % 2u * 4u);
            }
            UNROLL for (uint f = 0u; f < FETCH_X; f++) {
                fetched_x[f] = FETCH_COLUMN(k + BK + f * (256u / BN) + THREAD / BN);
            }
        }
        UNROLL for (uint kk = 0u; kk < BK; kk++) {
            vec4 ra[RM], rb[RN];
            UNROLL for (uint i = 0u; i < RM; i++) ra[i] = tile_w[(side * BK + kk) * (BM / 4u) + ty + 16u * i];
            UNROLL for (uint j = 0u; j < RN; j++) rb[j] = tile_x[(side * BK + kk) * (BN / 4u) + tx + 16u * j];
            UNROLL for (uint i = 0u; i < RM; i++) {
                UNROLL for (uint j = 0u; j < RN; j++) {
                    FMA_ROW(acc[(i * 4u + 0u) * RN + j], ra[i].x, rb[j])
                    FMA_ROW(acc[(i * 4u + 1u) * RN + j], ra[i].y, rb[j])
                    FMA_ROW(acc[(i * 4u + 2u) * RN + j], ra[i].z, rb[j])
                    FMA_ROW(acc[(i * 4u + 3u) * RN + j], ra[i].w, rb[j])
                }
            }
        }
        side = 1u - side;
        if (more) {
            UNROLL for (uint f = 0u; f < FETCH_W; f++) {
                const uint q = f * 256u + THREAD;
                if (q < BM * BK / 4u) PLACE_WEIGHTS(side, q, fetched_w[f])
            }
            UNROLL for (uint f = 0u; f < FETCH_X; f++) {
                ELEMENT(tile_x, side * BK * BN + f * 256u + THREAD) = fetched_x[f];
            }
        }
        BARRIER;
    }

    const uint plane = META(8u), y0 = META(9u), y1 = META(10u), y2 = META(11u);
    PTR(TA) py = SKIP(TA, y, part, META(14u));
    UNROLL for (uint j = 0u; j < RN; j++) {
        uint at[4];
        const uint column = n0 + (tx + 16u * j) * 4u;
        UNROLL for (uint c = 0u; c < 4u; c++) {
            const uint u = (column + c) % positions;
            at[c] = (column + c) / positions * (groups * rows * plane) + PHASE(5u) + u / (t1 * t2) * y0 +
                    u / t2 % t1 * y1 + u % t2 * y2;
        }
        UNROLL for (uint r = 0u; r < 4u * RM; r++) {
            const uint row = m0 + (ty + r / 4u * 16u) * 4u + r % 4u;
            if (row < rows && column < count) {
                vec4 v = acc[r * RN + j];
                const uint channel = (g * rows + row) * plane;
                if (HAS_BIAS) {
                    const float add = LOAD(f32, bias, g * rows + row);
                    v = VEC4(v.x + add, v.y + add, v.z + add, v.w + add);
                }
                v = VEC4(activated(v.x), activated(v.y), activated(v.z), activated(v.w));
                if (Y_QUADS) {
                    STORE4(TA, py, (channel + at[0]) / 4u, v);
                } else {
                    STORE(TA, py, channel + at[0], v.x);
                    if (column + 1u < count) STORE(TA, py, channel + at[1], v.y);
                    if (column + 2u < count) STORE(TA, py, channel + at[2], v.z);
                    if (column + 3u < count) STORE(TA, py, channel + at[3], v.w);
                }
            }
        }
    }
}
