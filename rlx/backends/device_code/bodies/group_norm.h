// y = (x - mean) / sqrt(var + eps) * gamma + beta over rows: row r is group r % groups, `per` channels of `inner`.
// A row in registers is read once; a longer one three times and a sixteenth of it once more. WEIGHTS: see channel_rows.h.
#include "channel_rows.h"
#define HELD(v, j) \
    vec4 v;        \
    if (IN_REGISTERS) v = r[j]; else v = get(p, j, len, 0.0f)

RLX_FN void group_norm_body(PTR(T) x, PTR(W) gamma, PTR(W) beta, PTR(T) y, const uint rows, const uint n,
                            const uint groups, const uint per, const uint inner, const float eps) {
    const uint row = ROW;
    const uint len = row < rows ? n : 0u;
    const uint at = row < rows ? row : 0u;
    PTR(T) p = SKIP(T, x, at, n);
    PTR(T) q = SKIP(T, y, at, n);
    const uint first = at % groups * per;
    const uint quads = IN_REGISTERS ? QUADS : (n + 4u * LANES - 1u) / (4u * LANES);
    const float share = p_recip_f(float(n));
    vec4 r[QUADS];
    if (IN_REGISTERS) {
        UNROLL for (uint j = 0u; j < QUADS; j++) r[j] = get(p, j, len, 0.0f);
    }
    const float origin = LOAD(T, p, 0u);
    float mean = 0.0f, rest = 0.0f, total = 0.0f;
    ROW_MEAN(HELD, origin, quads, n, len, share, mean, rest)
    UNROLL for (uint j = 0u; j < quads; j++) {
        HELD(v, j);
        total += squares(centred(v, mean, rest), j, len);
    }
    const float inverse = p_rsqrt_f(row_sum(total) * share + eps);
    UNROLL for (uint j = 0u; j < quads; j++) {
        HELD(v, j);
        const vec4 s = product(standard(v, mean, rest, inverse), weights(gamma, first, inner, j, len));
        const vec4 b = weights(beta, first, inner, j, len);
        put(q, j, len, VEC4(s.x + b.x, s.y + b.y, s.z + b.z, s.w + b.w));
    }
}
