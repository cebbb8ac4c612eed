// y (m, n) = (a - a_zero) (b - b_zero)ᵀ, of rows of k bytes, in i32, which wraps. a_signs, b_signs: 0x80808080 for bytes
// without a sign, which are multiplied less 128, as their zero points are; else 0. a_step, b_step: 0 where one zero point
// is for all rows, else 1. WHOLE: rows are multiples of 16 bytes, at such addresses; else every byte is loaded with the
// word that holds it. ROWS rows of a are multiplied by a group; ACROSS threads share a row of b, up to 32. DOT: dot4.h.
#include "dot4.h"
#define MANY_1 1u
#define MANY_4 4u
#define MANY_16 16u
#define MANY RLX_JOIN(MANY_, ROWS)
#define COLUMNS (256u / ACROSS)

RLX_FN float plus(const float a, const float b) { return a + b; }
LANES_OP(lane_sum, ACROSS, plus)
// A sum of integers, which wraps, of floats that are exact.
RLX_FN int lane_total(const int v) {
    const int high = v >> 12;
    const float upper = lane_sum(float(high));
    return int(lane_sum(float(v - high * 4096))) + int(upper) * 4096;
}

// Four bytes from byte `at` on as signed ones; 0 for those from `end` on.
RLX_FN uint four_bytes(PTR(u32) p, const uint at, const uint end, const uint signs) {
    if (at >= end) return 0u;
    const uint left = end - at, shift = at % 4u * 8u;
    uint w = p AT(at / 4u) >> shift;
    if (shift > 0u && shift + 8u * (left < 4u ? left : 4u) > 32u) w |= p AT(at / 4u + 1u) << (32u - shift);
    w ^= signs;
    return left < 4u ? w & ((1u << 8u * left) - 1u) : w;
}
RLX_FN uvec4 sixteen_bytes(PTR(u32) p, const uint row, const uint at, const uint k, const uint signs) {
    if (WHOLE) {
        const uvec4 v = SIXTEEN_AT(p, (row * k + at) / 16u);
        return MAKE_UVEC4(v.x ^ signs, v.y ^ signs, v.z ^ signs, v.w ^ signs);
    }
    const uint from = row * k + at, end = row * k + k;
    return MAKE_UVEC4(four_bytes(p, from, end, signs), four_bytes(p, from + 4u, end, signs),
                      four_bytes(p, from + 8u, end, signs), four_bytes(p, from + 12u, end, signs));
}

RLX_FN void integer_matmul_body(PTR(u32) a, PTR(u32) b, PTR(i32) a_zero, PTR(i32) b_zero, PTR(i32) y, const uint m,
                                const uint n, const uint k, const uint a_signs, const uint b_signs, const uint a_step,
                                const uint b_step) {
    const uint tiles = (n + COLUMNS - 1u) / COLUMNS;
    const uint column = GROUP % tiles * COLUMNS + THREAD / ACROSS, lane = THREAD % ACROSS;
    const uint first = GROUP / tiles * MANY;
    if (first >= m) return;
    const uint rows = m - first < MANY ? m - first : MANY;
    PTR(i32) py = SKIP(i32, y, first, n);
    const uint at_b = column < n ? column : 0u;
    const int zero_b = LOAD(i32, b_zero, at_b * b_step) - int(b_signs & 128u);
    int acc[MANY];
    int zero_a[MANY];
    UNROLL for (uint r = 0u; r < MANY; r++) {
        acc[r] = 0;
        zero_a[r] = LOAD(i32, a_zero, (first + (r < rows ? r : 0u)) * a_step) - int(a_signs & 128u);
    }
    const uvec4 ones = MAKE_UVEC4(0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u);
    for (uint at = lane * 16u; at < k; at += ACROSS * 16u) {
        const uvec4 w = sixteen_bytes(b, at_b, at, k, b_signs);
        const int sum_b = DOT16(ones, w);
        UNROLL for (uint r = 0u; r < MANY; r++) {
            const uvec4 v = sixteen_bytes(a, first + (r < rows ? r : 0u), at, k, a_signs);
            acc[r] += DOT16(v, w) - zero_b * DOT16(ones, v) - zero_a[r] * sum_b;
        }
    }
    UNROLL for (uint r = 0u; r < MANY; r++) {
        const int sum = lane_total(acc[r]);
        if (column < n && r < rows && lane == r % ACROSS) {
            STORE(i32, py, r * n + column, sum + int(k) * zero_a[r] * zero_b);
        }
    }
}
