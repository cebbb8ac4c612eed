// out = softmax(q k^T * scale + mask) v for tiles of 64 queries of one head, without ever holding all the scores:
// keys come 64 at a time, and the sums so far are scaled down whenever a larger score appears (Milakov and
// Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022).
// C0: width of the head in units of 16, rounded up; C1: causal (query i sees keys j <= i + sk - sq);
// C2: mask 0 none, 1 true keeps a key, 2 added to the score; C3: heads may be read four elements at a time.
// M is the mask's storage. A row that sees no key is zero.
// A thread owns four queries: their scores of four keys, and every sixteenth column of their results.
#include "quads.h"
#define WIDE UINT(C0)
#define CAUSAL (UINT(C1) == 1u)
#define MASK UINT(C2)
#define ALIGNED (UINT(C3) == 1u)
#define TILE 64u
#define STEP 16u  // columns of q and k in shared memory at once
#define SLICE (WIDE <= 2u ? 64u : (WIDE <= 4u ? 32u : (WIDE <= 8u ? 16u : 8u)))  // rows of v: 2048 elements at most
#define KEEPS_f32(x) ((x) != 0.0f)
#define KEEPS_bool(x) (x)
#define ADDS_f32(x) (x)
#define ADDS_bool(x) 0.0f
#define KEEPS(M, x) RLX_JOIN(KEEPS_, M)(x)
#define ADDS(M, x) RLX_JOIN(ADDS_, M)(x)

// First q (1024 floats, [column][query]) and k (1024, [column][key]); then maxima and sums; then a slice of v.
SHARED vec4 pool[512];
SHARED vec4 weights[TILE * TILE / 4u];  // [key][query / 4]

RLX_FN float larger(const float a, const float b) { return a > b ? a : b; }  // a NaN comes back through the sum
RLX_FN vec4 larger4(const vec4 a, const vec4 b) {
    return VEC4(larger(a.x, b.x), larger(a.y, b.y), larger(a.z, b.z), larger(a.w, b.w));
}
RLX_FN vec4 plus4(const vec4 a, const vec4 b) { return VEC4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
RLX_FN vec4 times4(const vec4 a, const vec4 b) { return VEC4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }
RLX_FN float base_of(const float top) { return top == -INFINITE ? 0.0f : top; }
RLX_FN vec4 exp4(const vec4 a, const vec4 top) {
    return VEC4(p_exp_f(a.x - base_of(top.x)), p_exp_f(a.y - base_of(top.y)), p_exp_f(a.z - base_of(top.z)),
                p_exp_f(a.w - base_of(top.w)));
}
RLX_FN float inverse(const float total) { return total == 0.0f ? 0.0f : p_recip_f(total); }

RLX_QUAD(quad, T, ALIGNED)

// The score of query i and key j (counted in the whole head) after the mask.
RLX_FN float masked(PTR(M) mask, const float score, const uint i, const uint j, const uint sq, const uint sk,
                    const uint mq, const uint mk) {
    if (i >= sq || j >= sk || (CAUSAL && j + sq > i + sk)) return -INFINITE;
    if (MASK == 1u) return KEEPS(M, LOAD(M, mask, i * mq + j * mk)) ? score : -INFINITE;
    if (MASK == 2u) return score + ADDS(M, LOAD(M, mask, i * mq + j * mk));
    return score;
}

RLX_FN void attention_body(PTR(T) q, PTR(T) k, PTR(T) v, PTR(M) mask, PTR(T) y, const uint count, const uint heads,
                           const uint kv_heads, const uint sq, const uint sk, const uint d, const uint mb,
                           const uint mh, const uint mq, const uint mk, const float scale) {
    const uint tiles = (sq + TILE - 1u) / TILE;
    const uint bh = GROUP / tiles, q0 = GROUP % tiles * TILE;
    if (bh >= count) return;
    const uint b = bh / heads, h = bh % heads;
    const uint kv = b * kv_heads + h / (heads / kv_heads);
    PTR(T) pq = SKIP(T, q, bh * sq, d);
    PTR(T) py = SKIP(T, y, bh * sq, d);
    PTR(T) pk = SKIP(T, k, kv * sk, d);
    PTR(T) pv = SKIP(T, v, kv * sk, d);
    PTR(M) pm = SKIP(M, SKIP(M, mask, b, mb), h, mh);
    const uint ty = THREAD / 16u, tx = THREAD % 16u;
    // The tile's last query sees the keys before `reach` - sq; the sum comes first: the count cannot go below zero.
    const uint reach = q0 + TILE + sk;
    uint end = sk;
    if (CAUSAL) end = reach > sq ? (reach - sq < sk ? reach - sq : sk) : 0u;

    const vec4 zero = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    vec4 out_[WIDE];  // of four queries, column tx + 16 j
    UNROLL for (uint j = 0u; j < WIDE; j++) out_[j] = zero;
    vec4 top = VEC4(-INFINITE, -INFINITE, -INFINITE, -INFINITE), total = zero;
    for (uint k0 = 0u; k0 < end; k0 += TILE) {
        vec4 s[4];  // s[key]: four queries
        UNROLL for (uint j = 0u; j < 4u; j++) s[j] = zero;
        for (uint d0 = 0u; d0 < d; d0 += STEP) {
            const uint r = THREAD / 4u, c = THREAD % 4u * 4u;
            const vec4 a = quad(pq, q0 + r, d0 + c, sq, d);
            const vec4 e = quad(pk, k0 + r, d0 + c, sk, d);
            BARRIER;
            ELEMENT(pool, c * TILE + r) = a.x;
            ELEMENT(pool, (c + 1u) * TILE + r) = a.y;
            ELEMENT(pool, (c + 2u) * TILE + r) = a.z;
            ELEMENT(pool, (c + 3u) * TILE + r) = a.w;
            ELEMENT(pool, 1024u + c * TILE + r) = e.x;
            ELEMENT(pool, 1024u + (c + 1u) * TILE + r) = e.y;
            ELEMENT(pool, 1024u + (c + 2u) * TILE + r) = e.z;
            ELEMENT(pool, 1024u + (c + 3u) * TILE + r) = e.w;
            BARRIER;
            UNROLL for (uint i = 0u; i < STEP; i++) {
                const vec4 queries = pool[i * 16u + ty], keys = pool[256u + i * 16u + tx];
                FMA_ROW(s[0], keys.x, queries)
                FMA_ROW(s[1], keys.y, queries)
                FMA_ROW(s[2], keys.z, queries)
                FMA_ROW(s[3], keys.w, queries)
            }
        }
        vec4 best = VEC4(-INFINITE, -INFINITE, -INFINITE, -INFINITE);
        UNROLL for (uint j = 0u; j < 4u; j++) {
            const uint i = q0 + ty * 4u, key = k0 + tx * 4u + j;
            s[j] = VEC4(masked(pm, s[j].x * scale, i, key, sq, sk, mq, mk),
                        masked(pm, s[j].y * scale, i + 1u, key, sq, sk, mq, mk),
                        masked(pm, s[j].z * scale, i + 2u, key, sq, sk, mq, mk),
                        masked(pm, s[j].w * scale, i + 3u, key, sq, sk, mq, mk));
            best = larger4(s[j], best);
        }
        BARRIER;
        pool[THREAD] = best;
        BARRIER;
        vec4 next = top;
        for (uint i = 0u; i < 16u; i++) next = larger4(pool[ty * 16u + i], next);
        const vec4 less = exp4(top, next);
        top = next;
        vec4 sum = zero;
        UNROLL for (uint j = 0u; j < 4u; j++) {
            const vec4 e = exp4(s[j], top);
            weights[(tx * 4u + j) * 16u + ty] = e;
            sum = plus4(sum, e);
        }
        pool[256u + THREAD] = sum;
        BARRIER;
        sum = zero;
        for (uint i = 0u; i < 16u; i++) sum = plus4(sum, pool[256u + ty * 16u + i]);
        total = plus4(times4(total, less), sum);
        UNROLL for (uint j = 0u; j < WIDE; j++) out_[j] = times4(out_[j], less);
        for (uint s0 = 0u; s0 < TILE; s0 += SLICE) {
            BARRIER;
            for (uint i = THREAD; i < SLICE * 4u * WIDE; i += 256u) {
                const uint r = i / (4u * WIDE), c = i % (4u * WIDE) * 4u;
                pool[i] = quad(pv, k0 + s0 + r, c, sk, d);
            }
            BARRIER;
            for (uint r = 0u; r < SLICE; r++) {
                const vec4 w = weights[(s0 + r) * 16u + ty];
                UNROLL for (uint j = 0u; j < WIDE; j++) {
                    const float e = ELEMENT(pool, r * 16u * WIDE + tx + 16u * j);
                    FMA_ROW(out_[j], e, w)
                }
            }
        }
    }
    total = VEC4(inverse(total.x), inverse(total.y), inverse(total.z), inverse(total.w));
    UNROLL for (uint j = 0u; j < WIDE; j++) {
        const uint c = tx + 16u * j, i = q0 + ty * 4u;
        const vec4 o = times4(out_[j], total);
        if (c < d) {
            if (i < sq) STORE(T, py, i * d + c, o.x);
            if (i + 1u < sq) STORE(T, py, (i + 1u) * d + c, o.y);
            if (i + 2u < sq) STORE(T, py, (i + 2u) * d + c, o.z);
            if (i + 3u < sq) STORE(T, py, (i + 3u) * d + c, o.w);
        }
    }
}
