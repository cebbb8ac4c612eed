// How tiles are brought into the panels that wgmma.h reads, for attention_matrix.h's constants; WIDE is 4 or 8.
// The panels from units[base] on = `rows` rows of P, `pitch` elements apart, from row `first` on, zero from row `limit`
// and column d on. A thread has one unit of every 64 / WIDE-th row.
#define FETCH_PANELS(P, base, rows, first, limit, pitch)                                                 \
    {                                                                                                    \
        const uint r0 = THREAD / (2u * WIDE), c = THREAD % (2u * WIDE);                                  \
        const size_t step = (pitch) / 8u * (64u / WIDE);                                                 \
        const uint4* unit = (const uint4*)(P) + size_t((first) + r0) * ((pitch) / 8u) + c;               \
        UNROLL for (uint f = 0u; f < (rows) * WIDE / 64u; f++) {                                         \
            const uint r = f * (64u / WIDE) + r0, to = (base) + c / 8u * (rows) * 8u + PANEL_UNIT(r, c); \
            if (ALIGNED && COPIES) {                                                                     \
                COPY_OR_ZERO(to, unit, f * step, (first) + r < (limit) && c * 8u < d)                    \
            } else {                                                                                     \
                FETCH_UNIT(P, to, ((first) + r) * (pitch) + c * 8u, c, (first) + r < (limit), 0u)        \
            }                                                                                            \
        }                                                                                                \
    }
