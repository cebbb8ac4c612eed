// Attention of a few queries against keys and values in pages: rows of heads, (pages, PAGE, kv_heads, D), of which a
// table names those of each sequence, `n` of them; read as attention_streams.h says. cache_parts adds up the parts of the
// keys. Constants: see attention_masks.h. ROWS: the query rows of a workgroup, which share keys. IN_PARTS: whether there
// are several parts. ALIGNED: rows of k and v may be read sixteen bytes at a time. MEMBERS: sequences of a workgroup, among
// which its streams are shared: where there are many, few of so large workgroups run at once, and wait for what they read.
#define M f32
#define MASK 0u
#include "attention_masks.h"
#define KEY_ROW(i) row_of(of, i, pages)
#define KEY_UNIT(p, i) unit_of(p, i)
#define STREAMS (256u / LANES / MEMBERS)
#define STREAM_ROWS (MEMBERS * ROWS)
#define STREAM_ROW(r) (member * ROWS + (r))
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

// The keys of a part, a multiple of the streams.
RLX_FN uint part_size(const uint there, const uint splits) {
    return ((there + splits - 1u) / splits + STREAMS - 1u) / STREAMS * STREAMS;
}
RLX_FN uint most(const uint a, const uint b) { return a > b ? a : b; }

RLX_FN void paged_attention_body(PTR(T) q, PTR(T) k, PTR(T) v, PTR(i32) table, PTR(i32) lengths, PTR(T) y,
                                 PTR(f32) parts, const uint count, const uint heads, const uint kv_heads,
                                 const uint sq, const uint pages, const uint n_pages, const uint window,
                                 const uint splits, const float scale, const float cap) {
    const uint sk = n_pages * PAGE;
    const uint share = heads / kv_heads, mine = share * sq;  // the query rows that share a key head
    const uint groups = (mine + ROWS - 1u) / ROWS;
    const uint split = GROUP % splits, kv = GROUP / splits / groups, r0 = GROUP / splits % groups * ROWS;
    const uint batch = count / heads, b0 = kv / kv_heads * MEMBERS, member = THREAD / (256u / MEMBERS);
    if (b0 >= batch) return;
    const uint b = least(b0 + member, batch - 1u), h0 = kv % kv_heads * share;
    const uint pitch = kv_heads * LANES;  // in units of sixteen bytes
    PTR(T) pk = SKIP(T, k, kv % kv_heads, D);
    PTR(T) pv = SKIP(T, v, kv % kv_heads, D);
    PTR(i32) of = SKIP(i32, table, b, n_pages);
    const int len = key_count(lengths, b, sk), reach = int(window), shift = len - int(sq);
    const int begin = first_seen(0, shift, reach), end = after_seen(int(sq), shift, reach, len);
    const uint there = end > begin ? uint(end - begin) : 0u;
    const uint chunk = part_size(there, splits);
    const uint from = split * chunk < there ? uint(begin) + split * chunk : uint(larger_i(begin, 0));
    const uint to = split * chunk < there ? (from + chunk < uint(end) ? from + chunk : uint(end)) : from;
    // All members read as often as the one with the most keys.
    uint longest = chunk;
    if (MEMBERS > 1u) {
        for (uint m = 0u; m < MEMBERS; m++) {
            const int its = key_count(lengths, least(b0 + m, batch - 1u), sk), first = first_seen(0, its - int(sq), reach);
            const int last = after_seen(int(sq), its - int(sq), reach, its);
            longest = most(longest, part_size(last > first ? uint(last - first) : 0u, splits));
        }
    }
    const float inverse_cap = CAPPED ? p_recip_f(cap) : 0.0f;
    const uint lane = THREAD % LANES, stream = THREAD / LANES % STREAMS;

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
    for (uint done = 0u; done < longest; done += 4u * STREAMS) {
        const uint k0 = from + done;
        uvec4 wk[4], wv[4];
        float scores[4u * ROWS];
        READ_KEYS(wk, wv, k0, most(to, 1u), pk, pv, pitch, pitch)
        if (from == to) {
            UNROLL for (uint n = 0u; n < 4u; n++) wv[n] = UVEC4(0u, 0u, 0u, 0u);
        }
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
        for (uint f = THREAD; f < MEMBERS * TOGETHER * D; f += 256u) {
            const uint m = f / (TOGETHER * D), g = f / D % TOGETHER, c = f % D, row = r0 + r + g;
            if (row < mine && b0 + m < batch) {
                // The parts are stored in the order of the result's rows.
                const uint at = ((b0 + m) * sq + row % sq) * heads + h0 + row / sq, rows = count * sq;
                const uint of_all = m * ROWS + r + g;
                const float sum = streams_sum(of_all, g, m * STREAMS * LANES * PER + c);
                if (IN_PARTS) {
                    // First the greatest score and the total of each part and row, then the sums.
                    PTR(f32) figures = SKIP(f32, parts, split * rows + at, 2u);
                    PTR(f32) sums = SKIP(f32, SKIP(f32, parts, splits * rows, 2u), split * rows + at, D);
                    if (c == 0u) {
                        STORE(f32, figures, 0u, tops[of_all]);
                        STORE(f32, figures, 1u, streams_total(of_all));
                    }
                    STORE(f32, sums, c, sum);
                } else {
                    PTR(T) py = SKIP(T, y, at, D);
                    STORE(T, py, c, sum * inverse(streams_total(of_all)));
                }
            }
        }
    }
}
