// Products by groups of rows in f64, in tiles of 16 x 16: see grouped.h. BY_SUM, B_TRANSPOSED.
#define TA f64
#define TB f64
#define SIDE 16u
#define BM SIDE
#define BN SIDE
#define AS(T, p) 0u  // no workspace

SHARED double tile_a[SIDE * (SIDE + 1u)];
SHARED double tile_b[SIDE * (SIDE + 1u)];

// The tile of C (m, n) at (m0, n0), summed from k0 to k1. BY_SUM: A is (k1, m), its rows `pitch` apart.
RLX_FN void product_tile(PTR(f64) a, PTR(f64) b, const uint none, PTR(f64) c, const uint m, const uint n,
                         const uint pitch, const uint k0, const uint k1, const uint m0, const uint n0) {
    const uint ty = THREAD / SIDE, tx = THREAD % SIDE;
    const uint row = m0 + ty, column = n0 + tx;
    double sum = RLX_D(0.0);
    for (uint t = k0; t < k1; t += SIDE) {
        double va = RLX_D(0.0), vb = RLX_D(0.0);
        if (row < m && t + tx < k1) va = LOAD(f64, a, BY_SUM ? (t + tx) * pitch + row : row * pitch + t + tx);
        if (column < n && t + ty < k1) {
            vb = LOAD(f64, b, B_TRANSPOSED ? column * pitch + t + ty : (t + ty) * n + column);
        }
        tile_a[ty * (SIDE + 1u) + tx] = va;
        tile_b[ty * (SIDE + 1u) + tx] = vb;
        BARRIER;
        for (uint i = 0u; i < SIDE; i++) {
            sum = RLX_MAD64(tile_a[ty * (SIDE + 1u) + i], tile_b[i * (SIDE + 1u) + tx], sum);
        }
        BARRIER;
    }
    if (row < m && column < n) STORE(f64, c, row * n + column, sum);
}
#include "grouped.h"
