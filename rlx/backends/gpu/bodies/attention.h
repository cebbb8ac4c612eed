// out = softmax(q k^T * scale + mask) v for tiles of 32 queries of one head, without ever holding all the scores:
// keys come 32 at a time, and the sums so far are scaled down whenever a larger score appears (Milakov and
// Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022).
// C0: width of the head in units of 16, rounded up; C1: causal (query i sees keys j <= i + sk - sq);
// C2: mask 0 none, 1 true keeps a key, 2 added to the score. M is the mask's storage. A row that sees no key is zero.
#define WIDE UINT(C0)
#define CAUSAL (UINT(C1) == 1u)
#define MASK UINT(C2)
#define TILE 32u
#define STRIDE 33u
#define SLICE (WIDE <= 4u ? 32u : (WIDE <= 8u ? 16u : 8u))  // keys of v held at once: 2048 elements
#define KEEPS_f32(x) ((x) != 0.0f)
#define KEEPS_bool(x) (x)
#define ADDS_f32(x) (x)
#define ADDS_bool(x) 0.0f
#define KEEPS(M, x) RLX_JOIN(KEEPS_, M)(x)
#define ADDS(M, x) RLX_JOIN(ADDS_, M)(x)

SHARED float qs[TILE * STRIDE];
SHARED float ks[TILE * STRIDE];
SHARED float ps[TILE * STRIDE];
SHARED float vs[2048];
SHARED float part[256];
SHARED float shrink[TILE];

RLX_FN float larger(const float a, const float b) { return a > b ? a : b; }  // a NaN comes back through the sum

RLX_FN void attention_body(PTR(T) q, PTR(T) k, PTR(T) v, PTR(M) mask, PTR(T) y, const uint count, const uint heads,
                           const uint kv_heads, const uint sq, const uint sk, const uint d, const uint mb,
                           const uint mh, const uint mq, const uint mk, const float scale) {
    const uint tiles = (sq + TILE - 1u) / TILE;
    const uint bh = GROUP / tiles, q0 = GROUP % tiles * TILE;
    if (bh >= count) return;
    const uint b = bh / heads, h = bh % heads;
    const uint kv = b * kv_heads + h / (heads / kv_heads);
    PTR(T) pq = SKIP(T, q, bh * sq + q0, d);
    PTR(T) py = SKIP(T, y, bh * sq + q0, d);
    PTR(T) pk = SKIP(T, k, kv * sk, d);
    PTR(T) pv = SKIP(T, v, kv * sk, d);
    PTR(M) pm = SKIP(M, SKIP(M, SKIP(M, mask, b, mb), h, mh), q0, mq);
    const uint ty = THREAD / 16u, tx = THREAD % 16u;
    const uint row = THREAD / 8u, eighth = THREAD % 8u;  // eight threads look after a row's maximum and sum
    // Query q0 + r sees keys before q0 + r + 1 + sk - sq; the additions come first: the count must not go below zero.
    const uint reach = q0 + 1u + sk;
    uint end = sk;
    if (CAUSAL) end = reach + TILE - 1u > sq ? (reach + TILE - 1u - sq < sk ? reach + TILE - 1u - sq : sk) : 0u;

    float o0[WIDE], o1[WIDE];
    UNROLL for (uint j = 0u; j < WIDE; j++) {
        o0[j] = 0.0f;
        o1[j] = 0.0f;
    }
    float top = -INFINITE, total = 0.0f;
    for (uint k0 = 0u; k0 < end; k0 += TILE) {
        float s00 = 0.0f, s01 = 0.0f, s10 = 0.0f, s11 = 0.0f;
        for (uint d0 = 0u; d0 < d; d0 += TILE) {
            for (uint i = THREAD; i < TILE * TILE; i += 256u) {
                const uint r = i / TILE, c = i % TILE;
                const bool inside = d0 + c < d;
                float a = 0.0f, e = 0.0f;
                if (inside && q0 + r < sq) a = LOAD(T, pq, r * d + d0 + c);
                if (inside && k0 + r < sk) e = LOAD(T, pk, (k0 + r) * d + d0 + c);
                qs[r * STRIDE + c] = a;
                ks[r * STRIDE + c] = e;
            }
            BARRIER;
            for (uint c = 0u; c < TILE; c++) {
                const float a0 = qs[ty * STRIDE + c], a1 = qs[(ty + 16u) * STRIDE + c];
                const float e0 = ks[tx * STRIDE + c], e1 = ks[(tx + 16u) * STRIDE + c];
                s00 = FMA(a0, e0, s00);
                s01 = FMA(a0, e1, s01);
                s10 = FMA(a1, e0, s10);
                s11 = FMA(a1, e1, s11);
            }
            BARRIER;
        }
        ps[ty * STRIDE + tx] = s00 * scale;
        ps[ty * STRIDE + tx + 16u] = s01 * scale;
        ps[(ty + 16u) * STRIDE + tx] = s10 * scale;
        ps[(ty + 16u) * STRIDE + tx + 16u] = s11 * scale;
        BARRIER;
        float best = -INFINITE;
        float mine[4];
        UNROLL for (uint i = 0u; i < 4u; i++) {
            const uint j = k0 + eighth + 8u * i;
            float s = ps[row * STRIDE + eighth + 8u * i];
            if (j >= sk || q0 + row >= sq || (CAUSAL && j + sq >= reach + row)) {
                s = -INFINITE;
            } else if (MASK == 1u) {
                if (!KEEPS(M, LOAD(M, pm, row * mq + j * mk))) s = -INFINITE;
            } else if (MASK == 2u) {
                s += ADDS(M, LOAD(M, pm, row * mq + j * mk));
            }
            mine[i] = s;
            best = larger(s, best);
        }
        part[THREAD] = best;
        BARRIER;
        float next = top;
        UNROLL for (uint i = 0u; i < 8u; i++) next = larger(part[row * 8u + i], next);
        const float base = next == -INFINITE ? 0.0f : next;
        const float less = p_exp_f(top - base);
        top = next;
        float sum = 0.0f;
        UNROLL for (uint i = 0u; i < 4u; i++) {
            const float e = p_exp_f(mine[i] - base);
            ps[row * STRIDE + eighth + 8u * i] = e;
            sum += e;
        }
        if (eighth == 0u) shrink[row] = less;
        BARRIER;
        part[THREAD] = sum;
        BARRIER;
        sum = part[row * 8u];
        UNROLL for (uint i = 1u; i < 8u; i++) sum += part[row * 8u + i];
        total = total * less + sum;
        const float f0 = shrink[ty], f1 = shrink[ty + 16u];
        UNROLL for (uint j = 0u; j < WIDE; j++) {
            o0[j] *= f0;
            o1[j] *= f1;
        }
        for (uint s0 = 0u; s0 < TILE; s0 += SLICE) {
            for (uint i = THREAD; i < SLICE * 16u * WIDE; i += 256u) {
                const uint r = i / (16u * WIDE), c = i % (16u * WIDE);
                float e = 0.0f;
                if (c < d && k0 + s0 + r < sk) e = LOAD(T, pv, (k0 + s0 + r) * d + c);
                vs[i] = e;
            }
            BARRIER;
            for (uint r = 0u; r < SLICE; r++) {
                const float p0 = ps[ty * STRIDE + s0 + r], p1 = ps[(ty + 16u) * STRIDE + s0 + r];
                UNROLL for (uint j = 0u; j < WIDE; j++) {
                    const float e = vs[r * 16u * WIDE + tx + 16u * j];
                    o0[j] = FMA(p0, e, o0[j]);
                    o1[j] = FMA(p1, e, o1[j]);
                }
            }
            BARRIER;
        }
    }
    if (eighth == 0u) shrink[row] = total > 0.0f ? p_recip_f(total) : (total == 0.0f ? 0.0f : total);
    BARRIER;
    const float f0 = shrink[ty], f1 = shrink[ty + 16u];
    UNROLL for (uint j = 0u; j < WIDE; j++) {
        const uint c = tx + 16u * j;
        if (c < d && q0 + ty < sq) STORE(T, py, ty * d + c, o0[j] * f0);
        if (c < d && q0 + ty + 16u < sq) STORE(T, py, (ty + 16u) * d + c, o1[j] * f1);
    }
}
