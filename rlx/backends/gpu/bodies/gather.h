// y[o, j, t] = x[o, index[j], t], copying bits: U is the unit of t (b1 … b16 bytes), I the dtype of the indices.
// A negative index counts from the end; out of range it is clamped. i64 is read as two words: no 64-bit integers.
#define LOAD_INDEX_i32(p, j, count) wrapped(LOAD(i32, p, j), count)
#define LOAD_INDEX_i64(p, j, count) wrapped(narrowed(p, j), count)

RLX_FN uint wrapped(const int index, const uint count) {
    const int size = int(count);
    int i = index < 0 ? (index < -size ? 0 : index + size) : index;
    return uint(i < size ? i : size - 1);
}

// The i64 at place j, moved to the nearest i32.
RLX_FN int narrowed(PTR(i32) p, const uint j) {
    const int low = LOAD(i32, p, 2u * j), high = LOAD(i32, p, 2u * j + 1u);
    if (high >= 0) return high > 0 || low < 0 ? 2147483647 : low;
    return high < -1 || low >= 0 ? -2147483647 : low;
}

RLX_FN void gather_body(PTR(U) x, PTR(i32) index, PTR(U) y, const uint total, const uint m, const uint axis,
                        const uint trail) {
    const uint id = GROUP * 256u + THREAD;
    if (id >= total) return;
    const uint t = id % trail, line = id / trail;
    const uint j = line % m, o = line / m;
    PTR(U) p = SKIP(U, x, o * axis + RLX_JOIN(LOAD_INDEX_, I)(index, j, axis), trail);
    PTR(U) q = SKIP(U, y, line, trail);
    q AT(t) = p AT(t);
}
