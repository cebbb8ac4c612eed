// Quants as the subnormal floats that their bits are as they lie in their words: 2^-149 times an integer, which no
// instruction has to convert. What is left of their places is taken from x, which is scaled so that sums are far from
// the smallest floats. SUBNORMALS: whether the device keeps subnormal floats; if not, quants are converted. Codes of a
// table are looked up.
#define CONVERTED (!SUBNORMALS || IS_TABLE)
#define NIBBLES (FORMAT == Q4_0 || FORMAT == Q4_1 || FORMAT == Q4_K)

// Four quants of a run as floats: see above. Of nibbles, q is the word of the chunk. `magic` is 2^23 as bits, in a
// register of its own, so that one instruction takes a quant out of its word and puts it beside the leading one.
#define MAGIC(size) (0x4b000000u + ((size) >> 31))  // sizes are below 2^31, which compilers do not know
RLX_FN float lifted(const uint q, const uint mask, const uint magic) {
    return SUBNORMALS ? RLX_FLOAT(q & mask) : RLX_FLOAT(q & mask | magic) - 8388608.0f;
}
#ifdef RLX_GLSL
#define LOWER(a, b) min(a, b)
#else
#define LOWER(a, b) ((a) < (b) ? (a) : (b))
#endif
// An e4m3 or e5m2 in the top byte, times a power of two: see `power_left`.
RLX_FN float lifted_fp8(const uint q, const uint magic) {
    if (SUBNORMALS) {
        const uint kept = FORMAT == FP8_E4M3 ? 0x87f00000u : 0x8fe00000u;
        return RLX_FLOAT(uint(SIGNED(q) >> (FORMAT == FP8_E4M3 ? 4 : 3)) & kept);
    }
    // With a larger exponent; what is then between one and two times the smallest power lies where it belongs if the
    // smaller of two lines is taken.
    const uint bits = FORMAT == FP8_E4M3 ? (q >> 4 & 0x07f00000u) + (magic - 0x0f000000u)
                                         : (q >> 3 & 0x0fe00000u) + (magic - 0x13000000u);
    const float v = RLX_FLOAT(bits), bent = FMA(2.0f, v, FORMAT == FP8_E4M3 ? -0.015625f : -6.103515625e-05f);
    return RLX_FLOAT(RLX_BITS(LOWER(bent, v)) | q & 0x80000000u);
}
RLX_FN vec4 lifted_four(const uint q, const uint run, const uint magic) {
    if (IS_FP8) {
        return VEC4(lifted_fp8(q << 24, magic), lifted_fp8(q << 16, magic), lifted_fp8(q << 8, magic),
                    lifted_fp8(q, magic));
    }
    if (IS_TABLE) return values_of(q, 0.0f);
    const uint low = NIBBLES ? 0xfu << (4u * run) : 0xffu, upper = q >> 16;
    return VEC4(lifted(q, low, magic), lifted(q, low << 8, magic), lifted(upper, low, magic),
                lifted(upper, low << 8, magic));
}
// The sizes of halves lie within what one power of two can place.
#define NARROW_f16 true
#define NARROW_bf16 false
#define NARROW_f32 false
#ifndef NARROWED
#define NARROWED true
#endif
#define NARROW (NARROWED && RLX_JOIN(NARROW_, T))
// What of their scale is not in x: 2^-96 of the power of two that `lifted_four` leaves.
RLX_FN float power_left() {
    if (CONVERTED) return 1.0f;
    return FORMAT == FP8_E4M3 ? 16777216.0f : FORMAT == FP8_E5M2 ? 65536.0f : 9007199254740992.0f;
}

// The power of two that x is multiplied by, given the exponent of the size of its elements (at least all of them added
// up); and what takes it back, together with `power_left`.
RLX_FN uint exponent_kept(const float size) {
    const uint exponent = NARROW ? 150u : RLX_BITS(size) >> 23;
    return exponent < 97u ? 97u : exponent > 254u ? 254u : exponent;
}
RLX_FN float scale_of_x(const uint kept) { return CONVERTED ? 1.0f : RLX_FLOAT((350u - kept) << 23); }
RLX_FN float back_of(const uint kept) { return CONVERTED ? 1.0f : RLX_FLOAT(kept << 23); }
// Of halves that is the same number for all, which the finished sums are multiplied by, and the sums of x divided.
#define ALL_BACK (NARROW ? power_left() * back_of(150u) : 1.0f)
#define ALL_DOWN (!NARROW || CONVERTED ? 1.0f : RLX_FLOAT(RLX_BITS(1.0f) * 2u - RLX_BITS(power_left() * back_of(150u))))
// Four elements of x of a run, times the scale, beside quants in their places.
RLX_FN vec4 placed_four(const vec4 v, const float scale, const uint run) {
    const float even = NIBBLES && run == 1u ? scale * 0.0625f : scale, odd = IS_FP8 || IS_TABLE ? even : even * 0.00390625f;
    return VEC4(v.x * even, v.y * odd, v.z * even, v.w * odd);
}
// The bits of bytes that are neither numbers nor, of e5m2, finite.
RLX_FN uint special_bits(const uint bits) {
    if (FORMAT == FP8_E4M3) return (bits & 0x7f7f7f7fu) + 0x01010101u;
    if (FORMAT == FP8_E5M2) return (bits & 0x7c7c7c7cu) + 0x04040404u;
    return 0u;
}
