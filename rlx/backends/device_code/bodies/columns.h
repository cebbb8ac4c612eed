// Columns of (outer, n, inner): ACROSS threads lie along inner, 256 / ACROSS along n, and sum over n in a fixed tree.
#define ALONG (256u / ACROSS)

SHARED float part[256];

// v summed over the threads of a column, the same value in each; every thread of the group calls it.
RLX_FN float column_sum(const float v) {
    BARRIER;
    part[THREAD] = v;
    for (uint s = 128u; s >= ACROSS; s /= 2u) {
        BARRIER;
        if (THREAD < s) part[THREAD] += part[THREAD + s];
    }
    BARRIER;
    return part[THREAD % ACROSS];
}
