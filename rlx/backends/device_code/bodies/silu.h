// x / (1 + exp(-x)).
RLX_FN float silu(const float x) { return p_div_f(x, 1.0f + p_exp_f(-x)); }
