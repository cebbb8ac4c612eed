// NAME(p, r, c, rows, columns, pitch): four neighbours of a matrix stored as S whose rows lie `pitch` elements apart,
// from (r, c) on; zero outside rows x columns. ALIGNED: `columns`, `pitch`, the address and every c asked for are
// multiples of four elements.
#define RLX_QUAD(NAME, S, ALIGNED)                                                                    \
    RLX_FN vec4 NAME(PTR(S) p, const uint r, const uint c, const uint rows, const uint columns,          \
                     const uint pitch) {                                                                 \
        vec4 v = VEC4(0.0f, 0.0f, 0.0f, 0.0f);                                                           \
        if (r >= rows || c >= columns) return v;                                                         \
        const uint i = r * pitch + c;                                                                    \
        if (ALIGNED) return LOAD4(S, p, i / 4u);                                                         \
        v.x = LOAD(S, p, i);                                                                             \
        if (c + 1u < columns) v.y = LOAD(S, p, i + 1u);                                                  \
        if (c + 2u < columns) v.z = LOAD(S, p, i + 2u);                                                  \
        if (c + 3u < columns) v.w = LOAD(S, p, i + 3u);                                                  \
        return v;                                                                                        \
    }
