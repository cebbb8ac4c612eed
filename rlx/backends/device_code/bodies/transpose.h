// y[b, r, c] = x[b, c, r] for matrices of x whose rows lie `pitch` and whose starts lie `batch` elements apart; bits
// are copied in units of U (b1, b2, b4, b8 bytes). A group takes a tile of 32 by 32 through shared memory, so that
// reads and writes both run along rows; a tile row is 33 long, which spreads its columns over the memory banks.
#ifdef RLX_GLSL
#define cell_b1 uint
#define cell_b2 uint
#define cell_b4 uint
#define cell_b8 uvec2
#define KEEP_b1(v) uint8_t(v)
#define KEEP_b2(v) uint16_t(v)
#else
typedef unsigned char cell_b1;
typedef unsigned short cell_b2;
typedef uint cell_b4;
typedef uvec2 cell_b8;
#define KEEP_b1(v) (v)
#define KEEP_b2(v) (v)
#endif
#define KEEP_b4(v) (v)
#define KEEP_b8(v) (v)

SHARED RLX_JOIN(cell_, U) tile[32 * 33];

RLX_FN void transpose_body(PTR(U) x, PTR(U) y, const uint tiles, const uint rows, const uint cols, const uint pitch,
                           const uint batch) {
    const uint across = (cols + 31u) / 32u, down = (rows + 31u) / 32u;
    if (GROUP >= tiles) return;
    const uint c0 = GROUP % across * 32u, line = GROUP / across;
    const uint r0 = line % down * 32u, b = line / down;
    PTR(U) p = SKIP(U, x, b, batch);
    PTR(U) q = SKIP(U, y, b, rows * cols);
    const uint lane = THREAD % 32u, strip = THREAD / 32u;
    UNROLL for (uint k = 0u; k < 32u; k += 8u) {
        const uint r = r0 + lane, c = c0 + strip + k;
        if (r < rows && c < cols) tile[(strip + k) * 33u + lane] = RLX_JOIN(cell_, U)(p AT(c * pitch + r));
    }
    BARRIER;
    UNROLL for (uint k = 0u; k < 32u; k += 8u) {
        const uint r = r0 + strip + k, c = c0 + lane;
        if (r < rows && c < cols) q AT(r * cols + c) = RLX_JOIN(KEEP_, U)(tile[lane * 33u + strip + k]);
    }
}
