// What the two ways of attention by matrix instructions share: constants, where a tile lies, how it is read.
// TO: storage of q, k and v, which is MATRIX, and of the result. C0: width of a head in units of 16, rounded up;
// C1, C2: see attention_masks.h; C3: heads may be read eight elements at a time; C4: matrices of 16 queries that a warp
// has; C5: keys of a tile; C6: 0, scores stay in registers (CUDA, attention_mma.h), 1, they go through shared memory
// (attention_opaque.h). Four warps make a tile.
// Included after mma.h and attention_words.h (CUDA) or mma.glsl and attention_words.glsl (GLSL).
#include "attention_masks.h"
#define T_f16_f16 f16
#define T_bf16_bf16 bf16
#define T_f16_f32 f16
#define T_bf16_f32 bf16
#define O_f16_f16 f16
#define O_bf16_bf16 bf16
#define O_f16_f32 f32
#define O_bf16_f32 f32
#define T RLX_JOIN(T_, TO)
#define O RLX_JOIN(O_, TO)
#define MATRIX RLX_JOIN(T_, TO)
#define WIDE UINT(C0)
#define ALIGNED (UINT(C3) == 1u)
#define DEEP UINT(C4)
#define KEYS UINT(C5)
#define TILE_ROWS (64u * DEEP)
// Units of 16 bytes in a row in shared memory: one to spare keeps the banks of eight rows apart.
#define ROW (2u * WIDE + 1u)
#define LOG2_E 1.4426950408889634f
// A greatest score is replaced once another is more than this many powers of two above it: until then weights may be
// up to 2^SLACK, which rounds them no worse, and sums need not be scaled.
#define SLACK 8.0f
// cap tanh(s / cap): tanh x = 1 - 2 / (exp 2x + 1), right to 2^-22 of cap.
#define BEND(s) ((cap) - 2.0f * (cap) * QUICK_RECIP(EXP2((s) * (2.0f * LOG2_E) * inverse_cap) + 1.0f))

// Eight neighbours of a row of halves, from c on, zero beyond column d.
RLX_FN uvec4 eight_halves(PTR(T) p, const uint at, const uint c, const uint d) {
    uvec4 w = UVEC4(0u, 0u, 0u, 0u);
    if (c < d) w.x = uint(p AT(at));
    if (c + 1u < d) w.x |= uint(p AT(at + 1u)) << 16;
    if (c + 2u < d) w.y = uint(p AT(at + 2u));
    if (c + 3u < d) w.y |= uint(p AT(at + 3u)) << 16;
    if (c + 4u < d) w.z = uint(p AT(at + 4u));
    if (c + 5u < d) w.z |= uint(p AT(at + 5u)) << 16;
    if (c + 6u < d) w.w = uint(p AT(at + 6u));
    if (c + 7u < d) w.w |= uint(p AT(at + 7u)) << 16;
    return w;
}

// units[base …] = `rows` rows of P from row `first` on, zero from row `limit` and column d on.
#define FETCH_ROWS(P, base, rows, first, limit)                                          \
    UNROLL for (uint f = 0u; f < ((rows) * 2u * WIDE + 127u) / 128u; f++) {              \
        const uint g = f * 128u + THREAD, r = g / (2u * WIDE), c = g % (2u * WIDE);      \
        const uint to = (base) + r * ROW + c, from = ((first) + r) * d + c * 8u;         \
        const bool there = (first) + r < (limit) && c * 8u < d;                          \
        if ((rows) * 2u * WIDE % 128u == 0u || g < (rows) * 2u * WIDE) {                 \
            if (ALIGNED) {                                                               \
                COPY_OR_ZERO(to, P, from / 8u, there)                                    \
            } else if (there) {                                                          \
                units[to] = eight_halves(P, from, c * 8u, d);                            \
            } else {                                                                     \
                units[to] = UVEC4(0u, 0u, 0u, 0u);                                       \
            }                                                                            \
        }                                                                                \
    }

// Which tile a group makes, and what its queries see. With `causal` the long rows come first.
#define PLACE_TILE                                                                                \
    const uint tiles = (sq + TILE_ROWS - 1u) / TILE_ROWS;                                         \
    const uint bh = GROUP / tiles, nth = GROUP % tiles;                                           \
    const uint q0 = (CAUSAL ? tiles - 1u - nth : nth) * TILE_ROWS;                                \
    if (bh >= count) return;                                                                      \
    const uint batch = bh / heads, head = bh % heads;                                             \
    const uint kv = batch * kv_heads + head / (heads / kv_heads);                                 \
    PTR(T) pq = SKIP(T, q, bh * sq, d);                                                           \
    PTR(T) pk = SKIP(T, k, kv * sk, d);                                                           \
    PTR(T) pv = SKIP(T, v, kv * sk, d);                                                           \
    PTR(M) pm = SKIP(M, SKIP(M, mask, batch, mb), head, mh);                                      \
    const int len = key_count(lengths, batch * each, sk), reach = int(window);                    \
    const int shift = len - int(sq), last = int(q0 + TILE_ROWS) - 1;                              \
    const int begin = first_seen(int(q0), shift, reach);                                          \
    const int end = after_seen(last + 1, shift, reach, len);                                      \
    const float inverse_cap = CAPPED ? p_recip_f(cap) : 0.0f;

// Whether every query of the tile sees each of the keys k0 … k0 + KEYS - 1, but for the mask.
#define ALL_SEEN(k0)                                                                              \
    (int((k0) + KEYS) <= len && (!CAUSAL || int((k0) + KEYS) - 1 <= int(q0) + shift) &&           \
     (!WINDOWED || (int(k0) >= last + shift - reach && (CAUSAL || int((k0) + KEYS) - 1 <= int(q0) + shift + reach))))
