// y[o, index[j], t] joined with every updates[o, j, t], in the order of j. KIND: 0 sum, 1 product, 2 minimum, 3
// maximum. `pairs` holds (index, j) sorted: one list of m for all (ONE_LIST), or one for each (o, t). An index of n or
// more is none. The thread of the first j of an index takes them all, so that nothing depends on which runs first. Sums
// of floats keep what each addition rounds away (Neumaier, 1974).
#define NAN_f32(x) IS_NAN(x)
#define NAN_f16(x) IS_NAN(x)
#define NAN_bf16(x) IS_NAN(x)
#define NAN_f64(x) IS_NAN64(x)
#define NAN_i32(x) false
#define NAN_i64(x) false
#define IS_FLOAT_f32 true
#define IS_FLOAT_f16 true
#define IS_FLOAT_bf16 true
#define IS_FLOAT_f64 true
#define IS_FLOAT_i32 false
#define IS_FLOAT_i64 false
#define ACC VAL(T)

RLX_FN ACC met(const ACC a, const ACC b) {
    if (KIND == 1u) return a * b;
    if (RLX_JOIN(NAN_, T)(a)) return a;
    if (RLX_JOIN(NAN_, T)(b)) return b;
    if (KIND == 2u) return b < a ? b : a;
    return b > a ? b : a;
}

RLX_FN void scatter_reduce_body(PTR(T) updates, PTR(b8) pairs, PTR(T) y, const uint total, const uint m, const uint n,
                                const uint trail) {
    const uint id = GROUP * 256u + THREAD;
    if (id >= total) return;
    const uint t = id % trail, line = id / trail;
    const uint place = line % m, o = line / m;
    PTR(b8) list = SKIP(b8, pairs, ONE_LIST ? 0u : o * trail + t, m);
    uvec2 mine = list AT(place);
    const uint row = mine.x;
    if (row >= n) return;
    if (place > 0u) {
        const uvec2 last = list AT(place - 1u);
        if (last.x == row) return;
    }
    PTR(T) q = SKIP(T, y, o * n + row, trail);
    PTR(T) all = SKIP(T, updates, o * m, trail);
    ACC sum = ACC(LOAD(T, q, t));
    ACC lost = ACC(0);
    for (uint j = place; j < m; j++) {
        mine = list AT(j);
        if (mine.x != row) break;
        const ACC v = ACC(LOAD(T, all, mine.y * trail + t));
        if (KIND == 0u) {
            const ACC next = sum + v;
            if (RLX_JOIN(IS_FLOAT_, T)) {
                const ACC kept = next - sum;
                lost = lost + ((sum - (next - kept)) + (v - kept));
            }
            sum = next;
        } else {
            sum = met(sum, v);
        }
    }
    // Where a sum has become infinite or NaN, so has what it lost.
    if (RLX_JOIN(IS_FLOAT_, T) && KIND == 0u && lost - lost == ACC(0) && lost != ACC(0)) sum = sum + lost;
    STORE(T, q, t, sum);
}
