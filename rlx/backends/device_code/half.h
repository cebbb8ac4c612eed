// Conversions between f32 and the bits of f16 and bf16: to nearest even, overflow to infinity, NaN kept; bit for bit as
// NumPy's float16 and ml_dtypes' bfloat16. With integers: a device's own conversion may round towards zero or flush.
#include "prelude.h"
#ifndef RLX_HALF_H
#define RLX_HALF_H

// Both sides of a choice have names of their own, lest GLSL's compiler make branches of them.
RLX_FN uint p_f16_bits(const float x) {
    const uint u = RLX_BITS(x);
    const uint a = u & 0x7fffffffu;
    const uint wide = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;  // rounding may carry into the exponent
    // Below 2^-14 an f16 is a multiple of 2^-24, which is the last place of 0.5: the addition rounds to it.
    const uint small = RLX_BITS(RLX_FLOAT(a) + 0.5f) - 0x3f000000u;
    const uint none = 0x7e00u | ((a >> 13) & 0x3ffu);
    uint r = wide > 0x7c00u ? 0x7c00u : wide;
    r = a < 0x38800000u ? small : r;
    r = a > 0x7f800000u ? none : r;
    return ((u >> 16) & 0x8000u) | r;
}

// An f16 times a power of two that makes it no smaller, as an f16: infinite from 2^16 on.
RLX_FN float p_bound_f16(const float x) { return (x * 5.192296859e+33f) * 1.925929944e-34f; }

RLX_FN float p_f16_value(const uint h) { return RLX_HALF_VALUE(h); }

// A bf16 in the upper half of a word; the lower half holds what rounding leaves.
RLX_FN uint p_bf16_word(const float x) {
    const uint u = RLX_BITS(x);
    const uint near = u + 0x7fffu + ((u >> 16) & 1u);
    const uint none = (u & 0x80000000u) | 0x7fc00000u;
    return (u & 0x7fffffffu) > 0x7f800000u ? none : near;
}
RLX_FN uint p_bf16_bits(const float x) { return p_bf16_word(x) >> 16; }

RLX_FN float p_bf16_value(const uint h) { return RLX_FLOAT(h << 16); }

// The bits of a bf16, those of two in a word, and rounding to one, by the device's own conversion where that rounds to
// nearest even (Vulkan's may cut off: NVIDIA's does, whatever FPRoundingMode or RoundingModeRTE ask for).
#ifdef RLX_BRAIN_BITS
RLX_FN uint p_brain_bits(const float x) { return RLX_BRAIN_BITS(x); }
RLX_FN uint p_brain_pair(const float x, const float y) { return p_brain_bits(x) | p_brain_bits(y) << 16; }
RLX_FN float p_round_bf16(const float x) { return p_bf16_value(p_brain_bits(x)); }
#else
RLX_FN uint p_brain_bits(const float x) { return p_bf16_bits(x); }
RLX_FN uint p_brain_pair(const float x, const float y) {
    return (p_bf16_word(x) >> 16) | (p_bf16_word(y) & 0xffff0000u);
}
RLX_FN float p_round_bf16(const float x) { return RLX_FLOAT(p_bf16_word(x) & 0xffff0000u); }
#endif

RLX_FN float p_round_f16(const float x) {
#ifdef RLX_HALF_BITS
    return p_f16_value(RLX_HALF_BITS(x));
#else
    return p_f16_value(p_f16_bits(x));
#endif
}
#endif
