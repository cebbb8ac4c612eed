// dx of a norm over rows, given d, the gradient of its result; row r is group r % groups, `per` channels of `inner`.
// stats: the mean of each row, as the two floats of row_mean.h, and 1 / sqrt(var + eps). RMS: the mean taken as 0.
// WEIGHTS: see channel_rows.h.
// dx = inverse * (dy - mean(dy) - y * mean(dy * y)), with y the normalized row and dy = d * gamma.
#include "channel_rows.h"
#define CENTRED (!RMS)
#define HELD_X(v, j) \
    vec4 v;          \
    if (IN_REGISTERS) v = rx[j]; else v = get(px, j, len, 0.0f)
#define HELD_D(v, j) \
    vec4 v;          \
    if (IN_REGISTERS) v = rd[j]; else v = product(get(pd, j, len, 0.0f), weights(gamma, first, inner, j, len))

RLX_FN void norm_grad_body(PTR(T) d, PTR(T) x, PTR(W) gamma, PTR(T) dx, PTR(f32) stats, const uint rows, const uint n,
                           const uint groups, const uint per, const uint inner, const float eps) {
    const uint row = ROW;
    const uint len = row < rows ? n : 0u;
    const uint at = row < rows ? row : 0u;
    PTR(T) pd = SKIP(T, d, at, n);
    PTR(T) px = SKIP(T, x, at, n);
    PTR(T) q = SKIP(T, dx, at, n);
    const uint first = at % groups * per;
    const uint quads = IN_REGISTERS ? QUADS : (n + 4u * LANES - 1u) / (4u * LANES);
    const float share = p_recip_f(float(n));
    vec4 rx[QUADS];
    vec4 rd[QUADS];
    if (IN_REGISTERS) {
        UNROLL for (uint j = 0u; j < QUADS; j++) {
            rx[j] = get(px, j, len, 0.0f);
            rd[j] = product(get(pd, j, len, 0.0f), weights(gamma, first, inner, j, len));
        }
    }
    float mean = 0.0f, rest = 0.0f, total = 0.0f;
    if (CENTRED) {
        const float origin = LOAD(T, px, 0u);
        ROW_MEAN(HELD_X, origin, quads, n, len, share, mean, rest)
    }
    UNROLL for (uint j = 0u; j < quads; j++) {
        HELD_X(v, j);
        total += squares(centred(v, mean, rest), j, len);
    }
    const float inverse = p_rsqrt_f(row_sum(total) * share + eps);
    float plain = 0.0f, along = 0.0f;
    UNROLL for (uint j = 0u; j < quads; j++) {
        HELD_X(v, j);
        HELD_D(dy, j);
        plain += sum4(dy);
        along += sum4(product(dy, standard(v, mean, rest, inverse)));
    }
    along = row_sum(along) * share;
    plain = CENTRED ? row_sum(plain) * share : 0.0f;
    UNROLL for (uint j = 0u; j < quads; j++) {
        HELD_X(v, j);
        HELD_D(dy, j);
        const vec4 y = standard(v, mean, rest, inverse);
        put(q, j, len, VEC4(inverse * (dy.x - plain - y.x * along), inverse * (dy.y - plain - y.y * along),
                            inverse * (dy.z - plain - y.z * along), inverse * (dy.w - plain - y.w * along)));
    }
    if (row < rows && LANE == 0u) {
        STORE(f32, stats, 3u * row, mean);
        STORE(f32, stats, 3u * row + 1u, rest);
        STORE(f32, stats, 3u * row + 2u, inverse);
    }
}
