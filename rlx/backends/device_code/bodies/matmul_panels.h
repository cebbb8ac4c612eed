// C = act(op(A) op(B) + bias) for halves (T: f16 or bf16) by instructions of warpgroups: products are exact, sums are f32.
// Two workgroups, a cluster, compute 256 x 256 of C, each 128 rows of them, and share what they read of B: each brings one
// half of it to both. Of a workgroup one warpgroup brings slices of 64 terms, of which shared memory holds SLICES, and two
// multiply 64 rows each. Workgroups stay for one tile after the other: while the last results of a tile leave, the first
// slices of the next come. C_UNITS: C may be written by units of 16 bytes; WIDE: C is f32. `rows_a` to `high_b` say how
// the maps of A and B were made (ArgDecl.tile).
#define TA T
#define TB T
#define MATRIX T
#define C_QUADS false
#include "matmul_out.h"
#include "wgmma.h"
#define BM 128u
#define BN 256u
#define BK 64u
#define PART_A (BM * BK / 8u)  // units of A in a slice
#define SLICE ((BM + BN) * BK / 8u)
#define BAND 8u  // rows of pairs of tiles of which a column is computed before the next: they find B in the cache
#ifdef RLX_ON_HOST
PANELS_IN_UNITS(SLICE)
#define MULTIPLY_TILE(c, a, b, more) RLX_JOIN(rlx_wg_tile_, MATRIX)(units, c, a, b, more, A_TRANSPOSED, B_TRANSPOSED)
#else
PANELS_IN_UNITS(SLICES * SLICE + SLICES)
#define MULTIPLY_TILE(c, a, b, more) RLX_JOIN(rlx_wg_tile_, MATRIX)(c, a, b, more)
#define RLX_WG_TILE(H, TYPE)                                                                                    \
    RLX_FN void rlx_wg_tile_##H(float* c, const rlx_u64 a, const rlx_u64 b, const uint more) {                  \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"                                              \
                     "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE " " RLX_WG_SUMS_256           \
                     "%128, %129, p, 1, 1, %131, %132;\n}"                                                      \
                     : RLX_WG_OUT_128(c), RLX_WG_16(c, 64), RLX_WG_16(c, 80), RLX_WG_16(c, 96), RLX_WG_16(c, 112) \
                     : "l"(a), "l"(b), "r"(more), "n"(A_TRANSPOSED ? 1 : 0), "n"(B_TRANSPOSED ? 0 : 1));         \
    }
RLX_WG_TILE(f16, "f16")
RLX_WG_TILE(bf16, "bf16")
#endif
// Sixteen terms of A's 64 rows and of B in the slice `at`.
#define TERMS_OF_A(at, group, kk) \
    (A_TRANSPOSED ? WG_MATRIX((at) * SLICE + (group) * 512u + (kk) * 128u, 512u) \
                  : WG_MATRIX((at) * SLICE + (group) * 512u + (kk) * 2u, 1u))
#define TERMS_OF_B(at, kk) \
    (B_TRANSPOSED ? WG_MATRIX((at) * SLICE + PART_A + (kk) * 2u, 1u) \
                  : WG_MATRIX((at) * SLICE + PART_A + (kk) * 128u, 512u))
#define MULTIPLY_SLICE(at, group, first)                                                                        \
    UNROLL for (uint kk = 0u; kk < BK / 16u; kk++) {                                                            \
        MULTIPLY_TILE(acc, TERMS_OF_A(at, group, kk), TERMS_OF_B(at, kk), (first) + kk);                        \
    }
// BRING(map, unit, row, column, all) each tile of slice t, of B those of workgroup `rank`.
#define BRING_SLICE(t, rank)                                                                                    \
    if (A_TRANSPOSED) {                                                                                         \
        BRING(a, 0u, (t) * BK, m0, false)                                                                       \
        BRING(a, 512u, (t) * BK, m0 + 64u, false)                                                               \
    } else {                                                                                                    \
        BRING(a, 0u, m0, (t) * BK, false)                                                                       \
    }                                                                                                           \
    if (B_TRANSPOSED) {                                                                                         \
        BRING(b, PART_A + (rank) * 1024u, n0 + (rank) * 128u, (t) * BK, true)                                   \
    } else {                                                                                                    \
        BRING(b, PART_A + (rank) * 1024u, (t) * BK, n0 + (rank) * 128u, true)                                   \
        BRING(b, PART_A + (rank) * 1024u + 512u, (t) * BK, n0 + (rank) * 128u + 64u, true)                      \
    }

// The activation of results that are rounded to halves.
RLX_FN float ended(const float x) {
    if (WIDE) return activated(x);
    if (ACTIVATION == 2u) return h_gelu(x);
    if (ACTIVATION == 3u) {
        const float inner = 0.79788456080286536f * RLX_MAD(0.044715f * x * x, x, x);
        return x * h_recip(1.0f + RLX_FLUSHED_EXP2(inner * -2.885390043f));
    }
    if (ACTIVATION == 4u) return h_logistic(x, x);
    if (ACTIVATION == 5u) return h_tanh(x);
    if (ACTIVATION == 6u) return h_logistic(1.0f, x);
    return activated(x);
}

RLX_FN void put_half(PTR(T) c, const uint at, const uint half) { c[at] = (unsigned short)half; }

// Among four neighbouring lanes: word i goes to lane i, from which word l comes, if it is lane l.
RLX_FN void exchange(uint* words) {
    UNROLL for (uint step = 1u; step < 4u; step *= 2u) {
        const bool odd = (LANE & step) != 0u;
        UNROLL for (uint i = 0u; i < 2u; i++) {
            const uint low = step == 1u ? i * 2u : i, high = low + step;
            const float given = RLX_FLOAT(odd ? words[low] : words[high]);
            const uint got = RLX_BITS(__shfl_xor_sync(0xffffffffu, given, step));
            words[low] = odd ? got : words[low];
            words[high] = odd ? words[high] : got;
        }
    }
}

// Puts a warp's 16 rows from `row` on, 256 columns from n0 on.
RLX_FN void put_rows(float* acc, PTR(f32) bias, PTR(T) c, const uint row, const uint n0, const uint m, const uint n) {
    UNROLL for (uint j = 0u; j < BN / 32u; j++) {
        float add[8];
        UNROLL for (uint i = 0u; i < 8u; i++) {
            const uint column = n0 + j * 32u + i / 2u * 8u + LANE % 4u * 2u + i % 2u;
            add[i] = HAS_BIAS && column < n ? bias_at(bias, column) : 0.0f;
        }
        UNROLL for (uint h = 0u; h < 2u; h++) {
            const uint line = row + h * 8u + LANE / 4u;
            uint words[4];
            UNROLL for (uint i = 0u; i < 4u; i++) {
                const uint e = (j * 4u + i) * 4u + h * 2u;
                const float x = ended(HAS_BIAS ? acc[e] + add[i * 2u] : acc[e]);
                const float y = ended(HAS_BIAS ? acc[e + 1u] + add[i * 2u + 1u] : acc[e + 1u]);
                if (WIDE) {
                    const uint column = n0 + j * 32u + i * 8u + LANE % 4u * 2u;
                    if (line < m && column < n) STORE(f32, AS(f32, c), line * n + column, x);
                    if (line < m && column + 1u < n) STORE(f32, AS(f32, c), line * n + column + 1u, y);
                } else {
                    words[i] = pair_bits(x, y);
                }
            }
            if (WIDE) continue;
            exchange(words);
            const uint column = n0 + j * 32u + LANE % 4u * 8u, at = line * n + column;
            if (line >= m || column >= n) continue;
            if (C_UNITS) {
                ((uint4*)c)[at / 8u] = make_uint4(words[0], words[1], words[2], words[3]);
                continue;
            }
            UNROLL for (uint i = 0u; i < 8u; i++) {
                if (column + i < n) put_half(c, at + i, words[i / 2u] >> i % 2u * 16u & 0xffffu);
            }
        }
    }
}

RLX_FN void matmul_panels_body(MAP_IN a, MAP_IN b, PTR(f32) bias, PTR(T) c, const uint m, const uint n, const uint k,
                               const uint rows_a, const uint columns_a, const uint high_a, const uint rows_b,
                               const uint columns_b, const uint high_b) {
    const uint rank = GROUP % 2u, first = GROUP / 2u, pairs = gridDim.x / 2u;
    const uint high = (m + 2u * BM - 1u) / (2u * BM), wide = (n + BN - 1u) / BN, slices = (k + BK - 1u) / BK;
    const uint part = THREAD / 128u;  // 0 brings slices, the others multiply
    uint at = 0u, parity = 0u;
#define NEXT_TILE                                                                                               \
    const uint above = tile / (BAND * wide) * BAND, left = tile - above * wide;                                 \
    const uint across = high - above < BAND ? high - above : BAND;                                              \
    const uint m0 = ((above + left % across) * 2u + rank) * BM, n0 = left / across * BN;
#define NEXT_SLICE                                                                                              \
    at = at + 1u == SLICES ? 0u : at + 1u;                                                                      \
    parity ^= at == 0u ? 1u : 0u;
#ifdef RLX_ON_HOST
#define BRING(map, unit, row, column, all) rlx_bring(units, map, unit, row, column);
    for (uint tile = first; tile < high * wide; tile += pairs) {
        NEXT_TILE
        float acc[BN / 2u];
        for (uint t = 0u; t < slices; t++) {
            if (THREAD == 0u) {
                BRING_SLICE(t, 0u)
                BRING_SLICE(t, 1u)
            }
            BARRIER;
            if (part != 0u) MULTIPLY_SLICE(0u, part - 1u, t)
            BARRIER;
        }
        if (part != 0u) put_rows(acc, bias, c, m0 + (THREAD / 32u - 4u) * 16u, n0, m, n);
    }
#else
    const uint start = (uint)__cvta_generic_to_shared(units), full = start + SLICES * SLICE * 16u;
    const uint empty = full + SLICES * 8u;
    if (THREAD == 0u) {
        UNROLL for (uint s = 0u; s < SLICES; s++) {
            rlx_barrier_make(full + s * 8u, 1u);
            rlx_barrier_make(empty + s * 8u, 16u);  // the multiplying warps of both workgroups
        }
        rlx_barriers_made();
    }
    rlx_cluster_meet();
    if (part == 0u) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (THREAD == 0u) {
#define BRING(map, unit, row, column, all) \
    rlx_bring(map, start + (at * SLICE + (unit)) * 16u, full + at * 8u, row, column, all);
            for (uint tile = first; tile < high * wide; tile += pairs) {
                NEXT_TILE
                for (uint t = 0u; t < slices; t++) {
                    rlx_barrier_wait(empty + at * 8u, parity ^ 1u);
                    rlx_barrier_expect(full + at * 8u, SLICE * 16u);
                    BRING_SLICE(t, rank)
                    NEXT_SLICE
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        float acc[BN / 2u];
        for (uint tile = first; tile < high * wide; tile += pairs) {
            NEXT_TILE
            uint before = at;
            for (uint t = 0u; t < slices; t++) {
                rlx_barrier_wait(full + at * 8u, parity);
                WG_READY
                MULTIPLY_SLICE(at, part - 1u, t)
                WG_SENT
                WG_WAIT(1)
                if (t != 0u && LANE < 2u) rlx_barrier_arrive(empty + before * 8u, LANE);
                before = at;
                NEXT_SLICE
            }
            WG_WAIT(0)
            HOLD(acc, BN / 2u)
            if (LANE < 2u) rlx_barrier_arrive(empty + before * 8u, LANE);
            put_rows(acc, bias, c, m0 + (THREAD / 32u - 4u) * 16u, n0, m, n);
        }
    }
    // A workgroup's shared memory stays until the other has brought and arrived there.
    rlx_cluster_meet();
#endif
}
