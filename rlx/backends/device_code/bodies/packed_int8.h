// y (m, n) = rows of integers times the transposed packed rows of w, by integer dot products: see packed.h. x: the rows
// in words of four, d: a scale for each 32 of them (int8_blocks.h). ROWS rows of x are multiplied by a group; ACROSS
// threads share a row of w, up to 32, and add up every so many chunks of it. GROUPED: see packed_experts.h; DOT: dot4.h.
#include "dot4.h"
#include "packed.h"
#include "packed_experts.h"
#define MANY_1 1u
#define MANY_4 4u
#define MANY_16 16u
#define MANY RLX_JOIN(MANY_, ROWS)
#define COLUMNS (256u / ACROSS)
#define IS_IQ4 (FORMAT == IQ4_NL || FORMAT == IQ4_XS)
#define HAS_ZERO (FORMAT == INT8_ZP || FORMAT == INT4_ZP)

RLX_FN float plus(const float a, const float b) { return a + b; }
LANES_OP(lane_sum, ACROSS, plus)

// Four elements as signed bytes, less the zero that is the format's own; bytes of formats whose blocks have a zero each
// are less 128 where they have 8 bits. No sum or difference of two bytes carries into the next.
RLX_FN uint signed_quad(const Chunk c, const uint u, const uint run, const uint w) {
    const uint q = quad_of(c, u, run, w);
    if (FORMAT == Q8_0 || FORMAT == INT8 || FORMAT == INT8_ZP) return q ^ 0x80808080u;
    if (IS_IQ4) return (q ^ 0x80808080u) + 0x01010101u;
    const uint zero = HAS_ZERO ? 0u : UINT(zero_of()) * 0x01010101u;
    return ((q | 0x80808080u) - zero) ^ 0x80808080u;
}

RLX_FN void packed_int8_body(PTR(u32) x, PTR(f32) d, PTR(u32) q, PTR(i32) sizes, PTR(T) y, const uint m, const uint n,
                             const uint blocks, const uint pitch, const uint experts) {
    const uint k = blocks * BLOCK, tiles = (n + COLUMNS - 1u) / COLUMNS;
    const uint column = GROUP % tiles * COLUMNS + THREAD / ACROSS, lane = THREAD % ACROSS;
    const Share share = share_of(sizes, GROUP / tiles, m, MANY, experts);
    if (share.rows == 0u) return;
    PTR(T) py = SKIP(T, y, share.first, n);
    float acc[MANY];
    UNROLL for (uint r = 0u; r < MANY; r++) acc[r] = 0.0f;
    if (column < n && share.expert < max_experts(experts)) {
        Row from = row_of(q, share.expert * n + column, pitch);
        const Planes at = planes_of(blocks);
        for (uint c = lane; c < blocks * UNITS; c += ACROSS) {
            const uint b = c / UNITS, u = c % UNITS;
            const Chunk chunk = chunk_of(from, at, b, u);
            for (uint run = 0u; run < RUNS; run++) {
                const Scale scale = scale_of(from, at, b, u, run);
                const uint e = element_of(b, u, run);
                const uvec4 w = PACKED4(signed_quad(chunk, u, run, 0u), signed_quad(chunk, u, run, 1u),
                                        signed_quad(chunk, u, run, 2u), signed_quad(chunk, u, run, 3u));
                const uvec4 ones = PACKED4(0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u);
                const int zero = HAS_ZERO ? int(scale.zero) - (FORMAT == INT8_ZP ? 128 : 0) : 0;
                UNROLL for (uint r = 0u; r < MANY; r++) {
                    const uint row = share.first + (r < share.rows ? r : 0u);
                    const uvec4 a = SIXTEEN(x, (row * k + e) / 16u);
                    int dot = DOT16(w, a);
                    const int sum = HAS_LOW || HAS_ZERO ? DOT16(ones, a) : 0;
                    if (HAS_ZERO) dot -= zero * sum;
                    float v = scale.s * float(dot);
                    if (HAS_LOW) v = FMA(scale.m, float(sum), v);
                    acc[r] = FMA(d AT((row * k + e) / 32u), v, acc[r]);
                }
            }
        }
    }
    UNROLL for (uint r = 0u; r < MANY; r++) {
        const float sum = lane_sum(acc[r]);
        if (column < n && r < share.rows && lane == r % ACROSS) STORE(T, py, r * n + column, sum);
    }
}
