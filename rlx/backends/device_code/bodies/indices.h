// Index tensors: I is their dtype, i32 or i64; i64 is read as two words, so that no device needs 64-bit integers.
#ifndef RLX_INDICES_H
#define RLX_INDICES_H
#define LOAD_PLACE_i32(p, j) LOAD(i32, p, j)
#define LOAD_PLACE_i64(p, j) narrowed(p, j)
#define LOAD_INDEX_i32(p, j, count) wrapped(LOAD(i32, p, j), count)
#define LOAD_INDEX_i64(p, j, count) wrapped(narrowed(p, j), count)

// A negative index counts from the end; out of range it is clamped.
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
#endif
