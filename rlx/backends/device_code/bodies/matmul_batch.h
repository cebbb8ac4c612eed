// A batch of products in tiles: which tile of which matrix a group makes, and which part of the sum over k, of `parts`
// parts, each a matrix of its own that whoever launched adds up. Uses product_tile, BM, BN and BK of a tile's file.
RLX_FN void matmul_body(PTR(TA) a, PTR(TB) b, PTR(f32) bias, PTR(TA) c, const uint m, const uint n, const uint k,
                        const uint batch, const uint parts, const uint d1, const uint d2, const uint a0, const uint a1,
                        const uint a2, const uint b0, const uint b1, const uint b2,
                        const uint bias_step) {
    const uint tiles_m = (m + BM - 1u) / BM, tiles_n = (n + BN - 1u) / BN;
    const uint matrix = GROUP / (tiles_m * tiles_n), tile = GROUP % (tiles_m * tiles_n);
    if (matrix >= batch * parts) return;
    // Eight rows of tiles are worked on side by side, so that neighbours find A and B in the cache.
    const uint band = tile / (8u * tiles_n) * 8u;
    const uint height = tiles_m - band < 8u ? tiles_m - band : 8u;
    const uint m0 = (band + tile % (8u * tiles_n) % height) * BM, n0 = tile % (8u * tiles_n) / height * BN;
    const uint z = matrix % batch, part = matrix / batch;
    const uint length = ((k + BK - 1u) / BK + parts - 1u) / parts * BK;
    const uint k0 = part * length < k ? part * length : k;
    const uint k1 = k - k0 < length ? k : k0 + length;
    const uint z2 = z % d2, z1 = z / d2 % d1, z0 = z / (d2 * d1);
    PTR(TA) pa = SKIP(TA, SKIP(TA, SKIP(TA, a, z0, a0), z1, a1), z2, a2);
    PTR(TB) pb = SKIP(TB, SKIP(TB, SKIP(TB, b, z0, b0), z1, b1), z2, b2);
    PTR(TA) pc = SKIP(TA, c, matrix, WIDE ? 2u * m * n : m * n);  // WIDE: where A is stored in halves
    product_tile(pa, pb, SKIP(f32, bias, z, bias_step), pc, m, n, k, k0, k1, m0, n0);
}
