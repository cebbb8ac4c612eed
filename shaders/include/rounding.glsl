// Rounding to 16 bits, several values at a time, with float arithmetic in the place of integers, which devices do half as
// many of a clock. It is right for all but values that are subnormal, huge, infinite or NaN; where a result shows one of
// those, half.h rounds them all. Where a device takes subnormals for zeros, they become zeros here.
#ifndef RLX_ROUNDING_GLSL
#define RLX_ROUNDING_GLSL

float size_of(const vec4 v) { return (abs(v.x) + abs(v.y)) + (abs(v.z) + abs(v.w)); }
uint any_of(const uvec4 u) { return u.x | u.y | u.z | u.w; }

// v with 8 bits of significand, to nearest even (Veltkamp, 1968): NaN from 2^111 on, and where v is infinite or NaN. A
// subnormal v has fewer bits as a bf16; it is right where the lower half of its word is 0.
vec4 near_bf16(const vec4 v) {
    const vec4 p = v * vec4(65537.0);
    return p - (p - v);
}
// Whether results of near_bf16 are right by all the bits they have and their size.
bool sound_bf16(const uint bits, const float size) {
    const bool whole = (bits & 0xffffu) == 0u;
    const bool finite = floatBitsToUint(size) < 0x7f800000u;
    return whole && finite;
}
vec4 round4_bf16(const vec4 v) {
    vec4 r = near_bf16(v);
    if (!sound_bf16(any_of(floatBitsToUint(r)), size_of(r))) {
        r = vec4(p_round_bf16(v.x), p_round_bf16(v.y), p_round_bf16(v.z), p_round_bf16(v.w));
    }
    return r;
}
uvec4 words_bf16(const vec4 a, const vec4 b) {
    const vec4 c = near_bf16(a), d = near_bf16(b);
    const uvec4 u = floatBitsToUint(c), v = floatBitsToUint(d);
    uvec4 w = uvec4(u.xz, v.xz) >> 16 | (uvec4(u.yw, v.yw) & 0xffff0000u);
    if (!sound_bf16(any_of(u | v), size_of(c) + size_of(d))) {
        w = uvec4(p_brain_pair(a.x, a.y), p_brain_pair(a.z, a.w), p_brain_pair(b.x, b.y), p_brain_pair(b.z, b.w));
    }
    return w;
}

// The power of two at or below |v|, at least 2^-14: an f16 is a multiple of its 2^-10th part. 2^13 times it, added to v,
// leaves just those bits (added and taken off without fma(), which optimizers rearrange).
uvec4 power_f16(const vec4 v) { return max(floatBitsToUint(v) & 0x7f800000u, 0x38800000u); }
vec4 round4_f16(const vec4 v) {
    const vec4 big = uintBitsToFloat(power_f16(v)) * vec4(12288.0);
    const vec4 near = (v + big) - big;
    vec4 r = uintBitsToFloat(floatBitsToUint(near) | (floatBitsToUint(v) & 0x80000000u));
    if (floatBitsToUint(size_of(r)) >= 0x47800000u) {
        r = vec4(p_round_f16(v.x), p_round_f16(v.y), p_round_f16(v.z), p_round_f16(v.w));
    }
    return r;
}
// The lower half of each word is the f16 but for its sign: the multiple counted in the sum's last bits, and the exponent.
uvec4 halves_near(const vec4 v) {
    const uvec4 power = power_f16(v);
    return floatBitsToUint(fma(uintBitsToFloat(power), vec4(8192.0), abs(v))) + (power >> 13) + 0x3c00u;
}
uvec2 pairs_near(const vec4 v) {
    const uvec4 h = halves_near(v), u = floatBitsToUint(v);
    const uvec2 low = (h.xz & 0xffffu) | h.yw << 16;
    const uvec2 high = u.xz >> 16 | (u.yw & 0xffff0000u);
    return low | (high & 0x80008000u);
}
uvec4 words_f16(const vec4 a, const vec4 b) {
    uvec4 w = uvec4(pairs_near(a), pairs_near(b));
    if (floatBitsToUint(size_of(a) + size_of(b)) >= 0x47800000u) {
        const uvec4 u = uvec4(p_f16_bits(a.x), p_f16_bits(a.z), p_f16_bits(b.x), p_f16_bits(b.z));
        w = u | uvec4(p_f16_bits(a.y), p_f16_bits(a.w), p_f16_bits(b.y), p_f16_bits(b.w)) << 16;
    }
    return w;
}
#endif
