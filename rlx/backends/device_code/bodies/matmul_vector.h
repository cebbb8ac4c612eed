// c = act(x B^T + bias) for one row x, and two forms that take a launch less: NORMED, x is first divided by its root mean
// square and multiplied by gamma; GATED, c has half of B's rows, and is act(row i) times row i + n / 2. Reading B takes
// the time: LANES threads share HIGH rows of B, and all that they read in a step, eight units of 16 bytes, is on its way
// at once. What x adds (its norm, its products) waits in the same registers, so that nothing but LANES > 32 needs a
// barrier. On CUDA the first rows of B are on their way into the cache before the kernel before is done.
// UNITS: x, gamma and B may be read 16 bytes at a time. ACTIVATION, BIAS: see activation.h and bias.h; WIDE: c is f32.
#include "pair.h"
#include "begin.h"
#include "stream.h"
#include "units.h"
#include "activation.h"
#include "bias.h"
#include "quads.h"
#define PER RLX_JOIN(PER_, TB)
#define LOWER RLX_JOIN(LOWER_, TB)
#define UPPER RLX_JOIN(UPPER_, TB)
#define UNIT_AT RLX_JOIN(unit_, TB)
#define QUADS (PER / 4u)
#define TEAMS (256u / LANES)
#define MADE (GATED ? HIGH / 2u : HIGH)  // elements of c that a team makes
#define ROW(r) least((r) % MADE, last)
#ifdef RLX_GLSL
#define OF_ROW(r) ((r) < MADE ? uvec2(p0) : uvec2(p1))
#else
#define OF_ROW(r) ((r) < MADE ? p0 : p1)
#endif

RLX_FN float plus(const float a, const float b) { return a + b; }
LANES_OP(lanes_sum, LANES, plus)
RLX_QUAD(quad_x, TA, UNITS)
RLX_QUAD(quad_gamma, f32, UNITS)

RLX_FN void matmul_vector_body(PTR(TA) x, PTR(f32) gamma, PTR(TB) b, PTR(f32) bias, PTR(TA) c, const uint n,
                               const uint k, const float eps) {
    const uint made = GATED ? n / 2u : n, lane = THREAD % LANES;
    const uint first = (GROUP * TEAMS + THREAD / LANES) * MADE, step = 8u / HIGH * LANES * PER;
    if (GROUP * TEAMS * MADE >= made) return;
    // Beyond the last row of B it is read again.
    const uint begin = least(first, made - 1u), last = made - 1u - begin;
    PTR(TB) p0 = SKIP(TB, b, begin, k);
    PTR(TB) p1 = SKIP(TB, b, GATED ? begin + made : begin, k);
    if (UNITS) {
        UNROLL for (uint i = 0u; i < 8u; i++) {
            PREFETCH(OF_ROW(i % HIGH), (ROW(i % HIGH) * k + least((i / HIGH * LANES + lane) * PER, k - PER)) / PER)
        }
    }
    BEGIN;
    float sums[HIGH];
    float scale = 1.0f;  // of x, whose squares overflow where it is beyond 1e19
    for (uint turn = 0u; turn < (NORMED ? 2u : 1u); turn++) {
        vec4 acc[HIGH];
        float squares = 0.0f;
        UNROLL for (uint r = 0u; r < HIGH; r++) acc[r] = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
        for (uint t = lane * PER; t < k + lane * PER; t += step) {
            uvec4 w[8];
            UNROLL for (uint i = 0u; i < 8u; i++) {
                const uint at = t + i / HIGH * LANES * PER;
                if (UNITS) {
                    w[i] = LOAD_ONCE(OF_ROW(i % HIGH), (ROW(i % HIGH) * k + least(at, k - PER)) / PER);
                } else if (i % HIGH < MADE) {
                    w[i] = UNIT_AT(p0, ROW(i % HIGH), at, k, k);
                } else {
                    w[i] = UNIT_AT(p1, ROW(i % HIGH), at, k, k);
                }
            }
            UNROLL for (uint i = 0u; i < 8u; i += HIGH) {
                const uint at = t + i / HIGH * LANES * PER;
                UNROLL for (uint e = 0u; e < QUADS; e++) {
                    vec4 v = quad_x(x, 0u, at + 4u * e, 1u, k, k);
                    if (NORMED) {
                        v = VEC4(v.x * scale, v.y * scale, v.z * scale, v.w * scale);
                        squares = FMA(v.w, v.w, FMA(v.z, v.z, FMA(v.y, v.y, FMA(v.x, v.x, squares))));
                        const vec4 g = quad_gamma(gamma, 0u, at + 4u * e, 1u, k, k);
                        v = VEC4(v.x * g.x, v.y * g.y, v.z * g.z, v.w * g.w);
                    }
                    UNROLL for (uint r = 0u; r < HIGH; r++) {
                        vec4 m = e == 0u ? LOWER(w[i + r]) : UPPER(w[i + r]);
                        // What was read in place of columns that do not exist may be infinite.
                        if (UNITS && at >= k) m = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
                        acc[r].x = FMA(v.x, m.x, acc[r].x);
                        acc[r].y = FMA(v.y, m.y, acc[r].y);
                        acc[r].z = FMA(v.z, m.z, acc[r].z);
                        acc[r].w = FMA(v.w, m.w, acc[r].w);
                    }
                }
            }
        }
        UNROLL for (uint r = 0u; r < HIGH; r++) sums[r] = lanes_sum((acc[r].x + acc[r].y) + (acc[r].z + acc[r].w));
        if (NORMED) {
            const float total = lanes_sum(squares);  // the same in every thread of the workgroup
            const float inverse = p_rsqrt_f(total * p_recip_f(float(k)) + eps * scale * scale);
            UNROLL for (uint r = 0u; r < HIGH; r++) sums[r] *= inverse;
            if (total < INFINITE) break;
            scale = 7.8886090522101181e-31f;  // 2^-100
        }
    }
    UNROLL for (uint r = 0u; r < MADE; r++) {
        const uint at = first + r;
        if (lane == r && at < made) {
            float v = sums[r];
            if (HAS_BIAS) v += bias_at(bias, at);
            v = activated(v);
            if (GATED) v *= sums[r + HIGH / 2u];
            if (WIDE) {
                STORE(f32, AS(f32, c), at, v);
            } else {
                STORE(TA, c, at, v);
            }
        }
    }
}
