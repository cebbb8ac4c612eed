// Attention of a few queries against keys and values in pages: rows of heads, (pages, PAGE, kv_heads, D), of which a
// table names those of each sequence, `n` of them; read as attention_streams.h says. cache_parts adds up the parts of the
// keys. Constants: see attention_masks.h. ROWS: the query rows of a workgroup, which share keys. IN_PARTS: whether there
// are several parts. ALIGNED: rows of k and v may be read sixteen bytes at a time.
#define M f32
#define MASK 0u
#include "attention_masks.h"
#define KEY_ROW(i) row_of(of, i, pages)
#define KEY_UNIT(p, i) unit_of(p, i)
#include "attention_streams.h"
#define D (PER * LANES)

RLX_FN uvec4 unit_of(PTR(T) p, const uint i) {
    if (ALIGNED) return LOAD_ONCE(p, i);
    return RLX_JOIN(unit_, T)(p, 0u, i * PER, 0xffffffffu, 0u);
}
// The row in the pool of a sequence's key; numbers of pages beyond the pool are clamped.
RLX_FN uint row_of(PTR(i32) table, const uint key, const uint pages) {
    const int page = larger_i(LOAD(i32, table, key / PAGE), 0);
    return uint(lesser_i(page, int(pages) - 1)) * PAGE + key % PAGE;
}

RLX_FN void paged_attention_body(PTR(T) q, PTR(T) k, PTR(T) v, PTR(i32) table, PTR(i32) lengths, PTR(T) y,
                                 PTR(f32) parts, const uint count, const uint heads, const uint kv_heads,
                                 const uint sq, const uint pages, const uint n_pages, const uint window,
                                 const uint splits, const float scale, const float cap) {
    const uint sk = n_pages * PAGE;
    const uint share = heads / kv_heads, mine = share * sq;  // the query rows that share a key head
    const uint groups = (mine + ROWS - 1u) / ROWS;
    const uint split = GROUP % splits, kv = GROUP / splits / groups, r0 = GROUP / splits % groups * ROWS;
    if (kv * share >= count) return;
    const uint b = kv / kv_heads, h0 = kv % kv_heads * share;
    const uint pitch = kv_heads * LANES;  // in units of sixteen bytes
    PTR(T) pk = SKIP(T, k, kv % kv_heads, D);
    PTR(T) pv = SKIP(T, v, kv % kv_heads, D);
    PTR(i32) of = SKIP(i32, table, b, n_pages);
    const int len = key_count(lengths, b, sk), reach = int(window), shift = len - int(sq);
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
        PTR(T) pq = SKIP(T, q, (b * sq + row % sq) * heads + h0 + row / sq, D);
        UNROLL for (uint e = 0u; e < QUADS; e++) {
            const uint c = lane * PER + e * 4u;
            query[r * QUADS + e] = VEC4(LOAD(T, pq, c), LOAD(T, pq, c + 1u), LOAD(T, pq, c + 2u), LOAD(T, pq, c + 3u));
            out_[r * QUADS + e] = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
        }
        top[r] = -INFINITE;
        total[r] = 0.0f;
    }
    for (uint k0 = from; k0 < to; k0 += 4u * STREAMS) {
        uvec4 wk[4], wv[4];
        float scores[4u * ROWS];
        READ_KEYS(wk, wv, k0, to, pk, pv, pitch, pitch)
        SCORE_KEYS(scores, wk)
        UNROLL for (uint r = 0u; r < ROWS; r++) {
            float greatest = top[r];
            UNROLL for (uint n = 0u; n < 4u; n++) {
                const uint key = k0 + n * STREAMS + stream;
                float s = scores[n * ROWS + r] * scale;
                if (CAPPED) s = cap * p_tanh_f(s * inverse_cap);
                s = r0 + r < mine && key < to ? masked(parts, s, (r0 + r) % sq, key, sq, len, reach, 0u, 0u)
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
        for (uint f = THREAD; f < TOGETHER * D; f += 256u) {
            const uint g = f / D, c = f % D, row = r0 + r + g;
            if (row < mine) {
                // The parts are stored in the order of the result's rows.
                const uint at = (b * sq + row % sq) * heads + h0 + row / sq, rows = count * sq;
                const float sum = streams_sum(r + g, g, c);
                if (IN_PARTS) {
                    // First the greatest score and the total of each part and row, then the sums.
                    PTR(f32) figures = SKIP(f32, parts, split * rows + at, 2u);
                    PTR(f32) sums = SKIP(f32, SKIP(f32, parts, splits * rows, 2u), split * rows + at, D);
                    if (c == 0u) {
                        STORE(f32, figures, 0u, tops[r + g]);
                        STORE(f32, figures, 1u, streams_total(r + g));
                    }
                    STORE(f32, sums, c, sum);
                } else {
                    PTR(T) py = SKIP(T, y, at, D);
                    STORE(T, py, c, sum * inverse(streams_total(r + g)));
                }
            }
        }
    }
}
