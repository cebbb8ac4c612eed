// y[b, r, c] = x[b, c, r] in accesses of sixteen bytes, for elements of two (U = b2) or four (b4): x's rows lie `pitch`
// and its matrices `batch` sixteen bytes apart, `rows` and `cols` are multiples of what sixteen bytes hold. A group
// takes 64 elements of 128 (b2) or 64 (b4) rows of x through shared memory, each thread's four loads under way at once.
// A line of the tile keeps its sixteen bytes in an order of its own, so that neighbours read different memory banks.
#define EACH_b2 8u  // elements in sixteen bytes
#define EACH_b4 4u
#define EACH RLX_JOIN(EACH_, U)
#define WIDTH (64u / EACH)  // of a line of the tile, in sixteen bytes
#define LINES (1024u / WIDTH)
#ifdef RLX_GLSL
#define UVEC4(a, b, c, d) uvec4(a, b, c, d)
#define WORD_AT(i, k) tile[i][k]
#else
#define UVEC4(a, b, c, d) make_uint4(a, b, c, d)
#define WORD_AT(i, k) ((const uint*)tile)[4u * (i) + (k)]
#endif

SHARED uvec4 tile[1024];

RLX_FN uint cell(const uint c, const uint g) { return c * WIDTH + (g ^ (c / EACH % WIDTH)); }

// Elements c to c + EACH - 1 of the output's row r of the tile; where they are halves, of rows 2 r and 2 r + 1.
RLX_FN uvec4 column_b4(const uint c, const uint r) {
    const uint g = r / 4u, k = r % 4u;
    return UVEC4(WORD_AT(cell(c, g), k), WORD_AT(cell(c + 1u, g), k), WORD_AT(cell(c + 2u, g), k), WORD_AT(cell(c + 3u, g), k));
}
RLX_FN uint low_halves(const uint a, const uint b) { return (a & 0xffffu) | b << 16; }
RLX_FN uint high_halves(const uint a, const uint b) { return a >> 16 | (b & 0xffff0000u); }

RLX_FN void put_b4(PTR(b16) q, const uint c, const uint r, const uint c0, const uint r0, const uint rows, const uint cols) {
    if (r0 + r < rows && c0 + c < cols) q AT(((r0 + r) * cols + c0 + c) / 4u) = column_b4(c, r);
}
RLX_FN void put_b2(PTR(b16) q, const uint c, const uint r, const uint c0, const uint r0, const uint rows, const uint cols) {
    if (r0 + 2u * r >= rows || c0 + c >= cols) return;
    const uvec4 a = column_b4(c, r), b = column_b4(c + 4u, r);
    const uint at = ((r0 + 2u * r) * cols + c0 + c) / 8u;
    q AT(at) = UVEC4(low_halves(a.x, a.y), low_halves(a.z, a.w), low_halves(b.x, b.y), low_halves(b.z, b.w));
    q AT(at + cols / 8u) = UVEC4(high_halves(a.x, a.y), high_halves(a.z, a.w), high_halves(b.x, b.y), high_halves(b.z, b.w));
}

RLX_FN void transpose_wide_body(PTR(b16) x, PTR(b16) y, const uint tiles, const uint rows, const uint cols,
                                const uint pitch, const uint batch) {
    const uint across = (cols + LINES - 1u) / LINES, down = (rows + 63u) / 64u;
    if (GROUP >= tiles) return;
    const uint c0 = GROUP % across * LINES, line = GROUP / across;
    const uint r0 = line % down * 64u, b = line / down;
    PTR(b16) p = SKIP(b16, x, b, batch);
    PTR(b16) q = SKIP(b16, y, b, rows * cols / EACH);
    // What lies beyond the matrix is read at its start instead, and not written: no load waits for a branch.
    const uint g = THREAD % WIDTH, c = THREAD / WIDTH;
    const uint r = r0 + g * EACH;
    uvec4 v[4];
    UNROLL for (uint k = 0u; k < 4u; k++) {
        const uint row = c0 + c + k * (256u / WIDTH);
        v[k] = p AT(row < cols && r < rows ? row * pitch + r / EACH : 0u);
    }
    UNROLL for (uint k = 0u; k < 4u; k++) tile[cell(c + k * (256u / WIDTH), g)] = v[k];
    BARRIER;
    // Eight threads write 128 bytes of a row, four rows a warp.
    const uint unit = THREAD % 8u + THREAD / 32u % 2u * 8u;
    UNROLL for (uint k = 0u; k < 16u / EACH; k++) {
        RLX_JOIN(put_, U)(q, unit * EACH, THREAD / 8u % 4u + (THREAD / 64u + 4u * k) * 4u, c0, r0, rows, cols);
    }
}
