// Rows of heads in TA, whose first pairs are turned by angles, rounded as a cache stores them, in TB. TURNED: pairs that
// are turned; INTERLEAVED: as in rope.h.
#define NEAR_f32(x) (x)
#define NEAR_f16(x) p_round_f16(x)
#define NEAR_bf16(x) p_round_bf16(x)
#define NEAR(x) RLX_JOIN(NEAR_, TB)(x)

// Of two addresses, which are words in GLSL: SwiftShader's compiler dies of a choice of two pointers.
#ifdef RLX_GLSL
#define ONE_OF(first, a, b) ((first) ? uvec2(a) : uvec2(b))
#else
#define ONE_OF(first, a, b) ((first) ? (a) : (b))
#endif

RLX_FN vec4 near4(const vec4 v) { return VEC4(NEAR(v.x), NEAR(v.y), NEAR(v.z), NEAR(v.w)); }

// Elements c … c + 3 of a row of a head, turned by entry `entry` of the tables.
RLX_FN vec4 turned(PTR(TA) x, PTR(f32) cosine, PTR(f32) sine, const uint entry, const uint c) {
    const vec4 a = LOAD4(TA, x, c / 4u);
    if (c >= 2u * TURNED) return near4(a);
    if (INTERLEAVED) {
        const uint i = entry + c / 2u;
        const float c0 = LOAD(f32, cosine, i), c1 = LOAD(f32, cosine, i + 1u);
        const float s0 = LOAD(f32, sine, i), s1 = LOAD(f32, sine, i + 1u);
        return near4(VEC4(a.x * c0 - a.y * s0, a.y * c0 + a.x * s0, a.z * c1 - a.w * s1, a.w * c1 + a.z * s1));
    }
    const bool second = c >= TURNED;
    const uint i = second ? c - TURNED : c;
    const vec4 b = LOAD4(TA, x, (second ? i : c + TURNED) / 4u);
    const vec4 o = LOAD4(f32, cosine, (entry + i) / 4u), s = LOAD4(f32, sine, (entry + i) / 4u);
    const float by = second ? 1.0f : -1.0f;
    return near4(VEC4(a.x * o.x + b.x * (by * s.x), a.y * o.y + b.y * (by * s.y), a.z * o.z + b.z * (by * s.z),
                      a.w * o.w + b.w * (by * s.w)));
}
