// exp(x) for |x| < 87: neither infinite nor subnormal, so that its exponent may be added as an integer, which takes half
// of the instructions of p_exp_f. `farthest` of factors a says for which dt all dt a are near: |dt| * farthest < 87,
// which is false for NaN and infinities.
RLX_FN float near_exp(const float x) {
    int k;
    const float e = 1.0f + m_exp_part(x, k);
    return RLX_FLOAT(RLX_BITS(e) + (uint(k) << 23u));
}
RLX_FN float farthest(const float so_far, const vec4 a) {
    return p_max_f(p_max_f(so_far, p_max_f(p_abs_f(a.x), p_abs_f(a.y))), p_max_f(p_abs_f(a.z), p_abs_f(a.w)));
}
