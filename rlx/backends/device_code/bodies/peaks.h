// y = x where a run of equal neighbours ends that is higher than what is beside it, else -inf; place = the middle of that
// run, else 0. x is (rows, n); total = rows * n. Only the thread where a run ends walks back along it, so that every
// element is read about twice. T is the storage of x and y.
RLX_FN void peaks_body(PTR(T) x, PTR(T) y, PTR(i32) place, const uint total, const uint n) {
    const uint id = GROUP * 256u + THREAD;
    if (id >= total) return;
    const uint i = id % n, row = id - i;
    const VAL(T) v = LOAD(T, x, id);
    uint first = i;
    bool peak = i + 1u < n && LOAD(T, x, id + 1u) < v;
    if (peak) {
        while (first > 0u && LOAD(T, x, row + first - 1u) == v) first--;
        peak = first > 0u && LOAD(T, x, row + first - 1u) < v;
    }
    STORE(T, y, id, peak ? v : VAL(T)(-INFINITE));
    STORE(i32, place, id, peak ? int((first + i) / 2u) : 0);
}
