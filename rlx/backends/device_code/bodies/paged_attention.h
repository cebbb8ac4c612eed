// Attention of a few queries against keys and values in pages: rows of heads, (pages, PAGE, kv_heads, D), of which a
// table names those of each sequence, `n` of them. As attention_stream, each of the streams of LANES threads takes every
// so-many-th key of its workgroup's part of the keys, keeps sums and a greatest score of its own, and the workgroup adds
// its streams up at the end, always in the same order; cache_parts adds the parts up. A thread has sixteen bytes of
// a row. Constants: see attention_masks.h. ROWS: the query rows of a workgroup, which share keys. IN_PARTS: whether there
// are several parts. ALIGNED: rows of k and v may be read sixteen bytes at a time.
#define M f32
#define MASK 0u
#include "attention_masks.h"
#include "stream.h"
#include "units.h"
#define PER RLX_JOIN(PER_, T)
#define LOWER RLX_JOIN(LOWER_, T)
#define UPPER RLX_JOIN(UPPER_, T)
#define QUADS (PER / 4u)  // of a thread, in a row
#define STREAMS (256u / LANES)
#define D (PER * LANES)
#define UNIT RLX_JOIN(unit_, T)

RLX_FN float plus(const float a, const float b) { return a + b; }
LANES_OP(lanes_sum, LANES, plus)
LANES_OP(group_sum, 256u, plus)
LANES_OP(group_top, 256u, larger)

SHARED vec4 tile[256u * QUADS];  // [stream][lane][quad]
SHARED float tops[8];
SHARED float wholes[8];

RLX_FN float dot_of(const vec4 a, const vec4 b, const float sum) {
    return FMA(a.w, b.w, FMA(a.z, b.z, FMA(a.y, b.y, FMA(a.x, b.x, sum))));
}
RLX_FN vec4 scaled(const vec4 v, const float by) { return VEC4(v.x * by, v.y * by, v.z * by, v.w * by); }
RLX_FN uvec4 unit_of(PTR(T) p, const uint i) {
    if (ALIGNED) return LOAD_ONCE(p, i);
    return UNIT(p, 0u, i * PER, 0xffffffffu, 0u);
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
    const uint first = kv % kv_heads * LANES, pitch = kv_heads * LANES;  // in units of sixteen bytes
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
        uint rows_of[4];
        // Beyond the part the last key is read again; its weight there is zero, and so is its v, which may be infinite.
        UNROLL for (uint n = 0u; n < 4u; n++) {
            rows_of[n] = row_of(of, least(k0 + n * STREAMS + stream, to - 1u), pages);
            wk[n] = unit_of(k, rows_of[n] * pitch + first + lane);
        }
        UNROLL for (uint n = 0u; n < 4u; n++) {
            wv[n] = unit_of(v, rows_of[n] * pitch + first + lane);
            if (k0 + n * STREAMS + stream >= to) wv[n] = UVEC4(0u, 0u, 0u, 0u);
        }
        UNROLL for (uint n = 0u; n < 4u; n++) {
            const vec4 lower = LOWER(wk[n]), upper = UPPER(wk[n]);
            UNROLL for (uint r = 0u; r < ROWS; r++) {
                float sum = dot_of(query[r * QUADS], lower, 0.0f);
                if (QUADS == 2u) sum = dot_of(query[r * QUADS + QUADS - 1u], upper, sum);
                scores[n * ROWS + r] = lanes_sum(sum);
            }
        }
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
            const float base = base_of(greatest), less = p_exp_f(top[r] - base);
            top[r] = greatest;
            total[r] *= less;
            UNROLL for (uint e = 0u; e < QUADS; e++) out_[r * QUADS + e] = scaled(out_[r * QUADS + e], less);
            UNROLL for (uint n = 0u; n < 4u; n++) {
                const float w = p_exp_f(scores[n * ROWS + r] - base);
                scores[n * ROWS + r] = w;
                total[r] += w;
            }
        }
        UNROLL for (uint n = 0u; n < 4u; n++) {
            const vec4 lower = LOWER(wv[n]), upper = UPPER(wv[n]);
            UNROLL for (uint r = 0u; r < ROWS; r++) {
                FMA_ROW(out_[r * QUADS], scores[n * ROWS + r], lower)
                if (QUADS == 2u) { FMA_ROW(out_[r * QUADS + QUADS - 1u], scores[n * ROWS + r], upper) }
            }
        }
    }

    UNROLL for (uint r = 0u; r < ROWS; r++) {
        const float greatest = group_top(top[r]), less = p_exp_f(top[r] - base_of(greatest));
        const float whole = group_sum(lane == 0u ? total[r] * less : 0.0f);
        UNROLL for (uint e = 0u; e < QUADS; e++) out_[r * QUADS + e] = scaled(out_[r * QUADS + e], less);
        if (THREAD == 0u) {
            tops[r] = greatest;
            wholes[r] = whole;
        }
    }
    UNROLL for (uint r = 0u; r < ROWS; r++) {
        BARRIER;
        UNROLL for (uint e = 0u; e < QUADS; e++) tile[THREAD * QUADS + e] = out_[r * QUADS + e];
        BARRIER;
        const uint row = r0 + r;
        for (uint c = THREAD; c < D; c += 256u) {
            float sum = 0.0f;
            UNROLL for (uint s = 0u; s < STREAMS; s++) sum += ELEMENT(tile, s * D + c);
            if (row < mine) {
                // The parts are stored in the order of the result's rows.
                const uint at = (b * sq + row % sq) * heads + h0 + row / sq, rows = count * sq;
                if (IN_PARTS) {
                    // First the greatest score and the total of each part and row, then the sums.
                    PTR(f32) figures = SKIP(f32, parts, split * rows + at, 2u);
                    PTR(f32) sums = SKIP(f32, SKIP(f32, parts, splits * rows, 2u), split * rows + at, D);
                    if (c == 0u) {
                        STORE(f32, figures, 0u, tops[r]);
                        STORE(f32, figures, 1u, wholes[r]);
                    }
                    STORE(f32, sums, c, sum);
                } else {
                    PTR(T) py = SKIP(T, y, at, D);
                    STORE(T, py, c, sum * inverse(wholes[r]));
                }
            }
        }
    }
}
