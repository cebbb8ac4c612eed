// Rows of n elements, one for each LANES neighbouring threads of a group of 256, held in registers when QUADS_HELD > 0.
// Each thread holds QUADS_HELD quads. VECTORS = 1: a quad is four neighbours in memory (n % 4 == 0, rows aligned to
// four elements); VECTORS = 2: two quads are eight neighbours (n % 8 == 0, QUADS_HELD even, rows aligned to eight
// elements; see rows8.h). VECTORS = 0: its elements lie LANES apart, so that neighbouring threads still read
// neighbours.
#define QUADS (QUADS_HELD > 0u ? QUADS_HELD : 1u)
#define IN_REGISTERS (QUADS_HELD > 0u)
#define ALIGNED (VECTORS > 0u)
#define EIGHTS (VECTORS == 2u)
#define LANE (THREAD % LANES)
#define ROW (GROUP * (256u / LANES) + THREAD / LANES)

RLX_FN float sum_of(const float a, const float b) { return a + b; }
// A NaN is kept or dropped; it comes back through the sum.
#ifdef RLX_GLSL
RLX_FN float max_of(const float a, const float b) { return max(a, b); }
#else
RLX_FN float max_of(const float a, const float b) { return fmaxf(a, b); }
#endif
#if defined(RLX_GLSL) && !defined(RLX_SUBGROUPS)
// As LANES_OP, with two barriers and shared memory read four at a time where a row has many threads.
shared vec4 rows_lane[64];
shared vec4 rows_part[64];
#define ROWS_OP(NAME, COMBINE)                                                                        \
    LANES_OP(NAME##_few, LANES, COMBINE)                                                              \
    float NAME##_four(const vec4 v) { return COMBINE(COMBINE(v.x, v.y), COMBINE(v.z, v.w)); }         \
    float NAME(const float own) {                                                                     \
        if (LANES < 64u) return NAME##_few(own);                                                      \
        const uint first = THREAD / LANES * LANES / 4u;                                               \
        rows_lane[THREAD / 4u][THREAD % 4u] = own;                                                    \
        barrier();                                                                                    \
        if (LANE < 16u) {                                                                             \
            float v = NAME##_four(rows_lane[first + LANE]);                                           \
            for (uint s = 16u; s < LANES / 4u; s += 16u) {                                            \
                v = COMBINE(v, NAME##_four(rows_lane[first + LANE + s]));                             \
            }                                                                                         \
            rows_part[THREAD / 4u][THREAD % 4u] = v;                                                  \
        }                                                                                             \
        barrier();                                                                                    \
        return COMBINE(COMBINE(NAME##_four(rows_part[first]), NAME##_four(rows_part[first + 1u])),    \
                       COMBINE(NAME##_four(rows_part[first + 2u]), NAME##_four(rows_part[first + 3u]))); \
    }
#else
#define ROWS_OP(NAME, COMBINE) LANES_OP(NAME, LANES, COMBINE)
#endif
ROWS_OP(row_sum, sum_of)
ROWS_OP(row_max, max_of)

// The place in the row of element c of quad j.
RLX_FN uint place(const uint j, const uint c) {
    if (EIGHTS) return (j / 2u * LANES + LANE) * 8u + j % 2u * 4u + c;
    return ALIGNED ? (j * LANES + LANE) * 4u + c : (j * 4u + c) * LANES + LANE;
}

// Quad j of a row of n elements stored as S; `beyond` past its end.
#define RLX_GET(NAME, S)                                                              \
    RLX_FN vec4 NAME(PTR(S) p, const uint j, const uint n, const float beyond) {      \
        vec4 v = VEC4(beyond, beyond, beyond, beyond);                                \
        if (ALIGNED) {                                                                \
            if (place(j, 0u) < n) v = LOAD4(S, p, place(j, 0u) / 4u);                 \
        } else {                                                                      \
            if (place(j, 0u) < n) v.x = LOAD(S, p, place(j, 0u));                     \
            if (place(j, 1u) < n) v.y = LOAD(S, p, place(j, 1u));                     \
            if (place(j, 2u) < n) v.z = LOAD(S, p, place(j, 2u));                     \
            if (place(j, 3u) < n) v.w = LOAD(S, p, place(j, 3u));                     \
        }                                                                             \
        return v;                                                                     \
    }
RLX_GET(get, T)

RLX_FN void put(PTR(T) p, const uint j, const uint n, const vec4 v) {
    if (ALIGNED) {
        if (place(j, 0u) < n) STORE4(T, p, place(j, 0u) / 4u, v);
        return;
    }
    if (place(j, 0u) < n) STORE(T, p, place(j, 0u), v.x);
    if (place(j, 1u) < n) STORE(T, p, place(j, 1u), v.y);
    if (place(j, 2u) < n) STORE(T, p, place(j, 2u), v.z);
    if (place(j, 3u) < n) STORE(T, p, place(j, 3u), v.w);
}

RLX_FN float sum4(const vec4 v) { return (v.x + v.y) + (v.z + v.w); }
