// One query a head against the rows of a cache and its own new key and value, which are written into their row here, as
// when a model generates token by token. Rotating, writing and adding up are no launches of their own, since a launch that
// waits for another takes longer than each of them. q, k and v hold one row a head, whose pairs are turned by the angles
// of row `at` of the tables, as in rope.h; at = position[b], brought into 0 … rows - 1, is also the number of keys in the
// cache before it. No workgroup reads the row that another writes: the first part takes the new key from k itself.
// Constants: LANES, ROWS: see attention_streams.h; ROWS of the SHARE heads that share a key head are one block. SPLITS: the
// parts into which the keys are cut, one for each workgroup; the last to arrive adds them up in order. TURNED: pairs that
// are turned, INTERLEAVED: as in rope.h. WINDOWED: at most `window` keys before the own one are seen. CAPPED: scores are
// bent at `cap`. SINKS: each head has one more term in its total. RING: `at` is position[b] from 0 on, whose row is that
// modulo `rows`; window < rows, so that the keys that are seen lie in other rows. ACROSS: how many heads a row of the
// matrix has of which q, k and v are columns; 0 where each of them is by itself.
#include "attention_sums.h"
#include "begin.h"
#include "pair.h"
#define T TB
#define KEY_ROW(i) (RING && (i) >= rows ? (i) - rows : (i))
#include "attention_streams.h"
#include "attention_parts.h"
#include "turned.h"
#define SIZE (LANES * PER)

SHARED bool last;
SHARED vec4 fresh[(ROWS + 2u) * LANES * QUADS];  // ROWS queries, the new key, the new value, as the cache stores them

// A token's position, and its row in the cache.
RLX_FN uint position_of(const int position, const uint rows) {
    const int at = larger_i(position, 0);
    return uint(RING ? at : lesser_i(at, int(rows) - 1));
}
RLX_FN uint row_of(const uint at, const uint rows) { return RING ? at % rows : at; }
// How many keys before its own a token at `at` sees; the first of `there` keys before row `row`, which go on at a ring's
// first row after its last (KEY_ROW); and how many keys a part has at most.
RLX_FN uint keys_before(const uint at, const uint window) { return WINDOWED ? least(at, window) : at; }
RLX_FN uint first_key(const uint row, const uint there, const uint rows) {
    return RING && row < there ? row + rows - there : row - there;
}
RLX_FN uint part_size(const uint keys) { return ((keys + SPLITS - 1u) / SPLITS + STREAMS - 1u) / STREAMS * STREAMS; }
RLX_FN float bent(const float s, const float cap) { return CAPPED ? cap * p_tanh_f(s * p_recip_f(cap)) : s; }

RLX_FN void attention_step_body(PTR(TA) q, PTR(TA) k, PTR(TA) v, PTR(TB) keys, PTR(TB) values, PTR(i32) position,
                                PTR(f32) cosine, PTR(f32) sine, PTR(f32) sinks, PTR(TA) y, PTR(f32) parts,
                                PTR(u32) counters, const uint count, const uint rows, const uint entries,
                                const uint window, const float scale, const float cap) {
    const uint blocks = (SHARE + ROWS - 1u) / ROWS;
    const uint split = GROUP % SPLITS, block = GROUP / SPLITS, kv = block / blocks, r0 = block % blocks * ROWS;
    if (kv >= count) return;
    const uint b = kv / KV_HEADS, h = kv % KV_HEADS, lane = THREAD % LANES, stream = THREAD / LANES;
    const uint step = KV_HEADS * LANES;
    PTR(TB) pk = SKIP(TB, SKIP(TB, keys, b * rows, KV_HEADS * SIZE), h, SIZE);
    PTR(TB) pv = SKIP(TB, SKIP(TB, values, b * rows, KV_HEADS * SIZE), h, SIZE);
    // The first keys are brought near while earlier kernels still run.
    const uint guess = position_of(PEEK(position, b), rows), behind = keys_before(guess, window);
    const uint near = first_key(row_of(guess, rows), behind, rows), ahead = near + split * part_size(behind) + stream;
    if (lane % 8u == 0u) {
        UNROLL for (uint n = 0u; n < 4u; n++) {
            if (ahead + n * STREAMS < near + behind) {
                PREFETCH(pk, KEY_ROW(ahead + n * STREAMS) * step + lane)
                PREFETCH(pv, KEY_ROW(ahead + n * STREAMS) * step + lane)
            }
        }
    }
    BEGIN;
    const uint at = position_of(LOAD(i32, position, b), rows), entry = (at < entries ? at : entries - 1u) * TURNED;
    const uint row_at = row_of(at, rows), there = keys_before(at, window), chunk = part_size(there);
    const uint begin = first_key(row_at, there, rows);
    const uint from = begin + least(split * chunk, there), to = least(from + chunk, begin + there);

    // The first keys are asked for before the queries, whose tables take as long to come. What is turned is turned once
    // in a workgroup.
    uvec4 wk[4], wv[4];
    if (from < to) { READ_KEYS(wk, wv, from, to, pk, pv, step, step) }
    for (uint i = THREAD; i < (split == 0u ? ROWS + 2u : ROWS) * LANES * QUADS; i += 256u) {
        const uint r = i / (LANES * QUADS), c = i % (LANES * QUADS);
        const uint across = ACROSS > 0u ? ACROSS : r < ROWS ? KV_HEADS * SHARE : KV_HEADS;
        const uint row = b * across + (r < ROWS ? h * SHARE + least(r0 + r, SHARE - 1u) : h);
        PTR(TA) x = SKIP(TA, ONE_OF(r < ROWS, q, ONE_OF(r == ROWS, k, v)), row, SIZE);
        fresh[i] = r > ROWS ? near4(LOAD4(TA, x, c)) : turned(x, cosine, sine, entry, c * 4u);
        if (r >= ROWS && r0 == 0u) {
            PTR(TB) cache = SKIP(TB, ONE_OF(r == ROWS, pk, pv), row_at, KV_HEADS * SIZE);
            STORE4(TB, cache, c, fresh[i]);
        }
    }
    BARRIER;
    vec4 query[ROWS * QUADS], out_[ROWS * QUADS];
    float top[ROWS], total[ROWS];
    UNROLL for (uint r = 0u; r < ROWS; r++) {
        UNROLL for (uint e = 0u; e < QUADS; e++) {
            query[r * QUADS + e] = fresh[(r * LANES + lane) * QUADS + e];
            out_[r * QUADS + e] = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
        }
        top[r] = -INFINITE;
        total[r] = 0.0f;
    }
    if (split == 0u) {
        // Stream r adds the new key to row r, the stream behind it the sink.
        float sum = 0.0f;
        UNROLL for (uint e = 0u; e < QUADS; e++) {
            const uint c = lane * QUADS + e;
            sum = dot_of(fresh[stream % ROWS * LANES * QUADS + c], fresh[ROWS * LANES * QUADS + c], sum);
        }
        const float s = bent(lanes_sum(sum) * scale, cap);
        UNROLL for (uint r = 0u; r < ROWS; r++) {
            if (stream == r) {
                top[r] = larger(s, -INFINITE);
                total[r] = weight_of(s - base_of(top[r]));
                UNROLL for (uint e = 0u; e < QUADS; e++) {
                    out_[r * QUADS + e] = scaled(fresh[((ROWS + 1u) * LANES + lane) * QUADS + e], total[r]);
                }
            }
            if (SINKS && stream == (r + 1u) % STREAMS) {
                const float sink = LOAD(f32, sinks, h * SHARE + least(r0 + r, SHARE - 1u));
                top[r] = larger(sink, -INFINITE);
                total[r] = weight_of(sink - base_of(top[r]));
            }
        }
    }
    for (uint k0 = from; k0 < to; k0 += 4u * STREAMS) {
        float scores[4u * ROWS];
        SCORE_KEYS(scores, wk)
        UNROLL for (uint r = 0u; r < ROWS; r++) {
            float greatest = top[r];
            UNROLL for (uint n = 0u; n < 4u; n++) {
                const float s = k0 + n * STREAMS + stream < to ? bent(scores[n * ROWS + r] * scale, cap) : -INFINITE;
                scores[n * ROWS + r] = s;
                greatest = larger(s, greatest);
            }
            WEIGH_KEYS(scores, r, greatest)
        }
        ADD_VALUES(scores, wv)
        if (k0 + 4u * STREAMS < to) { READ_KEYS(wk, wv, k0 + 4u * STREAMS, to, pk, pv, step, step) }
    }

    MEET_STREAMS
    // A part: ROWS rows of sums; behind all parts' sums the greatest score and the total of each row.
    PTR(f32) sums = SKIP(f32, parts, block * SPLITS, ROWS * SIZE);
    PTR(f32) figures = SKIP(f32, SKIP(f32, parts, count * blocks * SPLITS, ROWS * SIZE), block * SPLITS, ROWS * 2u);
    UNROLL for (uint r = 0u; r < ROWS; r += TOGETHER) {
        if (r > 0u) { NEXT_SUMS(r) }
        for (uint f = THREAD; f < TOGETHER * SIZE; f += 256u) {
            const uint g = f / SIZE, c = f % SIZE, row = r + g;
            const float sum = streams_sum(row, g, c);
            if (SPLITS > 1u) {
                const float whole = c == 0u ? streams_total(row) : 0.0f;
                show_part(figures, sums, ROWS, row, split, SIZE, c, tops[row], whole, sum);
            } else if (r0 + row < SHARE) {
                STORE(TA, SKIP(TA, y, kv * SHARE + r0 + row, SIZE), c, NEAR(sum * quick_inverse(streams_total(row))));
            }
        }
    }
    if (SPLITS > 1u) {
        ARRIVE(counters, block, SPLITS, last)
        if (!last) return;
        for (uint f = THREAD; f < ROWS * SIZE; f += 256u) {
            const uint row = f / SIZE, c = f % SIZE;
            if (r0 + row < SHARE) {
                STORE(TA, SKIP(TA, y, kv * SHARE + r0 + row, SIZE), c, NEAR(parts_sum(figures, sums, ROWS, row, SIZE, c, SPLITS)));
            }
        }
    }
}
