// Elements of the packed formats without chunks, one by one. BOOK_WORDS: words of an entry of the codebook.
#define Q1_0 31u  // which no other kernel asks for
// The number in place i of entry `code` of the codebook.
RLX_FN float in_book(PTR(u32) book, const uint code, const uint i) {
    return signed_byte(book AT(code * BOOK_WORDS + i / 4u) >> (i % 4u * 8u));
}
// The sign in place i of a code of 7 bits: an eighth makes the number of bits even.
RLX_FN float sign_of(const uint code, const uint i) {
    uint odd = code ^ code >> 4;
    odd ^= odd >> 2;
    const uint bits = code | ((odd ^ odd >> 1) & 1u) << 7;
    return (bits >> i & 1u) != 0u ? -1.0f : 1.0f;
}
RLX_FN float sign_at(const Row row, const uint at, const uint e) {
    return (byte_at(row, at + e / 8u) >> (e % 8u) & 1u) != 0u ? -1.0f : 1.0f;
}
RLX_FN float odd_scale(const uint s) { return float(2u * s + 1u); }

// Element e of block b.
RLX_FN float element(const Row row, const Planes at, PTR(u32) book, const uint b, const uint e) {
    const uint quants = b * SIZE0, eight = e / 8u, i = e % 8u;
    if (FORMAT == TQ1_0) {
        const uint first = e < 160u ? e % 32u : e < 240u ? 32u + (e - 160u) % 16u : (e - 240u) % 4u;
        uint digit = e < 160u ? e / 32u : e < 240u ? (e - 160u) / 16u : (e - 240u) / 4u;
        uint q = byte_at(row, e < 240u ? quants + first : at.at1 + b * 4u + first);
        for (; digit > 0u; digit--) q *= 3u;
        const uint three = (q & 0xffu) * 3u >> 8;
        return half_of(pair_at(row, at.at2 + b * 2u)) * (float(three) - 1.0f);
    }
    if (FORMAT == Q1_0) return -half_of(pair_at(row, at.at1 + b * 2u)) * sign_at(row, quants, e);
    if (FORMAT == NVFP4) {
        const uint code = byte_at(row, at.at1 + b * 4u + e / 16u), exponent = code >> 3 & 15u, f = code & 7u;
        const uint top = exponent == 0u ? 1u : exponent;
        const float s = code == 0x7fu ? 0.0f : float(exponent == 0u ? f : f + 8u) * RLX_FLOAT((top + 116u) << 23);
        const uint n = byte_at(row, quants + e / 16u * 8u + e % 8u) >> (e % 16u / 8u * 4u) & 15u;
        return s * (float(LOOK_UP(0x0f0e0d0cu, 0x18141210u, 0x090a0b0cu, 0x00040608u, n)) - 12.0f);
    }
    if (FORMAT == IQ2_XXS) {
        const uint code = byte_at(row, quants + e / 32u * 8u + eight % 4u);
        const uint rest = bytes_at(row, quants + e / 32u * 8u + 4u, 4u);
        const float s = half_of(pair_at(row, at.at1 + b * 2u)) * odd_scale(rest >> 28) * 0.125f;
        return s * (in_book(book, code, i) * sign_of(rest >> (eight % 4u * 7u) & 127u, i));
    }
    if (FORMAT == IQ2_XS) {
        const uint code = pair_at(row, quants + eight * 2u);
        const uint sc = byte_at(row, at.at1 + b * 8u + e / 32u) >> (e / 16u % 2u * 4u) & 15u;
        const float s = half_of(pair_at(row, at.at2 + b * 2u)) * odd_scale(sc) * 0.125f;
        return s * (in_book(book, code & 511u, i) * sign_of(code >> 9, i));
    }
    if (FORMAT == IQ2_S) {
        const uint high = byte_at(row, at.at2 + b * 8u + eight / 4u) >> (eight % 4u * 2u) & 3u;
        const uint code = byte_at(row, quants + eight) | high << 8;
        const uint sc = byte_at(row, at.at3 + b * 8u + e / 32u) >> (e / 16u % 2u * 4u) & 15u;
        const float s = half_of(pair_at(row, at.at3 + at.blocks * 8u + b * 2u)) * odd_scale(sc) * 0.125f;
        return s * (in_book(book, code, i) * sign_at(row, at.at1 + b * 32u, e));
    }
    if (FORMAT == IQ3_XXS) {
        const uint rest = bytes_at(row, at.at1 + b * 32u + e / 32u * 4u, 4u);
        const float s = half_of(pair_at(row, at.at2 + b * 2u)) * odd_scale(rest >> 28) * 0.25f;
        const float v = in_book(book, byte_at(row, quants + e / 4u), e % 4u);
        return s * (v * sign_of(rest >> (eight % 4u * 7u) & 127u, i));
    }
    if (FORMAT == IQ3_S) {
        const uint four = e / 4u, high = byte_at(row, at.at2 + b * 8u + four / 8u) >> (four % 8u) & 1u;
        const uint sc = byte_at(row, at.at3 + b * 4u + e / 64u) >> (e / 32u % 2u * 4u) & 15u;
        const float s = half_of(pair_at(row, at.at3 + at.blocks * 4u + b * 2u)) * odd_scale(sc);
        const float v = in_book(book, byte_at(row, quants + four) | high << 8, e % 4u);
        return s * (v * sign_at(row, at.at1 + b * 32u, e));
    }
    if (FORMAT == IQ1_S) {
        const uint high = pair_at(row, at.at1 + b * 16u + e / 32u * 2u);
        const uint code = byte_at(row, quants + eight) | (high >> (eight % 4u * 3u) & 7u) << 8;
        const float s = half_of(pair_at(row, at.at2 + b * 2u)) * odd_scale(high >> 12 & 7u) * 0.125f;
        return s * (in_book(book, code, i) * 8.0f + ((high & 0x8000u) != 0u ? -1.0f : 1.0f));
    }
    const uint scales = at.at2 + b * 8u;
    uint d = 0u;
    for (uint k = 0u; k < 4u; k++) d |= (pair_at(row, scales + 2u * k) & 0xf000u) >> (12u - 4u * k);
    const uint sc = pair_at(row, scales + e / 64u * 2u) >> (e / 16u % 4u * 3u) & 7u;
    const uint high = byte_at(row, at.at1 + b * 16u + eight / 2u) >> (eight % 2u * 4u) & 15u;
    const uint code = byte_at(row, quants + eight) | (high & 7u) << 8;
    const float v = in_book(book, code, i) * 8.0f + ((high & 8u) != 0u ? -1.0f : 1.0f);
    return half_of(d) * odd_scale(sc) * 0.125f * v;
}
