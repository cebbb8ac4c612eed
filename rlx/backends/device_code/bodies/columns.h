// Columns of (outer, n, inner): ACROSS threads lie along inner, 256 / ACROSS along n, and sum over n in a fixed tree.
#define ALONG (256u / ACROSS)

SHARED float part[256];

// The slab of a thread in x (outer, n, inner).
#define SLAB(T, x) SKIP(T, x, o < outer ? o : 0u, n * inner)

// NAME(v): v joined over the threads of a column, the same value in each; every thread of the group calls it.
#define COLUMN_OP(NAME, JOIN)                                                   \
    RLX_FN float NAME(const float v) {                                          \
        BARRIER;                                                                \
        part[THREAD] = v;                                                       \
        for (uint s = 128u; s >= ACROSS; s /= 2u) {                             \
            BARRIER;                                                            \
            if (THREAD < s) JOIN(part[THREAD], part[THREAD + s]);               \
        }                                                                       \
        BARRIER;                                                                \
        return part[THREAD % ACROSS];                                           \
    }
#define JOIN_SUM(a, b) a += b
COLUMN_OP(column_sum, JOIN_SUM)
// A NaN is dropped; it comes back through the sum.
#define COLUMN_MAX                                                              \
    RLX_FN float max_of(const float a, const float b) { return a > b ? a : b; } \
    COLUMN_OP(column_max, JOIN_MAX)
#define JOIN_MAX(a, b) a = max_of(b, a)
