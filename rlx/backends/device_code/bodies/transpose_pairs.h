// y[b, r, c] = x[b, c, r] for elements of two bytes, a word of two at a time: 2 `rows` by 2 `cols` elements in y, x's
// rows `pitch` and its matrices `batch` words apart. A group takes 64 by 64 elements through shared memory; a thread
// reads the words (c, r), (c, r + 1) and (c + 1, r), (c + 1, r + 1) of it and writes the words of rows r and r + 1.
// Even lines lie in the first half of the tile, odd ones in the second: neighbours then read neighbouring memory banks.
#define HALF 1056u  // 32 lines of 33

SHARED uint tile[2112];

RLX_FN void transpose_pairs_body(PTR(b4) x, PTR(b4) y, const uint tiles, const uint rows, const uint cols,
                                 const uint pitch, const uint batch) {
    const uint across = (cols + 31u) / 32u, down = (rows + 31u) / 32u;
    if (GROUP >= tiles) return;
    const uint c0 = GROUP % across * 32u, line = GROUP / across;
    const uint r0 = line % down * 32u, b = line / down;
    PTR(b4) p = SKIP(b4, x, b, batch);
    PTR(b4) q = SKIP(b4, y, b, 2u * rows * cols);
    const uint lane = THREAD % 32u, strip = THREAD / 32u;
    UNROLL for (uint k = 0u; k < 64u; k += 8u) {
        const uint r = r0 + lane, c = strip + k;
        if (r < rows && 2u * c0 + c < 2u * cols) {
            tile[c % 2u * HALF + c / 2u * 33u + lane] = p AT((2u * c0 + c) * pitch + r);
        }
    }
    BARRIER;
    UNROLL for (uint k = 0u; k < 32u; k += 8u) {
        const uint r = r0 + strip + k, c = c0 + lane;
        if (r < rows && c < cols) {
            const uint even = tile[lane * 33u + strip + k], odd = tile[HALF + lane * 33u + strip + k];
            q AT(2u * r * cols + c) = (even & 0xffffu) | odd << 16;
            q AT((2u * r + 1u) * cols + c) = even >> 16 | (odd & 0xffff0000u);
        }
    }
}
