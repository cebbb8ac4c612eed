// y = (x - mean) / sqrt(var + eps) * gamma + beta over rows; RMS: the mean taken as 0; HAS_BETA: with beta.
// W is the storage of gamma and beta. A row in registers is read once; a longer one three times and a sixteenth of it
// once more, the mean taking the sweep that the sum took, since it begins near it.
#include "rows8.h"
#include "row_mean.h"
RLX_GET(get_weight, W)
RLX_GET2(get_weights, get_weight, W)
#define CENTRED (!RMS)
#define HELD(v, j) const vec4 v = r[j]
#define READ(v, j) const vec4 v = get(p, j, len, 0.0f)

RLX_FN vec4 normed(const vec4 v, const vec4 g, const vec4 b, const float inverse) {
    const vec4 u = VEC4(v.x * inverse, v.y * inverse, v.z * inverse, v.w * inverse);
    if (!HAS_BETA) return VEC4(u.x * g.x, u.y * g.y, u.z * g.z, u.w * g.w);
    return VEC4(FMA(u.x, g.x, b.x), FMA(u.y, g.y, b.y), FMA(u.z, g.z, b.z), FMA(u.w, g.w, b.w));
}

RLX_FN void row_norm_body(PTR(T) x, PTR(W) gamma, PTR(W) beta, PTR(T) y, const uint rows, const uint n, const float eps) {
    const uint row = ROW;
    const uint len = row < rows ? n : 0u;
    const uint at = row < rows ? row : 0u;
    PTR(T) p = SKIP(T, x, at, n);
    PTR(T) q = SKIP(T, y, at, n);
    const uint quads = IN_REGISTERS ? QUADS : (n + 4u * LANES - 1u) / (4u * LANES);
    const float share = p_recip_f(float(n));  // while the row is on its way
    const float origin = CENTRED ? LOAD(T, p, 0u) : 0.0f;
    float mean = 0.0f, rest = 0.0f, total = 0.0f;
    const vec4 zero = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    if (IN_REGISTERS) {
        vec4 r[QUADS];
        UNROLL for (uint j = 0u; j < QUADS; j += STEP) get2(p, j, len, 0.0f, r[j], r[j + STEP - 1u]);
        if (CENTRED) {
            ROW_MEAN(HELD, origin, QUADS, n, len, share, mean, rest)
            UNROLL for (uint j = 0u; j < QUADS; j++) r[j] = centred(r[j], mean, rest);
        }
        UNROLL for (uint j = 0u; j < QUADS; j++) total += squares(r[j], j, len);
        const float inverse = p_rsqrt_f(row_sum(total) * share + eps);
        UNROLL for (uint j = 0u; j < QUADS; j += STEP) {
            vec4 g0, g1, b0 = zero, b1 = zero;
            get_weights(gamma, j, len, 0.0f, g0, g1);
            if (HAS_BETA) get_weights(beta, j, len, 0.0f, b0, b1);
            put2(q, j, len, normed(r[j], g0, b0, inverse), normed(r[j + STEP - 1u], g1, b1, inverse));
        }
    } else {
        if (CENTRED) {
            ROW_MEAN(READ, origin, quads, n, len, share, mean, rest)
        }
        for (uint j = 0u; j < quads; j++) total += squares(centred(get(p, j, len, 0.0f), mean, rest), j, len);
        const float inverse = p_rsqrt_f(row_sum(total) * share + eps);
        for (uint j = 0u; j < quads; j++) {
            vec4 b = zero;
            if (HAS_BETA) b = get_weight(beta, j, len, 0.0f);
            const vec4 v = centred(get(p, j, len, 0.0f), mean, rest);
            put(q, j, len, normed(v, get_weight(gamma, j, len, 0.0f), b, inverse));
        }
    }
}
