// For every attention kernel: running sums of weights exp(score - greatest score). A row without a key keeps a greatest
// score of -infinity, counts from 0, and gives zeros.
RLX_FN float larger(const float a, const float b) { return a > b ? a : b; }  // the sum restores a lost NaN
RLX_FN float base_of(const float top) { return top == -INFINITE ? 0.0f : top; }
RLX_FN float inverse(const float total) { return total == 0.0f ? 0.0f : p_recip_f(total); }
// exp(x) for x <= 0, within a few ULP of 1, which is the greatest weight; 0 for -infinity.
RLX_FN float weight_of(const float x) { return x == -INFINITE ? 0.0f : RLX_FLUSHED_EXP2(x * 1.442695022e+00f); }
RLX_FN int lesser_i(const int a, const int b) { return a < b ? a : b; }
RLX_FN int larger_i(const int a, const int b) { return a > b ? a : b; }
