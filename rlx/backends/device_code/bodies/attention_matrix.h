// What the three attention kernels by matrix instructions share: constants, the place of a tile, and reading it. SMO
// names the storage dtype of q, k and v, the matrices' dtype MATRIX, and the storage dtype of the result. WIDE: the
// size of a head in units of 16, rounded up. FLAGS, MASK: see attention_masks.h. ALIGNED: heads may be read eight
// elements at a time. DEEP: the number of matrices of 16 queries that a warp has. KEYS: the keys of a tile. SCORES: 0,
// scores stay in registers (CUDA, attention_mma.h); 1, they go through shared memory (attention_opaque.h); 2, four
// warps multiply together (CUDA 9.0, attention_wgmma.h). TERMS: the number of terms of type MATRIX whose sum is an
// element of an operand, each the rounded remainder of those before; 2 only for bf16 from f32, where products of two
// remainders are left out, and not with SCORES = 2. Four warps compute a tile. Include mma.h and attention_words.h
// (CUDA) or mma.glsl and attention_words.glsl (GLSL) before this file.
#include "attention_masks.h"
#define S_f16_f16_f16 f16
#define S_bf16_bf16_bf16 bf16
#define S_f16_f16_f32 f16
#define S_bf16_bf16_f32 bf16
#define S_f32_f16_f32 f32
#define S_f32_bf16_f32 f32
#define M_f16_f16_f16 f16
#define M_bf16_bf16_bf16 bf16
#define M_f16_f16_f32 f16
#define M_bf16_bf16_f32 bf16
#define M_f32_f16_f32 f16
#define M_f32_bf16_f32 bf16
#define O_f16_f16_f16 f16
#define O_bf16_bf16_bf16 bf16
#define O_f16_f16_f32 f32
#define O_bf16_bf16_f32 f32
#define O_f32_f16_f32 f32
#define O_f32_bf16_f32 f32
#define KIND_f16_f16_f16 copy
#define KIND_bf16_bf16_bf16 copy
#define KIND_f16_f16_f32 copy
#define KIND_bf16_bf16_f32 copy
#define KIND_f32_f16_f32 split
#define KIND_f32_bf16_f32 split
#define T RLX_JOIN(S_, SMO)
#define O RLX_JOIN(O_, SMO)
#define MATRIX RLX_JOIN(M_, SMO)
#define KIND RLX_JOIN(KIND_, SMO)
#define TILE_ROWS (64u * DEEP)
// Units of 16 bytes of a row in shared memory; one unit of padding keeps eight rows in different banks.
#define ROW (2u * WIDE + 1u)
// The greatest score is replaced only by one that is more than this many powers of two above it. Until then weights may
// be as large as 2^SLACK, which costs no accuracy, and the sums need not be scaled.
#define SLACK 8.0f
// cap tanh(s / cap): tanh x = 1 - 2 / (exp 2x + 1), right to 2^-22 of cap.
#define BEND(s) ((cap) - 2.0f * (cap) * QUICK_RECIP(EXP2((s) * (2.0f * LOG2_E) * inverse_cap) + 1.0f))

// The remainder of x after rounding; 0 for an infinity.
RLX_FN float left_of(const float x, const float rounded) {
    return (RLX_BITS(rounded) & 0x7fffffffu) == 0x7f800000u ? 0.0f : x - rounded;
}
// The rounded remainders of two numbers after rounding to two halves.
RLX_FN uint two_rests(const uint w, const float x, const float y) {
    return two_halves(left_of(x, low_value(w)), left_of(y, high_value(w)));
}

// Eight neighbours of a row, from column c on, zero beyond column d: halves as they are, or terms 1 and 2 of f32.
struct Terms {
    uvec4 one, two;
};
#define RLX_EIGHT_OF_copy(NAME)                                                          \
    RLX_FN Terms NAME(PTR(T) p, const uint at, const uint c, const uint d) {             \
        Terms w;                                                                         \
        w.one = UVEC4(0u, 0u, 0u, 0u);                                                   \
        w.two = w.one;                                                                   \
        if (ALIGNED) {                                                                   \
            w.one = LOAD_UNIT(p, at / 8u);                                               \
            return w;                                                                    \
        }                                                                                \
        if (c < d) w.one.x = uint(p AT(at));                                             \
        if (c + 1u < d) w.one.x |= uint(p AT(at + 1u)) << 16;                            \
        if (c + 2u < d) w.one.y = uint(p AT(at + 2u));                                   \
        if (c + 3u < d) w.one.y |= uint(p AT(at + 3u)) << 16;                            \
        if (c + 4u < d) w.one.z = uint(p AT(at + 4u));                                   \
        if (c + 5u < d) w.one.z |= uint(p AT(at + 5u)) << 16;                            \
        if (c + 6u < d) w.one.w = uint(p AT(at + 6u));                                   \
        if (c + 7u < d) w.one.w |= uint(p AT(at + 7u)) << 16;                            \
        return w;                                                                        \
    }
#define RLX_EIGHT_OF_split(NAME)                                                         \
    RLX_FN Terms NAME(PTR(T) p, const uint at, const uint c, const uint d) {             \
        vec4 x = VEC4(0.0f, 0.0f, 0.0f, 0.0f), y = x;                                    \
        if (ALIGNED) {                                                                   \
            x = LOAD4(T, p, at / 4u);                                                    \
            y = LOAD4(T, p, at / 4u + 1u);                                               \
        } else {                                                                         \
            if (c < d) x.x = LOAD(T, p, at);                                             \
            if (c + 1u < d) x.y = LOAD(T, p, at + 1u);                                   \
            if (c + 2u < d) x.z = LOAD(T, p, at + 2u);                                   \
            if (c + 3u < d) x.w = LOAD(T, p, at + 3u);                                   \
            if (c + 4u < d) y.x = LOAD(T, p, at + 4u);                                   \
            if (c + 5u < d) y.y = LOAD(T, p, at + 5u);                                   \
            if (c + 6u < d) y.z = LOAD(T, p, at + 6u);                                   \
            if (c + 7u < d) y.w = LOAD(T, p, at + 7u);                                   \
        }                                                                                \
        Terms w;                                                                         \
        w.one = UVEC4(two_halves(x.x, x.y), two_halves(x.z, x.w), two_halves(y.x, y.y), two_halves(y.z, y.w)); \
        w.two = w.one;                                                                   \
        if (TERMS == 2u)                                                                 \
            w.two = UVEC4(two_rests(w.one.x, x.x, x.y), two_rests(w.one.y, x.z, x.w),    \
                             two_rests(w.one.z, y.x, y.y), two_rests(w.one.w, y.z, y.w)); \
        return w;                                                                        \
    }
RLX_JOIN(RLX_EIGHT_OF_, KIND)(eight_of)

// units[base …] = `rows` rows of P, `pitch` elements apart, from row `first` on, zero from row `limit` and column d on;
// second terms after them.
#define IS_COPY_copy true
#define IS_COPY_split false
#define COPIES RLX_JOIN(IS_COPY_, KIND)
#define FETCH_ROWS(P, base, rows, first, limit, pitch)                                   \
    UNROLL for (uint f = 0u; f < ((rows) * 2u * WIDE + 127u) / 128u; f++) {              \
        const uint g = f * 128u + THREAD, r = g / (2u * WIDE), c = g % (2u * WIDE);      \
        const uint to = (base) + r * ROW + c, from = ((first) + r) * (pitch) + c * 8u;   \
        if ((rows) * 2u * WIDE % 128u == 0u || g < (rows) * 2u * WIDE)                   \
            FETCH_UNIT(P, to, from, c, (first) + r < (limit), (rows) * ROW)              \
    }
// units[to] = unit c of a row, element `from` of P, or zero; its second term `second` units further on.
#define FETCH_UNIT(P, to, from, c, present, second)                                      \
    {                                                                                    \
        const bool there = (present) && (c) * 8u < d;                                    \
        if (ALIGNED && COPIES) {                                                         \
            COPY_OR_ZERO(to, P, (from) / 8u, there)                                      \
        } else {                                                                         \
            /* No branch around a load: those of a tile are on their way together. */    \
            const Terms terms = eight_of(P, there ? (from) : 0u, there ? (c) * 8u : 0u, d); \
            units[to] = there ? terms.one : UVEC4(0u, 0u, 0u, 0u);                       \
            if (TERMS == 2u) units[(to) + (second)] = there ? terms.two : UVEC4(0u, 0u, 0u, 0u); \
        }                                                                                \
    }

// The tile that a workgroup computes, and what its queries see. With `causal` the rows with most keys come first.
#define PLACE_TILE                                                                       \
    const uint tiles = (sq + TILE_ROWS - 1u) / TILE_ROWS;                                         \
    const uint bh = CAUSAL ? GROUP % count : GROUP / tiles;                              \
    const uint nth = CAUSAL ? GROUP / count : GROUP % tiles;                             \
    const uint q0 = (CAUSAL ? tiles - 1u - nth : nth) * TILE_ROWS;                       \
    if (bh >= count || nth >= tiles) return;                                             \
    const uint batch = bh / heads, head = bh % heads;                                    \
    const uint kv = head / (heads / kv_heads), y_row = ROW_STEP(Y_BY_TOKEN, heads, d);   \
    PTR(T) pq = HEAD(T, q, Q_BY_TOKEN, batch, head, heads, sq, q_row, d);                \
    PTR(T) pk = HEAD(T, k, K_BY_TOKEN, batch, kv, kv_heads, sk, k_row, d);               \
    PTR(T) pv = HEAD(T, v, V_BY_TOKEN, batch, kv, kv_heads, sk, v_row, d);               \
    PTR(O) ph = HEAD(O, y, Y_BY_TOKEN, batch, head, heads, sq, y_row, d);                \
    PTR(M) pm = SKIP(M, SKIP(M, mask, batch, mb), head, mh);                             \
    const int len = key_count(lengths, batch * each, sk), reach = int(window);           \
    const int shift = len - int(sq), last = int(q0 + TILE_ROWS) - 1;                     \
    const int begin = first_seen(int(q0), shift, reach);                                 \
    const int end = after_seen(last + 1, shift, reach, len);                             \
    const float inverse_cap = CAPPED ? p_recip_f(cap) : 0.0f;

// Whether each of the queries i0 … i1 sees each of the keys k0 … k0 + KEYS - 1, leaving the mask aside.
#define ALL_SEEN(k0, i0, i1)                                                             \
    (int((k0) + KEYS) <= len && (!CAUSAL || int((k0) + KEYS) - 1 <= (i0) + shift) &&     \
     (!WINDOWED || (int(k0) >= (i1) + shift - reach && (CAUSAL || int((k0) + KEYS) - 1 <= (i0) + shift + reach))))
