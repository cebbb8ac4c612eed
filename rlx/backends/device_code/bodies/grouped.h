// Products by groups of rows, in tiles. Rows belong to experts in their order: the first sizes[0] of them to expert 0,
// and so on; sizes below 0 count as 0, and a group ends with the rows. Uses product_tile and its constants, and BY_SUM:
// 0: C (rows, n) = the rows of A times the matrix of their expert in B (experts, k, n), or (experts, n, k) where B is
// transposed; rows after the last group give 0. 1: C (experts, k, n) = the rows of A (rows, k), transposed, times those
// of B (rows, n), summed over the rows of each expert.
RLX_FN uint group_size(PTR(i32) sizes, const uint e, const uint most) {
    const int given = LOAD(i32, sizes, e);
    const uint size = given > 0 ? uint(given) : 0u;
    return size < most ? size : most;
}

RLX_FN void grouped_body(PTR(TA) a, PTR(TB) b, PTR(i32) sizes, PTR(TA) c, const uint rows, const uint n, const uint k,
                         const uint experts) {
    const uint tiles_n = (n + BN - 1u) / BN;
    const uint tiles_m = BY_SUM ? (k + BM - 1u) / BM : 1u;
    const uint slot = GROUP / (tiles_m * tiles_n), n0 = GROUP % tiles_n * BN;
    uint start = 0u, first_a = 0u, matrix_b = 0u, first_c = 0u, pitch_c = n;
    uint m = k, m0 = GROUP / tiles_n % tiles_m * BM, k0 = 0u, k1 = k;
    if (BY_SUM) {
        if (slot >= experts) return;
        for (uint e = 0u; e < slot; e++) start += group_size(sizes, e, rows - start);
        k0 = start;
        k1 = start + group_size(sizes, slot, rows - start);
        first_c = slot;
        pitch_c = k * n;
    } else {
        uint seen = 0u, expert = experts, size = 0u;
        for (uint e = 0u; e <= experts; e++) {
            // What is left after the last expert is a group without a sum.
            size = e < experts ? group_size(sizes, e, rows - start) : rows - start;
            const uint tiles = (size + BM - 1u) / BM;
            if (slot < seen + tiles) {
                expert = e;
                break;
            }
            seen += tiles;
            start += size;
        }
        if (start >= rows) return;
        m = size;
        m0 = (slot - seen) * BM;
        if (m0 >= m) return;
        k1 = expert < experts ? k : 0u;
        first_a = start;
        matrix_b = expert < experts ? expert : 0u;
        first_c = start;
    }
    // Addresses are made behind the branches: SwiftShader crashes where one of two pointers goes on.
    PTR(TA) pa = SKIP(TA, a, first_a, k);
    PTR(TB) pb = SKIP(TB, b, matrix_b, k * n);
    PTR(TA) pc = SKIP(TA, c, first_c, pitch_c);
    product_tile(pa, pb, AS(f32, c), pc, m, n, k, k0, k1, m0, n0);
}
