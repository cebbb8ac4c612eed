// y[o, index[j], t] = updates[o, j, t] where j is the last with that index, copying bits in units of U. `pairs` holds
// (index, j) sorted: one list of m for all (ONE_LIST), or one for each (o, t). An index of n or more is none.
RLX_FN void scatter_set_body(PTR(U) updates, PTR(b8) pairs, PTR(U) y, const uint total, const uint m, const uint n,
                             const uint trail) {
    const uint id = GROUP * 256u + THREAD;
    if (id >= total) return;
    const uint t = id % trail, line = id / trail;
    const uint place = line % m, o = line / m;
    PTR(b8) list = SKIP(b8, pairs, ONE_LIST ? 0u : o * trail + t, m);
    const uvec2 mine = list AT(place);
    if (mine.x >= n) return;
    if (place + 1u < m) {
        const uvec2 next = list AT(place + 1u);
        if (next.x == mine.x) return;
    }
    PTR(U) p = SKIP(U, updates, o * m + mine.y, trail);
    PTR(U) q = SKIP(U, y, o * n + mine.x, trail);
    q AT(t) = p AT(t);
}
