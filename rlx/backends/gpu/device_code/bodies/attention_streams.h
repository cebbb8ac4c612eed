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
#define STREAMS (256u / LANES)
#define TOGETHER (ROWS < 2u ? 1u : 2u)  // rows whose sums lie in shared memory at once

RLX_FN float plus(const float a, const float b) { return a + b; }
LANES_OP(lanes_sum, LANES, plus)
LANES_OP(group_sum, 256u, plus)
LANES_OP(group_top, 256u, larger)

SHARED vec4 tile[TOGETHER * 256u * QUADS];  // [row][stream][lane][quad]
SHARED float tops[8];
SHARED float wholes[8];

RLX_FN float dot_of(const vec4 a, const vec4 b, const float sum) {
    return FMA(a.w, b.w, FMA(a.z, b.z, FMA(a.y, b.y, FMA(a.x, b.x, sum))));
}
RLX_FN vec4 scaled(const vec4 v, const float by) { return VEC4(v.x * by, v.y * by, v.z * by, v.w * by); }

// Four keys and values of a stream, from k0 on, from units of pk and pv whose rows are k_step and v_step units apart.
// Beyond the part the last key is read again; its weight there is zero, and so is its v, which may be infinite.
#define READ_KEYS(wk, wv, k0, to, pk, pv, k_step, v_step)                                        \
    UNROLL for (uint n = 0u; n < 4u; n++) {                                                      \
        wk[n] = LOAD_ONCE(pk, least((k0) + n * STREAMS + stream, (to) - 1u) * (k_step) + lane);  \
    }                                                                                            \
    UNROLL for (uint n = 0u; n < 4u; n++) {                                                      \
        wv[n] = LOAD_ONCE(pv, least((k0) + n * STREAMS + stream, (to) - 1u) * (v_step) + lane);  \
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
        const float base = base_of(greatest), less = p_exp_f(top[r] - base);                             \
        top[r] = greatest;                                                                               \
        total[r] *= less;                                                                                \
        UNROLL for (uint e = 0u; e < QUADS; e++) out_[r * QUADS + e] = scaled(out_[r * QUADS + e], less); \
        UNROLL for (uint n = 0u; n < 4u; n++) {                                                          \
            const float w = p_exp_f(scores[n * ROWS + r] - base);                                        \
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

// The greatest scores and totals of the workgroup's rows, in tops and wholes; the streams' sums become relative to them.
#define MEET_STREAMS                                                                                           \
    UNROLL for (uint r = 0u; r < ROWS; r++) {                                                                  \
        const float greatest = group_top(top[r]), less = p_exp_f(top[r] - base_of(greatest));                  \
        const float whole = group_sum(lane == 0u ? total[r] * less : 0.0f);                                    \
        UNROLL for (uint e = 0u; e < QUADS; e++) out_[r * QUADS + e] = scaled(out_[r * QUADS + e], less);      \
        if (THREAD == 0u) {                                                                                    \
            tops[r] = greatest;                                                                                \
            wholes[r] = whole;                                                                                 \
        }                                                                                                      \
    }

// Rows r … r + TOGETHER - 1 of the streams' sums, in shared memory.
#define SHARE_SUMS(r)                                                                   \
    BARRIER;                                                                            \
    UNROLL for (uint g = 0u; g < TOGETHER; g++) {                                       \
        UNROLL for (uint e = 0u; e < QUADS; e++) {                                      \
            tile[(g * 256u + THREAD) * QUADS + e] = out_[((r) + g) * QUADS + e];        \
        }                                                                               \
    }                                                                                   \
    BARRIER;

// The sum of all streams for element c of the g-th row in shared memory.
RLX_FN float streams_sum(const uint g, const uint c) {
    float sum = 0.0f;
    UNROLL for (uint s = 0u; s < STREAMS; s++) sum += ELEMENT(tile, g * 1024u * QUADS + s * LANES * PER + c);
    return sum;
}
