// What the gradients of attention by matrix instructions share. attention_matrix.h has the constants, except that TERMS
// is 1; DEEP is the number of matrices of 16 rows that a warp has, and KEYS the rows of the other operand, at a time.
// Of each query, `rows` has the greatest score as a power of two, the inverse of the sum of weights beside it, delta,
// which is the sum over keys of P dP, and the greatest |dP|: four planes of (count, sq). P = exp2(score - the first)
// times the second, and dS = P (dP - delta) times the slope of the soft cap. Scores are rounded before the greatest is
// taken off, so that its own weight is 1 however large it is.
// A half of 5 bits of exponent holds few of the magnitudes that P and dS have. So it holds 2^15 P, at most 2^15, and dS
// times the power of two by which |dP| of all rows stays below 2^14.
#define TERMS 1u
#include "attention_matrix.h"
#define LIFT_f16 32768.0f
#define LIFT_bf16 1.0f
#define LIFT RLX_JOIN(LIFT_, MATRIX)
#define LIFTED (LIFT > 1.0f)
// A score less the greatest, as the pass that found the sum of the weights took it off: the forward pass rounds once.
#define LESS(x, factor, top) (FROM_FORWARD ? FMA(x, factor, -(top)) : (x) * (factor) - (top))
#define PLANE(rows, n) SKIP(f32, SKIP(f32, rows, (n) * count, sq), bh, sq)

// The power of two that brings numbers up to `most` below 2^14, and its inverse; neither is zero or infinite.
RLX_FN float power_for(const float most) {
    const uint e = RLX_BITS(most) >> 23 & 255u;
    return RLX_FLOAT((e < 14u ? 253u : 267u - e) << 23);
}
RLX_FN float inverse_power(const float power) { return RLX_FLOAT(0x7f000000u - RLX_BITS(power)); }

// The slope of the soft cap where a product is x: 1 - tanh^2 = 4 r (1 - r) with r = 1 / (exp(2 x scale / cap) + 1).
RLX_FN float slope_of(const float x, const float scale, const float inverse_cap) {
    const float r = QUICK_RECIP(EXP2(x * scale * (2.0f * LOG2_E) * inverse_cap) + 1.0f);
    return 4.0f * r * (1.0f - r);
}

// For the kernel of the queries' gradient: the tile that a workgroup computes.
#define PLACE_QUERIES                                                       \
    PTR(O) y = dq;                                                          \
    PLACE_ROWS                                                              \
    PLACE_TILE                                                              \
    PTR(T) pd = HEAD(T, dy, Y_BY_TOKEN, batch, head, heads, sq, d_row, d);  \
    PTR(O) to_q = HEAD(O, dq, Q_BY_TOKEN, batch, head, heads, sq, q_row, d);
// For the kernel of the keys' gradients: the tile that a workgroup computes, the range of queries that see some of its
// keys, in `turns` parts of each head, and the power of two for dS. With `causal` the first keys, which most queries
// see, come first.
#define PLACE_KEYS                                                                                       \
    const uint tiles = (sk + TILE_ROWS - 1u) / TILE_ROWS, group = heads / kv_heads, all = count / group; \
    const uint kv = CAUSAL ? GROUP % all : GROUP / tiles, nth = CAUSAL ? GROUP / all : GROUP % tiles;    \
    if (kv >= all || nth >= tiles) return;                                                               \
    const uint k0 = nth * TILE_ROWS, batch = kv / kv_heads, head0 = kv % kv_heads * group;               \
    PLACE_ROWS                                                                                           \
    PTR(T) pk = HEAD(T, k, K_BY_TOKEN, batch, kv % kv_heads, kv_heads, sk, k_row, d);                    \
    PTR(T) pv = HEAD(T, v, V_BY_TOKEN, batch, kv % kv_heads, kv_heads, sk, v_row, d);                    \
    PTR(O) to_k = HEAD(O, dk, K_BY_TOKEN, batch, kv % kv_heads, kv_heads, sk, k_row, d);                 \
    PTR(O) to_v = HEAD(O, dv, V_BY_TOKEN, batch, kv % kv_heads, kv_heads, sk, v_row, d);                 \
    const int len = key_count(lengths, batch * each, sk), reach = int(window), shift = len - int(sq);    \
    int begin = 0, end = int(sq);                                                                        \
    if (CAUSAL) begin = larger_i(begin, int(k0) - shift);                                                \
    if (WINDOWED) {                                                                                      \
        begin = larger_i(begin, int(k0) - shift - reach);                                                \
        end = lesser_i(end, int(k0 + TILE_ROWS) - shift + reach);                                        \
    }                                                                                                    \
    if (int(k0) >= len || end < begin) end = begin;                                                      \
    const uint turns = (uint(end - begin) + KEYS - 1u) / KEYS;                                           \
    const float inverse_cap = CAPPED ? p_recip_f(cap) : 0.0f;                                            \
    float power = 1.0f;                                                                                  \
    if (LIFTED) {                                                                                        \
        float most = 0.0f;                                                                               \
        for (uint g = 0u; g < group; g++) {                                                              \
            const uint bh = batch * heads + head0 + g;                                                   \
            PTR(f32) greatest = PLANE(rows, 3u);                                                         \
            for (uint i = uint(begin) + LANE; int(i) < end; i += 32u) {                                  \
                const float x = LOAD(f32, greatest, i);                                                  \
                most = larger(x == INFINITE ? 0.0f : x, most);                                           \
            }                                                                                            \
        }                                                                                                \
        UNROLL for (uint step = 1u; step < 32u; step *= 2u) most = larger(SHUFFLE(most, step), most);    \
        power = power_for(most);                                                                         \
    }
// Whether each of the KEYS queries from q0 on sees each key of the tile, leaving the mask aside.
#define SEEN_BY_ALL(q0)                                                                       \
    (int(k0 + TILE_ROWS) <= len && (!CAUSAL || int(k0 + TILE_ROWS) - 1 <= int(q0) + shift) && \
     (!WINDOWED || (int(k0) >= int((q0) + KEYS) - 1 + shift - reach &&                        \
                    (CAUSAL || int(k0 + TILE_ROWS) - 1 <= int(q0) + shift + reach))))
// What is read of query `first` + THREAD of head bh, as a unit; a query beyond the last has weights of 0.
#define NUMBER_OF(number, first)                                                                                    \
    {                                                                                                               \
        const uint i = (first) + THREAD;                                                                            \
        number = UVEC4(0u, 0u, 0u, 0u);                                                                             \
        if (THREAD < KEYS && i < sq)                                                                                \
            number = UVEC4(RLX_BITS(LOAD(f32, PLANE(rows, 0u), i)), RLX_BITS(LOAD(f32, PLANE(rows, 1u), i) * LIFT), \
                           RLX_BITS(LOAD(f32, PLANE(rows, 2u), i)), 0u);                                            \
    }
