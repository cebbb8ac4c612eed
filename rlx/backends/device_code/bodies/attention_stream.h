// Attention of a few queries against many keys, as attention_decode, for heads that are read sixteen bytes at a time by
// LANES threads (attention_streams.h). The keys, whose number is known when the kernel runs, are cut into `splits` even
// parts, one for each workgroup; the last to arrive adds the parts up. Constants: see attention_masks.h. ROWS: the query
// rows of a workgroup, which share keys. IN_PARTS: whether there are several parts.
#include "attention_masks.h"
#include "attention_streams.h"
#include "attention_finish.h"

RLX_FN void attention_stream_body(PTR(T) q, PTR(T) k, PTR(T) v, PTR(M) mask, PTR(i32) lengths, PTR(T) y,
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
    const uint there = end > begin ? uint(end - begin) : 0u;
    const uint chunk = ((there + splits - 1u) / splits + STREAMS - 1u) / STREAMS * STREAMS;
    const uint from = split * chunk < there ? uint(begin) + split * chunk : uint(larger_i(begin, 0));
    const uint to = split * chunk < there ? (from + chunk < uint(end) ? from + chunk : uint(end)) : from;
    const float inverse_cap = CAPPED ? p_recip_f(cap) : 0.0f;
    const uint lane = THREAD % LANES, stream = THREAD / LANES;

    vec4 query[ROWS * QUADS], out_[ROWS * QUADS];
    float top[ROWS], total[ROWS];
    UNROLL for (uint r = 0u; r < ROWS; r++) {
        const uint row = r0 + r < mine ? r0 + r : mine - 1u;
        PTR(T) ph = SKIP(T, pq, Q_BY_TOKEN ? row / sq : 0u, d);
        const uint i = Q_BY_TOKEN ? row % sq : row;  // without tokens in rows, the queries of a head follow one another
        const uvec4 unit = LOAD_ONCE(ph, i * q_row / PER + lane);
        query[r * QUADS] = LOWER(unit);
        query[r * QUADS + QUADS - 1u] = UPPER(unit);
        UNROLL for (uint e = 0u; e < QUADS; e++) out_[r * QUADS + e] = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
        top[r] = -INFINITE;
        total[r] = 0.0f;
    }
    for (uint k0 = from; k0 < to; k0 += 4u * STREAMS) {
        uvec4 wk[4], wv[4];
        float scores[4u * ROWS];
        READ_KEYS(wk, wv, k0, to, pk, pv, k_row / PER, v_row / PER)
        SCORE_KEYS(scores, wk)
        UNROLL for (uint r = 0u; r < ROWS; r++) {
            PTR(M) row_mask = SKIP(M, pm, h0 + (r0 + r) / sq, mh);
            float greatest = top[r];
            UNROLL for (uint n = 0u; n < 4u; n++) {
                const uint key = k0 + n * STREAMS + stream;
                float s = scores[n * ROWS + r] * scale;
                if (CAPPED) s = cap * p_tanh_f(s * inverse_cap);
                s = r0 + r < mine && key < to ? masked(row_mask, s, (r0 + r) % sq, key, sq, len, reach, mq, mk)
                                              : -INFINITE;
                scores[n * ROWS + r] = s;
                greatest = larger(s, greatest);
            }
            WEIGH_KEYS(scores, r, greatest)
        }
        ADD_VALUES(scores, wv)
    }

    MEET_STREAMS
    UNROLL for (uint r = 0u; r < ROWS; r += TOGETHER) {
        if (r > 0u) { NEXT_SUMS(r) }
        for (uint f = THREAD; f < TOGETHER * LANES * PER; f += 256u) {
            const uint g = f / (LANES * PER), c = f % (LANES * PER), row = r0 + r + g;
            const float sum = streams_sum(r + g, g, c);
            const float whole = IN_PARTS && c != 0u ? 0.0f : streams_total(r + g);
            FINISH_ELEMENT(row, c, tops[r + g], whole, sum)
        }
    }
    FINISH_PARTS
}
