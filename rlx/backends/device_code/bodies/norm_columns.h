// Parts of dgamma (sum of d * y, y the normalized x) and of dbeta (sum of d), x being (outer, n, inner): each sum runs
// over a chunk of n. Element e lies in row e / length of stats (see norm_grad). With o = b * channels + c the part of
// (o, s, i) goes to [b, s, c, i], so that what is left is one sum over the leading axes.
// ACROSS threads lie along inner, ALONG along n, the rest of the 256 along (o, s); WITH_BETA: with dbeta. The tree is
// fixed.

SHARED float part_gamma[256];
SHARED float part_beta[256];

// Element e normalized, by the statistics of its row.
RLX_FN float normal(PTR(T) x, PTR(f32) stats, const uint e, const uint length) {
    const uint row = 3u * (e / length);
    return ((LOAD(T, x, e) - LOAD(f32, stats, row)) - LOAD(f32, stats, row + 1u)) * LOAD(f32, stats, row + 2u);
}

RLX_FN void norm_columns_body(PTR(T) d, PTR(T) x, PTR(f32) stats, PTR(f32) dgamma, PTR(f32) dbeta, const uint outer,
                              const uint n, const uint inner, const uint chunk, const uint splits, const uint channels,
                              const uint length) {
    const uint across = THREAD % ACROSS, along = THREAD / ACROSS % ALONG;
    const uint items = 256u / (ACROSS * ALONG);
    const uint blocks = (inner + ACROSS - 1u) / ACROSS;
    const uint item = GROUP / blocks * items + THREAD / (ACROSS * ALONG);  // over (o, s)
    const uint i = GROUP % blocks * ACROSS + across;
    const bool live = item < outer * splits && i < inner;
    const uint o = item / splits, s = item % splits;
    float g0 = 0.0f, g1 = 0.0f, b0 = 0.0f, b1 = 0.0f;
    if (live) {
        const uint base = (o * n + s * chunk) * inner + i;
        const uint rest = n - s * chunk;
        const uint len = rest < chunk ? rest : chunk;
        uint j = along;
        for (; j + ALONG < len; j += 2u * ALONG) {
            const uint e = base + j * inner, f = e + ALONG * inner;
            const float de = LOAD(T, d, e), df = LOAD(T, d, f);
            g0 += de * normal(x, stats, e, length);
            g1 += df * normal(x, stats, f, length);
            b0 += de;
            b1 += df;
        }
        for (; j < len; j += ALONG) {
            const uint e = base + j * inner;
            const float de = LOAD(T, d, e);
            g0 += de * normal(x, stats, e, length);
            b0 += de;
        }
    }
    part_gamma[THREAD] = g0 + g1;
    part_beta[THREAD] = b0 + b1;
    for (uint half_way = ALONG / 2u; half_way > 0u; half_way /= 2u) {
        BARRIER;
        if (along < half_way) {
            part_gamma[THREAD] += part_gamma[THREAD + half_way * ACROSS];
            part_beta[THREAD] += part_beta[THREAD + half_way * ACROSS];
        }
    }
    if (live && along == 0u) {
        const uint to = ((o / channels * splits + s) * channels + o % channels) * inner + i;
        STORE(f32, dgamma, to, part_gamma[THREAD]);
        if (WITH_BETA) STORE(f32, dbeta, to, part_beta[THREAD]);
    }
}
