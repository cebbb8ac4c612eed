// C = op(A) op(B) + bias in integers, which wrap, or in f64. A group makes a 16 x 16 tile of one matrix of the batch.
// A_TRANSPOSED, B_TRANSPOSED: as A and B are stored.
#define SIDE 16u

SHARED VAL(T) tile_a[SIDE * (SIDE + 1u)];
SHARED VAL(T) tile_b[SIDE * (SIDE + 1u)];

RLX_FN void matmul_int_body(PTR(T) a, PTR(T) b, PTR(T) bias, PTR(T) c, const uint m, const uint n, const uint k,
                            const uint batch, const uint d1, const uint d2, const uint a0, const uint a1,
                            const uint a2, const uint b0, const uint b1, const uint b2) {
    const uint tiles_m = (m + SIDE - 1u) / SIDE, tiles_n = (n + SIDE - 1u) / SIDE;
    const uint z = GROUP / (tiles_m * tiles_n), tile = GROUP % (tiles_m * tiles_n);
    if (z >= batch) return;
    const uint m0 = tile / tiles_n * SIDE, n0 = tile % tiles_n * SIDE;
    const uint z2 = z % d2, z1 = z / d2 % d1, z0 = z / (d2 * d1);
    PTR(T) pa = SKIP(T, SKIP(T, SKIP(T, a, z0, a0), z1, a1), z2, a2);
    PTR(T) pb = SKIP(T, SKIP(T, SKIP(T, b, z0, b0), z1, b1), z2, b2);
    PTR(T) pc = SKIP(T, c, z, m * n);
    const uint ty = THREAD / SIDE, tx = THREAD % SIDE;
    const uint row = m0 + ty, column = n0 + tx;
    VAL(T) sum = VAL(T)(0);
    for (uint t = 0u; t < k; t += SIDE) {
        VAL(T) va = VAL(T)(0), vb = VAL(T)(0);
        if (row < m && t + tx < k) va = LOAD(T, pa, A_TRANSPOSED ? (t + tx) * m + row : row * k + t + tx);
        if (column < n && t + ty < k) vb = LOAD(T, pb, B_TRANSPOSED ? column * k + t + ty : (t + ty) * n + column);
        tile_a[ty * (SIDE + 1u) + tx] = va;
        tile_b[ty * (SIDE + 1u) + tx] = vb;
        BARRIER;
        for (uint i = 0u; i < SIDE; i++) sum += tile_a[ty * (SIDE + 1u) + i] * tile_b[i * (SIDE + 1u) + tx];
        BARRIER;
    }
    if (row < m && column < n) {
        if (HAS_BIAS) sum += LOAD(T, bias, column);
        STORE(T, pc, row * n + column, sum);
    }
}
