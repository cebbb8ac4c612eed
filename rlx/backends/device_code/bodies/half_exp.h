// EXP(x) for results that are stored as T. Of results of 16 bits exp is within 2^-16, where a device's own 2^x is (GLSL:
// 3 + 2 |x| ULP); 0 below 2^-126.
RLX_FN float exp_half(const float x) { return RLX_FLUSHED_EXP2(x * 1.442695022e+00f); }
#define EXP_f32(x) p_exp_f(x)
#define EXP_f16(x) exp_half(x)
#define EXP_bf16(x) exp_half(x)
#define EXP(x) RLX_JOIN(EXP_, T)(x)
