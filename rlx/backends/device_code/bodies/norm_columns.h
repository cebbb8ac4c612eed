// Parts of dgamma (sum of d * y, y the normalized x) and of dbeta (sum of d), x being (outer, n, inner): each sum runs
// over a chunk of n. Element e lies in row e / length of stats (see norm_grad). With o = b * channels + c the part of
// (o, s, i) goes to [b, s, c, i], so that what is left is one sum over the leading axes.
// ACROSS threads lie along inner, ALONG along n, the rest of the 256 along (o, s); WITH_BETA: with dbeta. The tree is
// fixed. JOINED, where x is one matrix (outer and channels are 1): the last workgroup of a block of columns adds up the
// parts, in their order, into whole_gamma and whole_beta.
#include "arrivals.h"

SHARED float part_gamma[256];
SHARED float part_beta[256];
SHARED bool last_group;

// Element e normalized, by the statistics of its row.
RLX_FN float normal(PTR(T) x, PTR(f32) stats, const uint e, const uint length) {
    const uint row = 3u * (e / length);
    return ((LOAD(T, x, e) - LOAD(f32, stats, row)) - LOAD(f32, stats, row + 1u)) * LOAD(f32, stats, row + 2u);
}

// The sums of the ALONG threads of each column, in part_gamma and part_beta.
RLX_FN void join_columns(const float g, const float b, const uint along) {
    part_gamma[THREAD] = g;
    part_beta[THREAD] = b;
    for (uint half_way = ALONG / 2u; half_way > 0u; half_way /= 2u) {
        BARRIER;
        if (along < half_way) {
            part_gamma[THREAD] += part_gamma[THREAD + half_way * ACROSS];
            part_beta[THREAD] += part_beta[THREAD + half_way * ACROSS];
        }
    }
}

RLX_FN void norm_columns_body(PTR(T) d, PTR(T) x, PTR(f32) stats, PTR(f32) dgamma, PTR(f32) dbeta, PTR(W) whole_gamma,
                              PTR(W) whole_beta, PTR(u32) counters, const uint outer, const uint n, const uint inner,
                              const uint chunk, const uint splits, const uint channels, const uint length) {
    const uint across = THREAD % ACROSS, along = THREAD / ACROSS % ALONG;
    const uint items = 256u / (ACROSS * ALONG);
    const uint blocks = (inner + ACROSS - 1u) / ACROSS;
    const uint many = (outer * splits + items - 1u) / items;  // workgroups of a block of columns
    if (GROUP >= blocks * many) return;
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
    join_columns(g0 + g1, b0 + b1, along);
    if (live && along == 0u) {
        const uint to = ((o / channels * splits + s) * channels + o % channels) * inner + i;
        SHOW(dgamma, to, part_gamma[THREAD]);
        if (WITH_BETA) SHOW(dbeta, to, part_beta[THREAD]);
    }
    if (!JOINED) return;
    ARRIVE(counters, GROUP % blocks, many, last_group);
    if (!last_group) return;
    const bool mine = THREAD < ACROSS * ALONG && i < inner;
    float g = 0.0f, b = 0.0f;
    if (mine) {
        for (uint r = along; r < splits; r += ALONG) {
            g += SEEN(dgamma, r * inner + i);
            if (WITH_BETA) b += SEEN(dbeta, r * inner + i);
        }
    }
    join_columns(g, b, along);
    if (mine && along == 0u) {
        STORE(W, whole_gamma, i, part_gamma[THREAD]);
        if (WITH_BETA) STORE(W, whole_beta, i, part_beta[THREAD]);
    }
}
