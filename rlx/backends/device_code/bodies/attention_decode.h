// Attention of a few queries against many keys, as when a model generates token by token. Reading k and v takes most of
// the time, and is done once for ROWS queries of all heads that share them. The keys, whose number is known when the
// kernel runs, are cut into `splits` even parts, one for each workgroup; the last to arrive adds the parts up in order.
// Constants: see attention_masks.h. WIDE: the size of a head in units of 16, rounded up. ALIGNED: heads may be read
// four elements at a time. IN_PARTS: whether there are several parts. For each tile of keys, threads (key, part of the
// head) compute parts of the scores; threads (row, key) add these up, apply the mask and turn them into weights
// relative to the greatest score so far; threads (subset of the keys, four columns of v) add up weights times v. The
// sums of the subsets are added up at the end.
#include "attention_masks.h"
#include "quads.h"
#include "attention_finish.h"
#define KEYS (WIDE <= 4u ? 64u : (WIDE <= 8u ? 32u : 16u))
#define QUADS (4u * WIDE)
#define PITCH (QUADS + 1u)  // odd, so that rows begin in different banks
#define FETCHED ((KEYS * QUADS + 255u) / 256u)
#define PIECES (256u / KEYS)
#define SUBSETS (256u / QUADS)
#define PER ((KEYS + SUBSETS - 1u) / SUBSETS)

SHARED vec4 tile[KEYS * PITCH];       // [key][quad]; at the end [subset][quad]
SHARED vec4 queries[ROWS * QUADS];    // [row][quad]
SHARED vec4 scores[ROWS * KEYS / 4u]; // [row][key]
SHARED float partial[ROWS * 256u];    // [row][piece][key]; then weights [key][row]
SHARED float tops[2u * ROWS];         // the greatest scores so far, before and after a tile
SHARED float less[ROWS];

RLX_QUAD(quad, T, ALIGNED)

RLX_FN void attention_decode_body(PTR(T) q, PTR(T) k, PTR(T) v, PTR(M) mask, PTR(i32) lengths, PTR(T) y,
                                  PTR(f32) parts, PTR(u32) counters, const uint count, const uint heads, const uint kv_heads,
                                  const uint sq, const uint sk, const uint d, const uint mb, const uint mh,
                                  const uint mq, const uint mk, const uint each, const uint window,
                                  const uint splits,
                                  const float scale, const float cap) {
    const uint share = heads / kv_heads, mine = share * sq;  // the query rows that share a key head
    const uint blocks = (mine + ROWS - 1u) / ROWS;
    const uint split = GROUP % splits, kv = GROUP / splits / blocks, r0 = GROUP / splits % blocks * ROWS;
    if (kv * share >= count) return;
    const uint b = kv / kv_heads, h0 = kv % kv_heads * share;
    const uint q_row = ROW_STEP(Q_BY_TOKEN, heads, d), k_row = ROW_STEP(K_BY_TOKEN, kv_heads, d);
    const uint v_row = ROW_STEP(V_BY_TOKEN, kv_heads, d);
    PTR(T) pq = HEAD(T, q, Q_BY_TOKEN, b, h0, heads, sq, q_row, d);
    PTR(T) pk = HEAD(T, k, K_BY_TOKEN, b, kv % kv_heads, kv_heads, sk, k_row, d);
    PTR(T) pv = HEAD(T, v, V_BY_TOKEN, b, kv % kv_heads, kv_heads, sk, v_row, d);
    PTR(M) pm = SKIP(M, mask, b, mb);
    const int len = key_count(lengths, b * each, sk), reach = int(window), shift = len - int(sq);
    const int begin = first_seen(0, shift, reach), end = after_seen(int(sq), shift, reach, len);
    // Even parts of whole tiles.
    const uint there = end > begin ? uint(end - begin) : 0u;
    const uint chunk = ((there + splits - 1u) / splits + KEYS - 1u) / KEYS * KEYS;
    const uint from = split * chunk < there ? uint(begin) + split * chunk : uint(larger_i(begin, 0));
    const uint to = split * chunk < there ? (from + chunk < uint(end) ? from + chunk : uint(end)) : from;
    const float inverse_cap = CAPPED ? p_recip_f(cap) : 0.0f;

    for (uint f = THREAD; f < ROWS * QUADS; f += 256u) {
        const uint r = r0 + f / QUADS;
        PTR(T) ph = SKIP(T, pq, Q_BY_TOKEN ? r / sq : 0u, d);
        const uint i = Q_BY_TOKEN ? r % sq : r;  // without tokens in rows, the queries of a head follow one another
        queries[f] = quad(ph, i, f % QUADS * 4u, r < mine ? mine : 0u, d, q_row);
    }
    if (THREAD < ROWS) tops[THREAD] = -INFINITE;
    const uint subset = THREAD / QUADS, column = THREAD % QUADS;
    const vec4 zero = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    vec4 out_[ROWS], held_k[FETCHED], held_v[PER];
    float total[ROWS];
    UNROLL for (uint r = 0u; r < ROWS; r++) {
        out_[r] = zero;
        total[r] = 0.0f;
    }
    UNROLL for (uint n = 0u; n < FETCHED; n++) {
        const uint f = n * 256u + THREAD;
        held_k[n] = f < KEYS * QUADS ? quad(pk, from + f / QUADS, f % QUADS * 4u, to, d, k_row) : zero;
    }
    uint side = 0u;
    for (uint k0 = from; k0 < to; k0 += KEYS) {
        UNROLL for (uint n = 0u; n < FETCHED; n++) {
            const uint f = n * 256u + THREAD;
            if (f < KEYS * QUADS) tile[f / QUADS * PITCH + f % QUADS] = held_k[n];
        }
        BARRIER;
        UNROLL for (uint n = 0u; n < PER; n++) {
            const uint j = subset + n * SUBSETS;
            held_v[n] = subset < SUBSETS && j < KEYS ? quad(pv, k0 + j, column * 4u, to, d, v_row) : zero;
        }
        UNROLL for (uint n = 0u; n < FETCHED; n++) {
            const uint f = n * 256u + THREAD;
            held_k[n] = f < KEYS * QUADS ? quad(pk, k0 + KEYS + f / QUADS, f % QUADS * 4u, to, d, k_row) : zero;
        }
        {
            const uint key = THREAD % KEYS, piece = THREAD / KEYS;
            float sum[ROWS];
            UNROLL for (uint r = 0u; r < ROWS; r++) sum[r] = 0.0f;
            for (uint c = piece; c < QUADS; c += PIECES) {
                const vec4 e = tile[key * PITCH + c];
                UNROLL for (uint r = 0u; r < ROWS; r++) {
                    const vec4 a = queries[r * QUADS + c];
                    sum[r] = FMA(a.w, e.w, FMA(a.z, e.z, FMA(a.y, e.y, FMA(a.x, e.x, sum[r]))));
                }
            }
            UNROLL for (uint r = 0u; r < ROWS; r++) partial[(r * PIECES + piece) * KEYS + key] = sum[r];
        }
        BARRIER;
        for (uint x = THREAD; x < ROWS * KEYS; x += 256u) {
            const uint r = x / KEYS, key = x % KEYS, i = (r0 + r) % sq;
            float s = 0.0f;
            for (uint piece = 0u; piece < PIECES; piece++) s += partial[(r * PIECES + piece) * KEYS + key];
            s = s * scale;
            if (CAPPED) s = cap * p_tanh_f(s * inverse_cap);
            PTR(M) row_mask = SKIP(M, pm, h0 + (r0 + r) / sq, mh);
            ELEMENT(scores, x) = r0 + r < mine && k0 + key < to
                                     ? masked(row_mask, s, i, k0 + key, sq, len, reach, mq, mk)
                                     : -INFINITE;
        }
        BARRIER;
        for (uint x = THREAD; x < ROWS * KEYS; x += 256u) {
            const uint r = x / KEYS, key = x % KEYS;
            const float before = tops[side * ROWS + r];
            float top = before;
            for (uint n = 0u; n < KEYS / 4u; n++) {
                const vec4 s = scores[r * KEYS / 4u + n];
                top = larger(s.w, larger(s.z, larger(s.y, larger(s.x, top))));
            }
            partial[key * ROWS + r] = p_exp_f(ELEMENT(scores, x) - base_of(top));
            if (key == 0u) {
                less[r] = p_exp_f(before - base_of(top));
                tops[(1u - side) * ROWS + r] = top;
            }
        }
        side = 1u - side;
        BARRIER;
        UNROLL for (uint r = 0u; r < ROWS; r++) {
            const float l = less[r];
            out_[r] = VEC4(out_[r].x * l, out_[r].y * l, out_[r].z * l, out_[r].w * l);
            total[r] = total[r] * l;
        }
        UNROLL for (uint n = 0u; n < PER; n++) {
            const uint j = subset + n * SUBSETS;
            if (subset < SUBSETS && j < KEYS) {
                UNROLL for (uint r = 0u; r < ROWS; r++) {
                    const float w = partial[j * ROWS + r];
                    FMA_ROW(out_[r], w, held_v[n])
                    total[r] = total[r] + w;
                }
            }
        }
    }

    // The sums of the subsets are added up in order, row by row, in the memory of the tile.
    UNROLL for (uint r = 0u; r < ROWS; r++) {
        BARRIER;
        if (subset < SUBSETS) {
            tile[subset * QUADS + column] = out_[r];
            if (column == 0u) partial[subset] = total[r];
        }
        BARRIER;
        if (subset == 0u && r0 + r < mine && column * 4u < d) {
            vec4 sum = zero;
            float whole = 0.0f;
            for (uint n = 0u; n < SUBSETS; n++) {
                const vec4 e = tile[n * QUADS + column];
                sum = VEC4(sum.x + e.x, sum.y + e.y, sum.z + e.z, sum.w + e.w);
                whole += partial[n];
            }
            const uint c = column * 4u;
            UNROLL for (uint n = 0u; n < 4u; n++) {
                const float e = n == 0u ? sum.x : n == 1u ? sum.y : n == 2u ? sum.z : sum.w;
                if (c + n < d) { FINISH_ELEMENT(r0 + r, c + n, tops[side * ROWS + r], whole, e) }
            }
        }
    }
    FINISH_PARTS
}
