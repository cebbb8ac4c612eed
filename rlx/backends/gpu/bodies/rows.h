// Rows of n elements, one for each C0 neighbouring threads of a group of 256, held in registers when C1 > 0.
// Each thread holds C1 quads. C2 = 1: a quad is four neighbours in memory (n % 4 == 0, rows aligned to four elements);
// C2 = 0: its elements lie C0 apart, so that neighbouring threads still read neighbours.
#define LANES UINT(C0)
#define QUADS (UINT(C1) > 0u ? UINT(C1) : 1u)
#define IN_REGISTERS (UINT(C1) > 0u)
#define ALIGNED (UINT(C2) == 1u)
#define LANE (THREAD % LANES)
#define ROW (GROUP * (256u / LANES) + THREAD / LANES)

RLX_FN float sum_of(const float a, const float b) { return a + b; }
RLX_FN float max_of(const float a, const float b) { return a > b ? a : b; }  // a NaN comes back through the sum
LANES_OP(row_sum, LANES, sum_of)
LANES_OP(row_max, LANES, max_of)

// The place in the row of element c of quad j.
RLX_FN uint place(const uint j, const uint c) {
    return ALIGNED ? (j * LANES + LANE) * 4u + c : (j * 4u + c) * LANES + LANE;
}

// Quad j of a row of n elements stored as S; `beyond` past its end.
#define RLX_GET(NAME, S)                                                              \
    RLX_FN vec4 NAME(PTR(S) p, const uint j, const uint n, const float beyond) {      \
        vec4 v = VEC4(beyond, beyond, beyond, beyond);                                \
        if (ALIGNED) {                                                                \
            if (place(j, 0u) < n) v = LOAD4(S, p, j * LANES + LANE);                  \
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
        if (place(j, 0u) < n) STORE4(T, p, j * LANES + LANE, v);
        return;
    }
    if (place(j, 0u) < n) STORE(T, p, place(j, 0u), v.x);
    if (place(j, 1u) < n) STORE(T, p, place(j, 1u), v.y);
    if (place(j, 2u) < n) STORE(T, p, place(j, 2u), v.z);
    if (place(j, 3u) < n) STORE(T, p, place(j, 3u), v.w);
}

RLX_FN float sum4(const vec4 v) { return (v.x + v.y) + (v.z + v.w); }
