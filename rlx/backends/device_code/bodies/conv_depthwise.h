// y[n, t, c] = act(sum over taps of w[tap, c] * x[n, t * step + tap, c] + bias[c]): convolution of each channel by itself,
// for halves (T) with channels last, of which there are 8 deep. A thread adds up PIXELS neighbours along the last axis for
// eight channels, so that what it reads of w serves all of them. ACTIVATION, BIAS (1: in f32, 2: in T). ROW: the taps along
// the last axis, up to MOST_ROW, of a convolution whose steps and dilations there are 1: the neighbours then share what
// they read of x, too; else 0.
// meta: input sizes (3), positions (3), steps (3), dilations (3), padding (3), kernel (3).
#define TA T
#define META(i) LOAD(u32, meta, i)
#define PIXELS 4u
#define MOST_ROW 7u
#define TAP(q, p) ((q) >= (p) && (q) - (p) < MOST_ROW ? (q) - (p) : 0u)
#include "activation.h"
#include "bias.h"
#include "eights.h"

RLX_FN vec4 finished(const vec4 sum, PTR(f32) bias, const uint c) {
    vec4 v = sum;
    if (HAS_BIAS) {
        v.x += bias_at(bias, c);
        v.y += bias_at(bias, c + 1u);
        v.z += bias_at(bias, c + 2u);
        v.w += bias_at(bias, c + 3u);
    }
    return VEC4(activated(v.x), activated(v.y), activated(v.z), activated(v.w));
}

#define FMA_FOUR(acc, a, b)          \
    acc.x = FMA(a.x, b.x, acc.x);    \
    acc.y = FMA(a.y, b.y, acc.y);    \
    acc.z = FMA(a.z, b.z, acc.z);    \
    acc.w = FMA(a.w, b.w, acc.w);

RLX_FN void conv_depthwise_body(PTR(T) x, PTR(T) w, PTR(f32) bias, PTR(u32) meta, PTR(T) y, const uint batch,
                                const uint deep) {
    const uint id = GROUP * 256u + THREAD, unit = id % deep;
    const uint s0 = META(0u), s1 = META(1u), s2 = META(2u), t0 = META(3u), t1 = META(4u), t2 = META(5u);
    const uint across = (t2 + PIXELS - 1u) / PIXELS, line = id / deep / across, image = line / (t0 * t1);
    if (image >= batch) return;
    const uint u0 = line / t1 % t0, u1 = line % t1, u2 = id / deep % across * PIXELS;
    const uint b0 = u0 * META(6u) - META(12u), b1 = u1 * META(7u) - META(13u), step2 = META(8u);
    const uint b2 = u2 * step2 - META(14u);
    const uint d0 = META(9u), d1 = META(10u), d2 = META(11u), k0 = META(15u), k1 = META(16u), k2 = META(17u);
    const vec4 zero = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    vec4 low[PIXELS], high[PIXELS];
    UNROLL for (uint p = 0u; p < PIXELS; p++) {
        low[p] = zero;
        high[p] = zero;
    }
    uint tap = unit;
    for (uint i0 = 0u; i0 < k0; i0++) {
        const uint p0 = b0 + i0 * d0;
        for (uint i1 = 0u; i1 < k1; i1++) {
            const uint p1 = b1 + i1 * d1;
            const bool inside = p0 < s0 && p1 < s1;
            const uint row = ((image * s0 + p0) * s1 + p1) * s2;
            if (ROW != 0u) {
                vec4 wa[MOST_ROW], wb[MOST_ROW];
                UNROLL for (uint i2 = 0u; i2 < MOST_ROW; i2++) {
                    if (i2 < ROW) LOAD8(T, w, tap + i2 * deep, wa[i2], wb[i2]);
                }
                tap += ROW * deep;
                UNROLL for (uint q = 0u; q < MOST_ROW + PIXELS - 1u; q++) {
                    if (q < ROW + PIXELS - 1u) {
                        vec4 va = zero, vb = zero;
                        if (inside && b2 + q < s2) LOAD8(T, x, (row + b2 + q) * deep + unit, va, vb);
                        UNROLL for (uint p = 0u; p < PIXELS; p++) {
                            if (q >= p && q - p < ROW) {
                                FMA_FOUR(low[p], wa[TAP(q, p)], va)
                                FMA_FOUR(high[p], wb[TAP(q, p)], vb)
                            }
                        }
                    }
                }
                continue;
            }
            for (uint i2 = 0u; i2 < k2; i2++) {
                vec4 wa, wb;
                LOAD8(T, w, tap, wa, wb);
                tap += deep;
                UNROLL for (uint p = 0u; p < PIXELS; p++) {
                    // Padding is multiplied too: zero times an infinite weight is NaN wherever the sum is computed.
                    const uint p2 = b2 + p * step2 + i2 * d2;
                    vec4 va = zero, vb = zero;
                    if (inside && p2 < s2) LOAD8(T, x, (row + p2) * deep + unit, va, vb);
                    FMA_FOUR(low[p], wa, va)
                    FMA_FOUR(high[p], wb, vb)
                }
            }
        }
    }
    UNROLL for (uint p = 0u; p < PIXELS; p++) {
        if (u2 + p < t2) {
            STORE8(T, y, (line * t2 + u2 + p) * deep + unit, finished(low[p], bias, unit * 8u),
                   finished(high[p], bias, unit * 8u + 4u));
        }
    }
}
