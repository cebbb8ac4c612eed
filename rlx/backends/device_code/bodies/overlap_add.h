// y[row, i] = the sum of x[row, f, i - f * hop] over the frames f that hold place i, in their order. x is
// (rows, count, length), y (rows, size); total = rows * size. T is the storage of both.
RLX_FN void overlap_add_body(
    PTR(T) x, PTR(T) y, const uint total, const uint size, const uint count, const uint length, const uint hop) {
    const uint id = GROUP * 256u + THREAD;
    if (id >= total) return;
    const uint row = id / size, i = id % size;
    const uint first = i < length ? 0u : (i - length) / hop + 1u, reach = i / hop + 1u;
    const uint end = reach < count ? reach : count;
    VAL(T) sum = VAL(T)(0);
    // From one frame to the next the place within it falls by hop; the difference may be negative and then wraps.
    uint at = (row * count + first) * length + (i - first * hop);
    for (uint f = first; f < end; f++) {
        sum += LOAD(T, x, at);
        at += length - hop;
    }
    STORE(T, y, id, sum);
}
