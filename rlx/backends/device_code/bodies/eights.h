// Eight neighbours at a time: load8_<dtype>(p, i, a, b) and store8_<dtype>(p, i, a, b) for elements 8 i to 8 i + 7. Of
// the 16-bit dtypes these are sixteen bytes in one access, which want an address that is a multiple of sixteen.
#ifdef RLX_GLSL
#define WORDS1(p, i) ptr_u32(uvec2(p)).at[i]
#define WORDS4(p, i) ptr_uvec4(uvec2(p)).at[i]
#define EIGHT(T, a, b) words_##T(a, b)
#define LOW_f16(w) unpackHalf2x16(w).x
#define HIGH_f16(w) unpackHalf2x16(w).y
#else
#define WORDS1(p, i) ((const uint*)(p))[i]
#define WORDS4(p, i) ((uvec4*)(p))[i]
#define PAIR_f16(x, y) (f16_bits(x) | f16_bits(y) << 16)
#define PAIR_bf16(x, y) p_brain_pair(x, y)
#define EIGHT(T, a, b) \
    make_uint4(PAIR_##T(a.x, a.y), PAIR_##T(a.z, a.w), PAIR_##T(b.x, b.y), PAIR_##T(b.z, b.w))
#define LOW_f16(w) p_f16_value((w) & 0xffffu)
#define HIGH_f16(w) p_f16_value((w) >> 16)
#endif
#define LOW_bf16(w) RLX_FLOAT((w) << 16)
#define HIGH_bf16(w) RLX_FLOAT((w) & 0xffff0000u)

RLX_FN void load8_f32(const PTR(f32) p, const uint i, RLX_OUT(vec4) a, RLX_OUT(vec4) b) {
    a = LOAD4(f32, p, 2u * i);
    b = LOAD4(f32, p, 2u * i + 1u);
}
RLX_FN void store8_f32(PTR(f32) p, const uint i, const vec4 a, const vec4 b) {
    STORE4(f32, p, 2u * i, a);
    STORE4(f32, p, 2u * i + 1u, b);
}
#define RLX_EIGHTS(T)                                                                                     \
    RLX_FN void load8_##T(const PTR(T) p, const uint i, RLX_OUT(vec4) a, RLX_OUT(vec4) b) {               \
        const uvec4 u = WORDS4(p, i);                                                                     \
        a = VEC4(LOW_##T(u.x), HIGH_##T(u.x), LOW_##T(u.y), HIGH_##T(u.y));                               \
        b = VEC4(LOW_##T(u.z), HIGH_##T(u.z), LOW_##T(u.w), HIGH_##T(u.w));                               \
    }                                                                                                     \
    RLX_FN void store8_##T(PTR(T) p, const uint i, const vec4 a, const vec4 b) {                          \
        WORDS4(p, i) = EIGHT(T, a, b);                                                                    \
    }
RLX_EIGHTS(f16)
RLX_EIGHTS(bf16)
#define LOAD8(T, p, i, a, b) RLX_JOIN(load8_, T)(p, i, a, b)
#define STORE8(T, p, i, a, b) RLX_JOIN(store8_, T)(p, i, a, b)
