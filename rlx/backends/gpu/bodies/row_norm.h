// y = (x - mean) / sqrt(var + eps) * gamma + beta over rows; C3 = 1: mean taken as 0 (RMS norm); C4 = 1: with beta.
// W is the storage of gamma and beta. The variance is taken around the mean, in a second sweep over the registers (over memory for longer rows).
#include "rows8.h"
RLX_GET(get_weight, W)
RLX_GET2(get_weights, get_weight, W)
#define CENTRED (UINT(C3) == 0u)
#define HAS_BETA (UINT(C4) == 1u)

// Sum of (v - mean)^2 over the elements of quad j that lie in the row.
RLX_FN float squares(const vec4 v, const uint j, const uint n, const float mean) {
    const float a = v.x - mean, b = v.y - mean, c = v.z - mean, d = v.w - mean;
    if (ALIGNED) return place(j, 0u) < n ? (a * a + b * b) + (c * c + d * d) : 0.0f;
    float s = 0.0f;
    if (place(j, 0u) < n) s += a * a;
    if (place(j, 1u) < n) s += b * b;
    if (place(j, 2u) < n) s += c * c;
    if (place(j, 3u) < n) s += d * d;
    return s;
}

RLX_FN vec4 normed(const vec4 v, const vec4 g, const vec4 b, const float mean, const float inverse) {
    if (!HAS_BETA) {
        return VEC4((v.x - mean) * inverse * g.x, (v.y - mean) * inverse * g.y, (v.z - mean) * inverse * g.z,
                    (v.w - mean) * inverse * g.w);
    }
    return VEC4((v.x - mean) * inverse * g.x + b.x, (v.y - mean) * inverse * g.y + b.y,
                (v.z - mean) * inverse * g.z + b.z, (v.w - mean) * inverse * g.w + b.w);
}

RLX_FN void row_norm_body(PTR(T) x, PTR(W) gamma, PTR(W) beta, PTR(T) y, const uint rows, const uint n, const float eps) {
    const uint row = ROW;
    const uint len = row < rows ? n : 0u;
    const uint at = row < rows ? row : 0u;
    PTR(T) p = SKIP(T, x, at, n);
    PTR(T) q = SKIP(T, y, at, n);
    const uint quads = IN_REGISTERS ? QUADS : (n + 4u * LANES - 1u) / (4u * LANES);
    const float count = float(n);
    float mean = 0.0f, total = 0.0f;
    const vec4 zero = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    if (IN_REGISTERS) {
        vec4 r[QUADS];
        UNROLL for (uint j = 0u; j < QUADS; j += STEP) get2(p, j, len, 0.0f, r[j], r[j + STEP - 1u]);
        if (CENTRED) {
            UNROLL for (uint j = 0u; j < QUADS; j++) total += sum4(r[j]);
            mean = p_div_f(row_sum(total), count);
        }
        total = 0.0f;
        UNROLL for (uint j = 0u; j < QUADS; j++) total += squares(r[j], j, len, mean);
        const float inverse = p_rsqrt_f(p_div_f(row_sum(total), count) + eps);
        UNROLL for (uint j = 0u; j < QUADS; j += STEP) {
            vec4 g0, g1, b0 = zero, b1 = zero;
            get_weights(gamma, j, len, 0.0f, g0, g1);
            if (HAS_BETA) get_weights(beta, j, len, 0.0f, b0, b1);
            put2(q, j, len, normed(r[j], g0, b0, mean, inverse), normed(r[j + STEP - 1u], g1, b1, mean, inverse));
        }
    } else {
        if (CENTRED) {
            for (uint j = 0u; j < quads; j++) total += sum4(get(p, j, len, 0.0f));
            mean = p_div_f(row_sum(total), count);
        }
        total = 0.0f;
        for (uint j = 0u; j < quads; j++) total += squares(get(p, j, len, 0.0f), j, len, mean);
        const float inverse = p_rsqrt_f(p_div_f(row_sum(total), count) + eps);
        for (uint j = 0u; j < quads; j++) {
            vec4 b = zero;
            if (HAS_BETA) b = get_weight(beta, j, len, 0.0f);
            put(q, j, len, normed(get(p, j, len, 0.0f), get_weight(gamma, j, len, 0.0f), b, mean, inverse));
        }
    }
}
