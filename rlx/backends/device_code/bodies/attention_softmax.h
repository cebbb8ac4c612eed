// Turns scores in registers into weights, for both CUDA kernels that keep them there. A lane holds two rows of a
// matrix, eight apart. Of the KEYS scores and 16 WIDE results of each row it holds two columns of every eight, those of
// the first row before those of the second (the layout of the sums of mma.m16n8k16 and of wgmma).
#define SCORES (KEYS / 2u)
#define OUTPUTS (WIDE * 8u)
#define ELEMENT(n, half) ((n) / 2u * 4u + (half) * 2u + (n) % 2u)
#define COLUMN(n) ((n) / 2u * 8u + LANE % 4u * 2u + (n) % 2u)
// The state of each of DEEP matrices before the first key.
#define START_SUMS                                                             \
    UNROLL for (uint i = 0u; i < DEEP; i++) {                                  \
        UNROLL for (uint n = 0u; n < OUTPUTS; n++) out_[i][n] = 0.0f;          \
        UNROLL for (uint half = 0u; half < 2u; half++) {                       \
            top[i][half] = -INFINITE;                                          \
            total[i][half] = 0.0f;                                             \
        }                                                                      \
    }

// What masking a score of any row and key needs. `bent`: a score is not just the product times a positive factor.
struct Sight {
    PTR(M) mask;
    uint sq, mq, mk;
    int len, shift, reach;
    float scale, cap, inverse_cap;
    bool bent;
};
// The keys, of KEYS, that a bool mask keeps that is the same for every query: a bit for each.
struct Kept {
    uint word[KEYS / 32u];
};
RLX_FN Kept kept_keys(const Sight& sight, const uint k0) {
    Kept kept;
    UNROLL for (uint w = 0u; w < KEYS / 32u; w++) {
        const uint j = k0 + w * 32u + LANE;
        kept.word[w] = 0u;
        if (MASK == 1u && sight.mq == 0u)
            kept.word[w] = BALLOT(int(j) < sight.len && KEEPS(M, LOAD(M, sight.mask, j * sight.mk)));
    }
    return kept;
}
// Masks the scores of rows `row` and row + 8 with the keys from k0 on; bent scores are scaled to powers of two here.
RLX_FN void mask_scores(float* s, const Sight& sight, const Kept& kept, const uint row, const uint k0) {
    const float cap = sight.cap, inverse_cap = sight.inverse_cap;
    UNROLL for (uint half = 0u; half < 2u; half++) {
        const uint i = row + half * 8u;
        const int begin = first_seen(int(i), sight.shift, sight.reach) - int(k0 + LANE % 4u * 2u);
        const int end = after_seen(int(i) + 1, sight.shift, sight.reach, sight.len) - int(k0 + LANE % 4u * 2u);
        UNROLL for (uint n = 0u; n < SCORES / 2u; n++) {
            float x = s[ELEMENT(n, half)];
            if (sight.bent) {
                x = x * sight.scale;
                if (CAPPED) x = BEND(x);
            }
            const uint ahead = n / 2u * 8u + n % 2u;
            bool seen = int(ahead) < end && !(WINDOWED && int(ahead) < begin);
            if (MASK == 1u && sight.mq == 0u)
                seen = seen && (kept.word[ahead / 32u] >> LANE % 4u * 2u >> ahead % 32u & 1u) != 0u;
            else if (MASK != 0u)
                x = masked(sight.mask, x, i, k0 + COLUMN(n), sight.sq, sight.len, sight.reach, sight.mq, sight.mk);
            x = seen ? x : -INFINITE;
            s[ELEMENT(n, half)] = sight.bent ? x * LOG2_E : x;
        }
    }
}

// Turns scores into exp2(s * factor - greatest * factor), whose sum is `total`; `out` is scaled where the greatest
// score changes. Both rows are computed step by step together, so that one hides the latency of the other.
RLX_FN void weigh(float* s, float* out, float* top, float* total, const float factor) {
    float best[2], base[2], less[2], sum[2];
    UNROLL for (uint half = 0u; half < 2u; half++) best[half] = top[half];
    UNROLL for (uint n = 0u; n < SCORES; n++) best[n / 2u % 2u] = GREATER(s[n], best[n / 2u % 2u]);
    UNROLL for (uint half = 0u; half < 2u; half++) best[half] = GREATER(SHUFFLE(best[half], 1u), best[half]);
    UNROLL for (uint half = 0u; half < 2u; half++) {
        best[half] = GREATER(SHUFFLE(best[half], 2u), best[half]);
        if ((best[half] - top[half]) * factor <= SLACK) best[half] = top[half];
        base[half] = base_of(best[half]) * factor;
    }
    if (BALLOT(best[0] != top[0] || best[1] != top[1]) != 0u) {
        UNROLL for (uint half = 0u; half < 2u; half++) {
            less[half] = top[half] == -INFINITE ? 0.0f : EXP2(top[half] * factor - base[half]);
            top[half] = best[half];
            total[half] *= less[half];
        }
        UNROLL for (uint n = 0u; n < OUTPUTS; n++) out[n] *= less[n / 2u % 2u];
    }
    UNROLL for (uint half = 0u; half < 2u; half++) sum[half] = 0.0f;
    UNROLL for (uint n = 0u; n < SCORES; n++) {
        s[n] = EXP2(FMA(s[n], factor, -base[n / 2u % 2u]));
        sum[n / 2u % 2u] += s[n];
    }
    UNROLL for (uint half = 0u; half < 2u; half++) total[half] += sum[half];
}

// Writes rows `row` and row + 8 of a head's results, unless they lie beyond its end.
RLX_FN void put_rows(PTR(O) head, const float* out, const float* total, const uint row, const uint sq, const uint y_row,
                     const uint d) {
    UNROLL for (uint half = 0u; half < 2u; half++) {
        float whole = total[half];
        whole += SHUFFLE(whole, 1u);
        whole += SHUFFLE(whole, 2u);
        const float share = inverse(whole);
        if (row + half * 8u < sq) {
            PTR(O) py = SKIP(O, head, row + half * 8u, y_row);
            UNROLL for (uint n = 0u; n < OUTPUTS / 2u; n += 2u) {
                const uint column = COLUMN(n);
                const float a = out[ELEMENT(n, half)] * share, b = out[ELEMENT(n + 1u, half)] * share;
                if (ALIGNED) {  // and d a multiple of eight
                    if (n / 2u * 8u < d) STORE_TWO(py, column, a, b);
                } else {
                    if (column < d) STORE(O, py, column, a);
                    if (column + 1u < d) STORE(O, py, column + 1u, b);
                }
            }
        }
    }
}

// Stores the sums of rows `first` and first + 8 of each of DEEP matrices, which lie `step` rows apart.
#define PUT_ROW_SUMS(first, step)                                                                                 \
    UNROLL for (uint i = 0u; i < DEEP; i++) {                                                                     \
        UNROLL for (uint half = 0u; half < 2u; half++) {                                                          \
            float whole = total[i][half];                                                                         \
            whole += SHUFFLE(whole, 1u);                                                                          \
            whole += SHUFFLE(whole, 2u);                                                                          \
            const uint row = (first) + i * (step) + half * 8u;                                                    \
            if (LANE % 4u == 0u) PUT_ROW_SUM(row, base_of(top[i][half]) * factor, p_log2_f(whole));               \
        }                                                                                                         \
    }
