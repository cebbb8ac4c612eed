// The bias of a product. BIAS: 0 there is none, 1 it is stored in f32, 2 it is stored as A is (TA).
#ifdef RLX_GLSL
#define AS(T, p) PTR(T)(uvec2(p))
#else
#define AS(T, p) ((PTR(T))(p))
#endif
#define HAS_BIAS (BIAS != 0u)

RLX_FN float bias_at(PTR(f32) bias, const uint column) {
    if (BIAS == 2u) return LOAD(TA, AS(TA, bias), column);
    return LOAD(f32, bias, column);
}
