// Random numbers: Threefry-2x32-20 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011) and what draws
// are made of. The steps are those of rlx/ops/random/scalars.py, exact or rounded once, so the bits are the same.
#ifndef RLX_RANDOM32_H
#define RLX_RANDOM32_H

#define R_MIX(turn)                                                                                                    \
    x0 = x0 + x1;                                                                                                      \
    x1 = ((x1 << turn) | (x1 >> (32u - turn))) ^ x0;
#define R_FOUR(a, b, c, d, ka, kb, n) R_MIX(a) R_MIX(b) R_MIX(c) R_MIX(d) x0 = x0 + ka; x1 = x1 + kb + n;

// The first word of a block, or the second, or both combined by exclusive or (`word` 0, 1, 2).
RLX_FN uint r_threefry(const uint k0, const uint k1, const uint c0, const uint c1, const int word) {
    const uint k2 = k0 ^ k1 ^ 0x1bd11bdau;
    uint x0 = c0 + k0;
    uint x1 = c1 + k1;
    R_FOUR(13u, 15u, 26u, 6u, k1, k2, 1u)
    R_FOUR(17u, 29u, 16u, 24u, k2, k0, 2u)
    R_FOUR(13u, 15u, 26u, 6u, k0, k1, 3u)
    R_FOUR(17u, 29u, 16u, 24u, k1, k2, 4u)
    R_FOUR(13u, 15u, 26u, 6u, k2, k0, 5u)
    return word == 0 ? x0 : (word == 1 ? x1 : x0 ^ x1);
}
RLX_FN int p_threefry_i(const int k0, const int k1, const int c0, const int c1) {
    return int(r_threefry(uint(k0), uint(k1), uint(c0), uint(c1), 2));
}
RLX_FN int p_threefry_first_i(const int k0, const int k1, const int c0, const int c1) {
    return int(r_threefry(uint(k0), uint(k1), uint(c0), uint(c1), 0));
}
RLX_FN int p_threefry_second_i(const int k0, const int k1, const int c0, const int c1) {
    return int(r_threefry(uint(k0), uint(k1), uint(c0), uint(c1), 1));
}

RLX_FN int p_multiply_high_i(const int a, const int b) { return int(RLX_UMULHI(uint(a), uint(b))); }

// log(1 + r) without its first term, for 1 + r from sqrt(1/2) to sqrt(2).
RLX_FN float r_log_near_1(const float r) {
    float q = -0.07634429633617401f;
    q = q * r + 0.12761549651622772f;
    q = q * r + -0.131601944565773f;
    q = q * r + 0.14201761782169342f;
    q = q * r + -0.16623356938362122f;
    q = q * r + 0.20001226663589478f;
    q = q * r + -0.250008225440979f;
    q = q * r + 0.3333333134651184f;
    const float square = r * r;
    return q * r * square - 0.5f * square;
}

// log(x) of positive normal numbers.
RLX_FN float r_log(const float x) {
    const int bits = int(RLX_BITS(x));
    const int exponent = (bits - 0x3f3504f3) >> 23;
    const float r = RLX_FLOAT(uint(bits) - (uint(exponent) << 23u)) - 1.0f;
    const float e = float(exponent);
    return (r_log_near_1(r) + e * -2.12194440e-4f + r) + e * 0.693359375f;
}

RLX_FN float p_gumbel_i(const int word) {
    const uint w = uint(word);
    const float upper = float(w >> 8u);
    const float lower = float(w & 255u);
    const float u = upper * 5.9604644775390625e-08f + (lower * 2.3283064365386963e-10f + 1.1641532182693481e-10f);
    const float left = 1.0f - u;
    const float rest = left > 2.9802322387695312e-08f ? left : 2.9802322387695312e-08f;
    const float waited = u < 0.25f ? u - r_log_near_1(-u) : -r_log(rest);
    return -r_log(waited);
}
#endif
