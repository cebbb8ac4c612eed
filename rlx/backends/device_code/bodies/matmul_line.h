// c = act(x B^T + bias) for one row x, and NORMED and GATED as in matmul_vector.h, where x, gamma and B may be read 16
// bytes at a time. LANES threads, a team, share a row of B, of which a thread has MANY units of 16 bytes, and keep the
// elements of x that these are multiplied by. A workgroup makes `each` elements of c, from at most MOST rows of B; DEPTH
// rows of each team are on their way at once, into places of shared memory that the same thread reads. EARLY: no kernel
// of the program writes B and gamma, so that the first rows may come before the kernel before has ended.
// ACTIVATION, BIAS: see activation.h and bias.h; WIDE: c is f32.
#include "pair.h"
#include "begin.h"
#include "stream.h"
#include "units.h"
#include "matmul_ahead.h"
#include "activation.h"
#include "bias.h"
#define PER RLX_JOIN(PER_, TB)
#define LOWER RLX_JOIN(LOWER_, TB)
#define UPPER RLX_JOIN(UPPER_, TB)
#define QUADS (PER / 4u)
#define TEAMS (256u / LANES)
#define WARPS (LANES / 32u)  // of a team
#define MOST 256u

RLX_FN float plus(const float a, const float b) { return a + b; }
LANES_OP(team_sum, LANES, plus)
LANES_OP(warp_sum, 32u, plus)

UNITS(DEPTH * MANY * 256u)
SHARED float parts[WARPS * MOST];

RLX_FN float times_four(const float sum, const vec4 a, const vec4 b) {
    return FMA(a.w, b.w, FMA(a.z, b.z, FMA(a.y, b.y, FMA(a.x, b.x, sum))));
}
// The sum of row `row` of those of a workgroup.
RLX_FN float row_made(const uint row) {
    float sum = parts[row];
    UNROLL for (uint s = 1u; s < WARPS; s++) sum += parts[s * MOST + row];
    return sum;
}

// Begins to load a row of those of a workgroup, if there is one; of a gated product every other row is of B's second half.
#define ASK(row, slot)                                                                                                \
    if ((row) < rows) {                                                                                               \
        PTR(TB) from = SKIP(TB, b, first + (GATED ? (row) / 2u + (row) % 2u * made : (row)), k);                      \
        UNROLL for (uint j = 0u; j < MANY; j++) {                                                                     \
            LOAD_AHEAD(none, ((slot) * MANY + j) * 256u + THREAD, from, lane + j * LANES, lane + j * LANES < units_of) \
        }                                                                                                             \
    }                                                                                                                 \
    LOADS_END

RLX_FN void matmul_line_body(PTR(TA) x, PTR(f32) gamma, PTR(TB) b, PTR(f32) bias, PTR(TA) c, const uint n, const uint k,
                             const uint each, const float eps) {
    const uint made = GATED ? n / 2u : n, first = GROUP * each, lane = THREAD % LANES, team = THREAD / LANES;
    if (first >= made) return;
    const uint count = least(each, made - first), rows = GATED ? 2u * count : count, units_of = k / PER;
    if (!EARLY) BEGIN;
    UNROLL for (uint d = 0u; d < DEPTH; d++) {
        ASK(team + d * TEAMS, d)
    }
    vec4 own[MANY * QUADS];  // of x
    vec4 scales[MANY * QUADS];
    UNROLL for (uint i = 0u; i < MANY * QUADS; i++) {
        const uint unit = lane + i / QUADS * LANES;
        scales[i] = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
        if (NORMED && unit < units_of) scales[i] = LOAD4(f32, gamma, unit * QUADS + i % QUADS);
    }
    if (EARLY) BEGIN;
    float inverse = 1.0f, down = 1.0f;  // x is multiplied by the second where its squares overflow
    for (uint turn = 0u; turn < (NORMED ? 2u : 1u); turn++) {
        float squares = 0.0f;
        UNROLL for (uint i = 0u; i < MANY * QUADS; i++) {
            const uint unit = lane + i / QUADS * LANES;
            vec4 v = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
            if (unit < units_of) v = LOAD4(TA, x, unit * QUADS + i % QUADS);
            if (NORMED) {
                v = VEC4(v.x * down, v.y * down, v.z * down, v.w * down);
                squares = times_four(squares, v, v);
                v = VEC4(v.x * scales[i].x, v.y * scales[i].y, v.z * scales[i].z, v.w * scales[i].w);
            }
            own[i] = v;
        }
        if (!NORMED) break;
        const float total = team_sum(squares);  // the same in every thread of the workgroup
        inverse = p_rsqrt_f(total * p_recip_f(float(k)) + eps * down * down);
        if (total < INFINITE) break;
        down = 7.8886090522101181e-31f;  // 2^-100
    }
    uint slot = 0u;
    for (uint row = team; row < rows; row += TEAMS) {
        LOADS_WAIT(DEPTH - 1u)
        float low = 0.0f, high = 0.0f;
        UNROLL for (uint j = 0u; j < MANY; j++) {
            const uvec4 w = units[(slot * MANY + j) * 256u + THREAD];
            low = times_four(low, own[j * QUADS], LOWER(w));
            if (QUADS > 1u) high = times_four(high, own[j * QUADS + QUADS - 1u], UPPER(w));
        }
        const float sum = warp_sum(low + high);
        if (lane % 32u == 0u) parts[lane / 32u * MOST + row] = sum;
        ASK(row + DEPTH * TEAMS, slot)
        slot = slot + 1u < DEPTH ? slot + 1u : 0u;
    }
    BARRIER;
    if (THREAD < count) {
        float v = row_made(GATED ? 2u * THREAD : THREAD) * inverse;
        if (HAS_BIAS) v += bias_at(bias, first + THREAD);
        v = activated(v);
        if (GATED) v *= row_made(2u * THREAD + 1u) * inverse;
        if (WIDE) {
            STORE(f32, AS(f32, c), first + THREAD, v);
        } else {
            STORE(TA, c, first + THREAD, v);
        }
    }
}
