// Attention of a few queries against keys and values of 8 bits, blocks of 32 integers with a scale each, all operands by
// token: (batch, length, heads, 16 LANES). As attention_stream, each of the streams of LANES threads takes every
// so-many-th key of its workgroup's part of the keys, keeps sums and a greatest score of its own, and the workgroup adds
// its streams up at the end, always in the same order; cache_parts adds the parts up. A thread has sixteen elements
// of a head: the integers are sixteen bytes, and half a block. Constants: see attention_masks.h. ROWS: the query rows of
// a workgroup, which share keys. IN_PARTS: whether there are several parts. ALIGNED: rows of k and v may be read sixteen
// bytes at a time. PAGE: 0, or the rows of a page of a pool of `pages`, of which a table names those of each sequence.
#include "attention_masks.h"
#include "stream.h"
#define STREAMS (256u / LANES)
#define D (16u * LANES)
#define BLOCKS (D / 32u)
#define ROWS_OF_PAGE (PAGE == 0u ? 1u : PAGE)
#define BYTE_OF(w, n) float(int((w) << (24u - 8u * (n))) >> 24)
#define BYTES(w) VEC4(BYTE_OF(w, 0u), BYTE_OF(w, 1u), BYTE_OF(w, 2u), BYTE_OF(w, 3u))

RLX_FN float plus(const float a, const float b) { return a + b; }
LANES_OP(lanes_sum, LANES, plus)
LANES_OP(group_sum, 256u, plus)
LANES_OP(group_top, 256u, larger)

SHARED vec4 tile[256u * 4u];  // [stream][lane][quad]
SHARED float tops[8];
SHARED float wholes[8];

RLX_FN float dot_of(const vec4 a, const vec4 b, const float sum) {
    return FMA(a.w, b.w, FMA(a.z, b.z, FMA(a.y, b.y, FMA(a.x, b.x, sum))));
}
RLX_FN vec4 scaled(const vec4 v, const float by) { return VEC4(v.x * by, v.y * by, v.z * by, v.w * by); }
RLX_FN uint word_of(PTR(b1) p, const uint i) {
    return uint(p AT(i)) | uint(p AT(i + 1u)) << 8 | uint(p AT(i + 2u)) << 16 | uint(p AT(i + 3u)) << 24;
}
RLX_FN uvec4 bytes_of(PTR(b1) p, const uint unit) {
    if (ALIGNED) return LOAD_ONCE(p, unit);
    const uint i = unit * 16u;
    return UVEC4(word_of(p, i), word_of(p, i + 4u), word_of(p, i + 8u), word_of(p, i + 12u));
}
// The row of a key: in its sequence, or in the pool. Numbers of pages beyond the pool are clamped.
RLX_FN uint row_of(PTR(i32) of, const uint key, const uint pages) {
    if (PAGE == 0u) return key;
    const int page = larger_i(LOAD(i32, of, key / ROWS_OF_PAGE), 0);
    return uint(lesser_i(page, int(pages) - 1)) * PAGE + key % ROWS_OF_PAGE;
}

// few: the parts, eight bits; the queries, sixteen; whether each sequence has a length of its own. mb: of pages, their
// number, since they have no mask.
RLX_FN void packed_attention_body(PTR(T) q, PTR(b1) k, PTR(f16) k_scales, PTR(b1) v, PTR(f16) v_scales, PTR(M) mask,
                                  PTR(i32) lengths, PTR(i32) table, PTR(T) y, PTR(f32) parts, const uint count,
                                  const uint heads, const uint kv_heads, const uint sk, const uint mb, const uint mh,
                                  const uint mq, const uint mk, const uint window, const uint few, const float scale,
                                  const float cap) {
    const uint splits = few & 0xffu, sq = few >> 8 & 0xffffu, each = few >> 24;
    const uint share = heads / kv_heads, mine = share * sq;  // the query rows that share a key head
    const uint groups = (mine + ROWS - 1u) / ROWS;
    const uint split = GROUP % splits, kv = GROUP / splits / groups, r0 = GROUP / splits % groups * ROWS;
    if (kv * share >= count) return;
    const uint b = kv / kv_heads, h0 = kv % kv_heads * share;
    const uint own = PAGE == 0u ? b : 0u;  // the sequence whose rows follow each other
    PTR(i32) of = SKIP(i32, table, PAGE == 0u ? 0u : b, sk / ROWS_OF_PAGE);
    PTR(b1) pk = HEAD(b1, k, true, own, kv % kv_heads, kv_heads, sk, kv_heads * D, D);
    PTR(b1) pv = HEAD(b1, v, true, own, kv % kv_heads, kv_heads, sk, kv_heads * D, D);
    PTR(f16) pks = HEAD(f16, k_scales, true, own, kv % kv_heads, kv_heads, sk, kv_heads * BLOCKS, BLOCKS);
    PTR(f16) pvs = HEAD(f16, v_scales, true, own, kv % kv_heads, kv_heads, sk, kv_heads * BLOCKS, BLOCKS);
    PTR(M) pm = SKIP(M, mask, b, PAGE == 0u ? mb : 0u);
    const int len = key_count(lengths, b * each, sk), reach = int(window), shift = len - int(sq);
    const int begin = first_seen(0, shift, reach), end = after_seen(int(sq), shift, reach, len);
    const uint there = end > begin ? uint(end - begin) : 0u;
    const uint chunk = ((there + splits - 1u) / splits + STREAMS - 1u) / STREAMS * STREAMS;
    const uint from = split * chunk < there ? uint(begin) + split * chunk : uint(larger_i(begin, 0));
    const uint to = split * chunk < there ? (from + chunk < uint(end) ? from + chunk : uint(end)) : from;
    const float inverse_cap = CAPPED ? p_recip_f(cap) : 0.0f;
    const uint lane = THREAD % LANES, stream = THREAD / LANES;

    vec4 query[ROWS * 4u], out_[ROWS * 4u];
    float top[ROWS], total[ROWS];
    UNROLL for (uint r = 0u; r < ROWS; r++) {
        const uint row = r0 + r < mine ? r0 + r : mine - 1u;
        PTR(T) pq = SKIP(T, q, (b * sq + row % sq) * heads + h0 + row / sq, D);
        UNROLL for (uint e = 0u; e < 4u; e++) {
            const uint c = lane * 16u + e * 4u;
            query[r * 4u + e] = VEC4(LOAD(T, pq, c), LOAD(T, pq, c + 1u), LOAD(T, pq, c + 2u), LOAD(T, pq, c + 3u));
            out_[r * 4u + e] = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
        }
        top[r] = -INFINITE;
        total[r] = 0.0f;
    }
    for (uint k0 = from; k0 < to; k0 += 4u * STREAMS) {
        uvec4 wk[4], wv[4];
        float dk[4], dv[4], scores[4u * ROWS];
        uint rows_of[4];
        // Beyond the part the last key is read again; its weight there is zero, and so is its v, whose scale may be NaN.
        UNROLL for (uint n = 0u; n < 4u; n++) {
            rows_of[n] = row_of(of, least(k0 + n * STREAMS + stream, to - 1u), mb);
            wk[n] = bytes_of(pk, rows_of[n] * kv_heads * LANES + lane);
            dk[n] = LOAD(f16, pks, rows_of[n] * kv_heads * BLOCKS + lane / 2u);
        }
        UNROLL for (uint n = 0u; n < 4u; n++) {
            wv[n] = bytes_of(pv, rows_of[n] * kv_heads * LANES + lane);
            dv[n] = LOAD(f16, pvs, rows_of[n] * kv_heads * BLOCKS + lane / 2u);
            if (k0 + n * STREAMS + stream >= to) dv[n] = 0.0f;
        }
        UNROLL for (uint n = 0u; n < 4u; n++) {
            const vec4 k0_ = BYTES(wk[n].x), k1_ = BYTES(wk[n].y), k2_ = BYTES(wk[n].z), k3_ = BYTES(wk[n].w);
            UNROLL for (uint r = 0u; r < ROWS; r++) {
                float sum = dot_of(query[r * 4u + 1u], k1_, dot_of(query[r * 4u], k0_, 0.0f));
                sum = dot_of(query[r * 4u + 3u], k3_, dot_of(query[r * 4u + 2u], k2_, sum));
                scores[n * ROWS + r] = lanes_sum(sum * dk[n]);
            }
        }
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
            const float base = base_of(greatest), less = p_exp_f(top[r] - base);
            top[r] = greatest;
            total[r] *= less;
            UNROLL for (uint e = 0u; e < 4u; e++) out_[r * 4u + e] = scaled(out_[r * 4u + e], less);
            UNROLL for (uint n = 0u; n < 4u; n++) {
                const float w = p_exp_f(scores[n * ROWS + r] - base);
                scores[n * ROWS + r] = w;
                total[r] += w;
            }
        }
        UNROLL for (uint n = 0u; n < 4u; n++) {
            const vec4 v0_ = BYTES(wv[n].x), v1_ = BYTES(wv[n].y), v2_ = BYTES(wv[n].z), v3_ = BYTES(wv[n].w);
            UNROLL for (uint r = 0u; r < ROWS; r++) {
                const float w = scores[n * ROWS + r] * dv[n];
                FMA_ROW(out_[r * 4u], w, v0_)
                FMA_ROW(out_[r * 4u + 1u], w, v1_)
                FMA_ROW(out_[r * 4u + 2u], w, v2_)
                FMA_ROW(out_[r * 4u + 3u], w, v3_)
            }
        }
    }

    UNROLL for (uint r = 0u; r < ROWS; r++) {
        const float greatest = group_top(top[r]), less = p_exp_f(top[r] - base_of(greatest));
        const float whole = group_sum(lane == 0u ? total[r] * less : 0.0f);
        UNROLL for (uint e = 0u; e < 4u; e++) out_[r * 4u + e] = scaled(out_[r * 4u + e], less);
        if (THREAD == 0u) {
            tops[r] = greatest;
            wholes[r] = whole;
        }
    }
    UNROLL for (uint r = 0u; r < ROWS; r++) {
        BARRIER;
        UNROLL for (uint e = 0u; e < 4u; e++) tile[THREAD * 4u + e] = out_[r * 4u + e];
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
