// s = x + residual, y = the norm of s over rows. RMS: the mean taken as 0; HAS_BETA: with beta; KEEP_SUM: s is written
// too. The norm is of the sum in f32; a row in registers is read once, a longer one three times and a sixteenth of it
// once more.
#define WEIGHTS 2u
#include "channel_rows.h"
#define CENTRED (!RMS)
// Few weights wait in registers while the threads of a row meet, since loads after that would be waited for again.
#define EARLY (QUADS_HELD > 0u && QUADS_HELD <= 4u)
#define HELD(v, j) \
    vec4 v;        \
    if (IN_REGISTERS) v = r[j]; else v = both(px, pr, j, len)

RLX_FN vec4 both(PTR(T) x, PTR(T) residual, const uint j, const uint n) {
    const vec4 a = get(x, j, n, 0.0f), b = get(residual, j, n, 0.0f);
    return VEC4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

RLX_FN void add_norm_body(PTR(T) x, PTR(T) residual, PTR(W) gamma, PTR(W) beta, PTR(T) s, PTR(T) y, const uint rows,
                          const uint n, const float eps) {
    const uint row = ROW;
    const uint len = row < rows ? n : 0u;
    const uint at = row < rows ? row : 0u;
    PTR(T) px = SKIP(T, x, at, n);
    PTR(T) pr = SKIP(T, residual, at, n);
    PTR(T) ps = SKIP(T, s, at, n);
    PTR(T) q = SKIP(T, y, at, n);
    const uint quads = IN_REGISTERS ? QUADS : (n + 4u * LANES - 1u) / (4u * LANES);
    const float share = p_recip_f(float(n));
    vec4 r[QUADS];
    if (IN_REGISTERS) {
        UNROLL for (uint j = 0u; j < QUADS; j++) r[j] = both(px, pr, j, len);
    }
    vec4 g[QUADS];
    if (EARLY) {
        UNROLL for (uint j = 0u; j < QUADS; j++) g[j] = weights(gamma, 0u, 1u, j, len);
    }
    float mean = 0.0f, rest = 0.0f, total = 0.0f;
    if (CENTRED) {
        const float origin = LOAD(T, px, 0u) + LOAD(T, pr, 0u);
        ROW_MEAN(HELD, origin, quads, n, len, share, mean, rest)
    }
    UNROLL for (uint j = 0u; j < quads; j++) {
        HELD(v, j);
        total += squares(centred(v, mean, rest), j, len);
    }
    const float inverse = p_rsqrt_f(row_sum(total) * share + eps);
    UNROLL for (uint j = 0u; j < quads; j++) {
        HELD(v, j);
        if (KEEP_SUM) put(ps, j, len, v);
        vec4 of;
        if (EARLY) of = g[j]; else of = weights(gamma, 0u, 1u, j, len);
        vec4 w = product(standard(v, mean, rest, inverse), of);
        if (HAS_BETA) {
            const vec4 b = weights(beta, 0u, 1u, j, len);
            w = VEC4(w.x + b.x, w.y + b.y, w.z + b.z, w.w + b.w);
        }
        put(q, j, len, w);
    }
}
