// Each f32 of a row of x as two halves, rows 2 i and 2 i + 1 of y: the row's numbers times a power of two that brings the
// largest one to 1 or 2, rounded, and 2^11 times what rounding left. `scales` takes the power back. Together the halves
// hold what an f32 does, down to 2^-36 of the largest number. A bf16 becomes one half, the largest
// between 2^14 and 2^15, which holds what it does down to 2^-31 of the largest number.
#define TERMS_f32 2u
#define TERMS_bf16 1u
#define TERMS RLX_JOIN(TERMS_, T)
#define LIFT (TERMS == 2u ? 0u : 14u)
RLX_FN float largest(const float a, const float b) { return a > b ? a : b; }
LANES_OP(row_largest, 256u, largest)

RLX_FN void half_terms_body(PTR(T) x, PTR(f16) y, PTR(f32) scales, const uint rows, const uint k) {
    if (GROUP >= rows) return;
    PTR(T) px = SKIP(T, x, GROUP, k);
    PTR(f16) py = SKIP(f16, y, GROUP, TERMS * k);
    float most = 0.0f;
    for (uint i = THREAD; i < k; i += 256u) {
        const uint a = RLX_BITS(LOAD(T, px, i)) & 0x7fffffffu;
        if (a < 0x7f800000u) most = largest(most, RLX_FLOAT(a));
    }
    // Both powers are normal numbers.
    uint e = RLX_BITS(row_largest(most)) >> 23;
    e = e < 1u + LIFT ? 1u + LIFT : e > 253u ? 253u : e;
    const float up = RLX_FLOAT((254u + LIFT - e) << 23);
    if (THREAD == 0u) STORE(f32, scales, GROUP, RLX_FLOAT((e - LIFT) << 23));
    for (uint i = THREAD; i < k; i += 256u) {
        const float v = LOAD(T, px, i) * up, head = p_round_f16(v);
        STORE(f16, py, i, head);
        // Nothing is left of an infinity or NaN.
        if (TERMS == 2u) STORE(f16, py, k + i, (RLX_BITS(v) & 0x7fffffffu) < 0x7f800000u ? (v - head) * 2048.0f : 0.0f);
    }
}
