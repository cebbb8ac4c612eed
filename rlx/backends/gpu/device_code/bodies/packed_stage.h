// A row of x as two halves of each element, in the X_UNITS * 2 places of eight bytes behind the first UNITS_USED of `units`:
// see half_terms.h. X_TYPE: how x is stored (0 f16, 1 bf16, 2 f32). NORMED: the row is multiplied by gamma, and what is
// returned divides by its root mean square.
// Four elements of x, of which the two terms of a STAGED row lie behind the stages.
RLX_FN vec4 row_four(PTR(T) x, const uint i) {
    if (!STAGED) return LOAD4(T, x, i);
    const uint2* terms = (const uint2*)(units + UNITS_USED);
    const uint2 u = terms[i], v = terms[X_UNITS + i];
    return VEC4(FMA(p_f16_value(v.x & 0xffffu), TERM, p_f16_value(u.x & 0xffffu)),
                FMA(p_f16_value(v.x >> 16), TERM, p_f16_value(u.x >> 16)),
                FMA(p_f16_value(v.y & 0xffffu), TERM, p_f16_value(u.y & 0xffffu)),
                FMA(p_f16_value(v.y >> 16), TERM, p_f16_value(u.y >> 16)));
}
RLX_FN vec4 given_four(PTR(T) x, const uint i) {
    if (X_TYPE == 0u) return LOAD4(f16, x, i);
    if (X_TYPE == 1u) return LOAD4(bf16, x, i);
    return LOAD4(f32, (PTR(f32))x, i);
}
RLX_FN float plus(const float a, const float b) { return a + b; }
RLX_FN float larger(const float a, const float b) { return a > b ? a : b; }
LANES_OP(row_sum, 256u, plus)
LANES_OP(row_largest, 256u, larger)
// The number where it is finite, without its sign.
RLX_FN float finite_size(const float v) { return RLX_ABS(v) < INFINITE ? RLX_ABS(v) : 0.0f; }

// Makes the two halves of each element; returns what takes their power of two back.
RLX_FN float stage_row(PTR(T) x, PTR(f32) gamma, const uint k, const float eps) {
    float squares = 0.0f, small = 0.0f, most = 0.0f;
    for (uint i = THREAD; i < k / 4u; i += 256u) {
        vec4 v = given_four(x, i);
        if (NORMED) {
            squares = FMA(v.w, v.w, FMA(v.z, v.z, FMA(v.y, v.y, FMA(v.x, v.x, squares))));
            const float less = 7.8886090522101181e-31f;  // 2^-100: where squares overflow, those of a smaller x do not
            const vec4 l = VEC4(v.x * less, v.y * less, v.z * less, v.w * less);
            small = FMA(l.w, l.w, FMA(l.z, l.z, FMA(l.y, l.y, FMA(l.x, l.x, small))));
            const vec4 g = LOAD4(f32, gamma, i);
            v = VEC4(v.x * g.x, v.y * g.y, v.z * g.z, v.w * g.w);
        }
        most = larger(most, larger(larger(finite_size(v.x), finite_size(v.y)), larger(finite_size(v.z), finite_size(v.w))));
    }
    float inverse = 1.0f;
    if (NORMED) {
        const float total = row_sum(squares), lesser_total = row_sum(small), over = p_recip_f(float(k));
        inverse = p_rsqrt_f(total * over + eps);
        if (!(total < INFINITE)) inverse = p_rsqrt_f(lesser_total * over) * 7.8886090522101181e-31f;
    }
    // Both powers are normal numbers.
    uint e = RLX_BITS(row_largest(most)) >> 23;
    e = e < 1u ? 1u : e > 253u ? 253u : e;
    const float up = RLX_FLOAT((254u - e) << 23);
    uint2* terms = (uint2*)(units + UNITS_USED);
    for (uint i = THREAD; i < k / 4u; i += 256u) {
        const vec4 v = given_four(x, i);
        vec4 g = VEC4(1.0f, 1.0f, 1.0f, 1.0f);
        if (NORMED) g = LOAD4(f32, gamma, i);
        const float made[4] = {v.x * g.x * up, v.y * g.y * up, v.z * g.z * up, v.w * g.w * up};
        uint head[4], rest[4];
        UNROLL for (uint c = 0u; c < 4u; c++) {
            head[c] = f16_bits(made[c]);
            rest[c] = f16_bits((made[c] - p_f16_value(head[c])) * 2048.0f);
            // Nothing is left of an infinity or NaN.
            if (!(RLX_ABS(made[c]) < INFINITE)) rest[c] = 0u;
        }
        terms[i] = make_uint2(head[0] | head[1] << 16, head[2] | head[3] << 16);
        terms[X_UNITS + i] = make_uint2(rest[0] | rest[1] << 16, rest[2] | rest[3] << 16);
    }
    BARRIER;
    return inverse * RLX_FLOAT(e << 23);
}
