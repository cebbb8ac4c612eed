// Each f32 of a row of x as two halves, rows 2 i and 2 i + 1 of y: the row's numbers times a power of two that brings the
// largest one to 1 or 2, rounded, and 2^11 times what rounding left. `scales` takes the power back. Together the halves
// hold what an f32 does, down to 2^-36 of the largest number.
RLX_FN float largest(const float a, const float b) { return a > b ? a : b; }
LANES_OP(row_largest, 256u, largest)

RLX_FN void half_terms_body(PTR(f32) x, PTR(f16) y, PTR(f32) scales, const uint rows, const uint k) {
    if (GROUP >= rows) return;
    PTR(f32) px = SKIP(f32, x, GROUP, k);
    PTR(f16) py = SKIP(f16, y, GROUP, 2u * k);
    float most = 0.0f;
    for (uint i = THREAD; i < k; i += 256u) {
        const uint a = RLX_BITS(LOAD(f32, px, i)) & 0x7fffffffu;
        if (a < 0x7f800000u) most = largest(most, RLX_FLOAT(a));
    }
    // Both powers are normal numbers.
    uint e = RLX_BITS(row_largest(most)) >> 23;
    e = e < 1u ? 1u : e > 253u ? 253u : e;
    const float up = RLX_FLOAT((254u - e) << 23);
    if (THREAD == 0u) STORE(f32, scales, GROUP, RLX_FLOAT(e << 23));
    for (uint i = THREAD; i < k; i += 256u) {
        const float v = LOAD(f32, px, i) * up, head = p_round_f16(v);
        STORE(f16, py, i, head);
        // Nothing is left of an infinity or NaN.
        STORE(f16, py, k + i, (RLX_BITS(v) & 0x7fffffffu) < 0x7f800000u ? (v - head) * 2048.0f : 0.0f);
    }
}
