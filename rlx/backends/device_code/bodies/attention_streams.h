// What attention_stream and attention_step share: a workgroup of 256 threads reads keys and values of heads of
// LANES * PER elements, sixteen bytes for each of LANES threads. Each of the STREAMS groups of LANES threads takes every
// STREAMS-th key of the workgroup's part and keeps sums and greatest scores of its own, so that there is no barrier before
// all keys are read: at a few thousand keys, waiting takes longer than reading. At the end the workgroup adds its streams
// up, always in the same order. Variables of the body: query[ROWS * QUADS], out_[ROWS * QUADS], top[ROWS], total[ROWS],
// lane, stream.
#include "stream.h"
#include "units.h"
#define PER RLX_JOIN(PER_, T)
#define LOWER RLX_JOIN(LOWER_, T)
#define UPPER RLX_JOIN(UPPER_, T)
#define QUADS (PER / 4u)  // of a thread, in a row
#ifndef STREAMS
#define STREAMS (256u / LANES)
#define STREAM_ROWS ROWS    // rows of all streams
#define STREAM_ROW(r) (r)  // the number among them of row r of the own stream
#endif
#define TOGETHER (ROWS < 2u ? 1u : 2u)  // rows whose sums lie in shared memory at once

RLX_FN float plus(const float a, const float b) { return a + b; }
LANES_OP(lanes_sum, LANES, plus)

SHARED vec4 tile[TOGETHER * 256u * QUADS];  // [row][stream][lane][quad]
SHARED float stream_tops[STREAM_ROWS * STREAMS];   // [row][stream], as the next two
SHARED float stream_totals[STREAM_ROWS * STREAMS];
SHARED float factors[STREAM_ROWS * STREAMS];  // of the streams' sums
SHARED float tops[STREAM_ROWS];

RLX_FN float dot_of(const vec4 a, const vec4 b, const float sum) {
    return FMA(a.w, b.w, FMA(a.z, b.z, FMA(a.y, b.y, FMA(a.x, b.x, sum))));
}
RLX_FN vec4 scaled(const vec4 v, const float by) { return VEC4(v.x * by, v.y * by, v.z * by, v.w * by); }

// The row of the i-th key, where a cache's rows are not the keys in their order; and unit i of keys or values.
#ifndef KEY_ROW
#define KEY_ROW(i) (i)
#endif
#ifndef KEY_UNIT
#define KEY_UNIT(p, i) LOAD_ONCE(p, i)
#endif

// Four keys and values of a stream, from k0 on, from units of pk and pv whose rows are k_step and v_step units apart.
// Beyond the part the last key is read again; its weight there is zero, and so is its v, which may be infinite.
#define READ_KEYS(wk, wv, k0, to, pk, pv, k_step, v_step)                                        \
    UNROLL for (uint n = 0u; n < 4u; n++) {                                                      \
        const uint i = least((k0) + n * STREAMS + stream, (to) - 1u);                            \
        wk[n] = KEY_UNIT(pk, KEY_ROW(i) * (k_step) + lane);                                      \
    }                                                                                            \
    UNROLL for (uint n = 0u; n < 4u; n++) {                                                      \
        const uint i = least((k0) + n * STREAMS + stream, (to) - 1u);                            \
        wv[n] = KEY_UNIT(pv, KEY_ROW(i) * (v_step) + lane);                                      \
        if ((k0) + n * STREAMS + stream >= (to)) wv[n] = UVEC4(0u, 0u, 0u, 0u);                  \
    }

// scores[n * ROWS + r] = the product of query r and the key in wk[n].
#define SCORE_KEYS(scores, wk)                                                                           \
    UNROLL for (uint n = 0u; n < 4u; n++) {                                                              \
        const vec4 lower = LOWER(wk[n]), upper = UPPER(wk[n]);                                           \
        UNROLL for (uint r = 0u; r < ROWS; r++) {                                                        \
            float sum = dot_of(query[r * QUADS], lower, 0.0f);                                           \
            if (QUADS == 2u) sum = dot_of(query[r * QUADS + QUADS - 1u], upper, sum);                    \
            scores[n * ROWS + r] = lanes_sum(sum);                                                       \
        }                                                                                                \
    }

// The scores of row r, of which `greatest` is the largest of all so far, become weights; earlier sums shrink to fit.
#define WEIGH_KEYS(scores, r, greatest)                                                                  \
    {                                                                                                    \
        const float base = base_of(greatest), less = weight_of(top[r] - base);                             \
        top[r] = greatest;                                                                               \
        total[r] *= less;                                                                                \
        UNROLL for (uint e = 0u; e < QUADS; e++) out_[r * QUADS + e] = scaled(out_[r * QUADS + e], less); \
        UNROLL for (uint n = 0u; n < 4u; n++) {                                                          \
            const float w = weight_of(scores[n * ROWS + r] - base);                                         \
            scores[n * ROWS + r] = w;                                                                    \
            total[r] += w;                                                                               \
        }                                                                                                \
    }

#define ADD_VALUES(scores, wv)                                                                                 \
    UNROLL for (uint n = 0u; n < 4u; n++) {                                                                    \
        const vec4 lower = LOWER(wv[n]), upper = UPPER(wv[n]);                                                 \
        UNROLL for (uint r = 0u; r < ROWS; r++) {                                                              \
            FMA_ROW(out_[r * QUADS], scores[n * ROWS + r], lower)                                              \
            if (QUADS == 2u) { FMA_ROW(out_[r * QUADS + QUADS - 1u], scores[n * ROWS + r], upper) }            \
        }                                                                                                      \
    }

// Rows r … r + TOGETHER - 1 of the streams' sums, in shared memory.
#define SHARE_SUMS(r)                                                                   \
    UNROLL for (uint g = 0u; g < TOGETHER; g++) {                                       \
        UNROLL for (uint e = 0u; e < QUADS; e++) {                                      \
            tile[(g * 256u + THREAD) * QUADS + e] = out_[((r) + g) * QUADS + e];        \
        }                                                                               \
    }

// The first rows' sums, and for all rows the greatest score in tops and the factor of each stream's sums.
#define MEET_STREAMS                                                                    \
    if (lane == 0u) {                                                                   \
        UNROLL for (uint r = 0u; r < ROWS; r++) {                                       \
            stream_tops[STREAM_ROW(r) * STREAMS + stream] = top[r];                     \
            stream_totals[STREAM_ROW(r) * STREAMS + stream] = total[r];                 \
        }                                                                               \
    }                                                                                   \
    SHARE_SUMS(0u)                                                                      \
    BARRIER;                                                                            \
    for (uint x = THREAD; x < STREAM_ROWS * STREAMS; x += 256u) {                       \
        float greatest = -INFINITE;                                                     \
        for (uint s = 0u; s < STREAMS; s++) {                                           \
            greatest = larger(stream_tops[x / STREAMS * STREAMS + s], greatest);        \
        }                                                                               \
        factors[x] = weight_of(stream_tops[x] - base_of(greatest));                     \
        if (x % STREAMS == 0u) tops[x / STREAMS] = greatest;                            \
    }                                                                                   \
    BARRIER;                                                                            \

// The next rows' sums take the place of those before.
#define NEXT_SUMS(r)  \
    BARRIER;          \
    SHARE_SUMS(r)     \
    BARRIER;          \

// The sum of all streams for element c of row r, the g-th in shared memory; and the total of row r.
RLX_FN float streams_sum(const uint r, const uint g, const uint c) {
    float sum = 0.0f;
    UNROLL for (uint s = 0u; s < STREAMS; s++) {
        sum = FMA(ELEMENT(tile, g * 1024u * QUADS + s * LANES * PER + c), factors[r * STREAMS + s], sum);
    }
    return sum;
}
RLX_FN float streams_total(const uint r) {
    float sum = 0.0f;
    UNROLL for (uint s = 0u; s < STREAMS; s++) {
        sum = FMA(stream_totals[r * STREAMS + s], factors[r * STREAMS + s], sum);
    }
    return sum;
}
