// Sums of products of packed integers and x by dot products of four bytes at once, for packed_line.h, whose names stand
// here. 32 neighbouring elements of x become integers of 23 bits, by the power of two that the largest of them allows,
// and these three bytes each (limbs), of which the uppermost has the sign. Sums of products with each limb are exact;
// only x is rounded, to within 2^-22 of that largest element, also where it is added up for zeros and minimums. Quants
// stay as they lie in their words: those of the upper half of each byte are 16 times as large. A sum without its scale
// is larger than x by the quants and their number: sums are made 2^-13 times as large, and finished rows 2^13 times, so
// that they overflow only where y does. Elements below 2^-125 become zero. FORMAT has integers of at most 8 bits.
// For CUDA alone, whose dot product takes bytes with and without a sign, so that quants need no shift. packed_digits.h
// does the same with signed bytes where packed_line is slow, through Vulkan.
#ifdef RLX_GLSL
#define PLACE_LIMBS(v, run, to)
#define ADD_LIMBS
#define LIMBS_UP 1.0f
#else
#define LIMB_BITS 21u
#define LIMBS_DOWN 0.0001220703125f
#define LIMBS_UP 8192.0f
#ifdef __CUDA_ARCH__
#define RLX_DOT4(TYPES, d, a, b, c) asm("dp4a." TYPES " %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c))
#define BYTES_JOINED(v, i, two) __byte_perm(__byte_perm(v.x, v.y, two), __byte_perm(v.z, v.w, two), 0x5410u)
#else
RLX_FN int byte_in(const uint w, const uint i, const char sign) {
    const int b = int(w >> (8u * i) & 0xffu);
    return sign == 's' && b > 127 ? b - 256 : b;
}
// As the instruction, whose types are "s32" or "u32" of a, a dot, and those of b.
RLX_FN int dot_bytes(const char* types, const uint a, const uint b, int c) {
    for (uint i = 0u; i < 4u; i++) c += byte_in(a, i, types[0]) * byte_in(b, i, types[4]);
    return c;
}
#define RLX_DOT4(TYPES, d, a, b, c) d = dot_bytes(TYPES, a, b, c)
#define BYTE_IN(w, i) ((w) >> (8u * (i)) & 0xffu)
#define BYTES_JOINED(v, i, two) (BYTE_IN(v.x, i) | BYTE_IN(v.y, i) << 8 | BYTE_IN(v.z, i) << 16 | BYTE_IN(v.w, i) << 24)
#endif
// Sums of the products of four quants with four upper, and with four lower limbs, added to c.
RLX_FN int dot_upper(const uint quants, const uint x, const int c) {
    int d;
    if (SIGNED_BYTES) RLX_DOT4("s32.s32", d, quants, x, c);
    else RLX_DOT4("u32.s32", d, quants, x, c);
    return d;
}
RLX_FN int dot_lower(const uint quants, const uint x, const int c) {
    int d;
    if (SIGNED_BYTES) RLX_DOT4("s32.u32", d, quants, x, c);
    else RLX_DOT4("u32.u32", d, quants, x, c);
    return d;
}
// Byte i of each of four words.
RLX_FN uint bytes_joined(const uvec4 v, const uint i) { return BYTES_JOINED(v, i, i | (4u + i) << 4); }
// Magnitudes are compared as integers, in which NaN is the largest.
RLX_FN uint magnitude(const float x) { return RLX_BITS(x) & 0x7fffffffu; }
RLX_FN uint larger_of(const uint a, const uint b) { return a > b ? a : b; }
RLX_FN uint largest_of(const vec4 v) {
    return larger_of(larger_of(magnitude(v.x), magnitude(v.y)), larger_of(magnitude(v.z), magnitude(v.w)));
}
RLX_FN float larger_size(const float a, const float b) { return RLX_FLOAT(larger_of(RLX_BITS(a), RLX_BITS(b))); }
LANES_OP(pair_largest, 2u, larger_size)
// The integer nearest to x times the scale: added to 1.5 times 2^23, it lies in the bits of the sum.
RLX_FN uint limb_integer(const float x, const float scale) {
    return RLX_BITS(FMA(x, scale, 12582912.0f)) - 0x4b400000u;
}
RLX_FN uvec4 limb_integers(const vec4 v, const float scale) {
    return PACKED4(limb_integer(v.x, scale), limb_integer(v.y, scale), limb_integer(v.z, scale),
                   limb_integer(v.w, scale));
}
RLX_FN int total_of(const uvec4 v) { return int(v.x) + int(v.y) + (int(v.z) + int(v.w)); }

// The 16 elements v of a run of a chunk at place `to`; the neighbouring thread has those of the neighbouring chunk.
// Where one is infinity or NaN, what takes the power of two back is NaN, so that the sum is seen to be one.
RLX_FN void place_limbs(const vec4* v, const uint run, const uint to) {
    const uint largest = larger_of(larger_of(largest_of(v[0]), largest_of(v[1])),
                                   larger_of(largest_of(v[2]), largest_of(v[3])));
    const uint found = RLX_BITS(pair_largest(RLX_FLOAT(largest))) >> 23;
    const uint exponent = found < 24u ? 24u : found > 254u ? 254u : found;
    const float up = RLX_FLOAT((254u + LIMB_BITS - exponent) << 23);
    const float back = RLX_FLOAT(found > 254u ? 0x7fc00000u : (exponent - LIMB_BITS) << 23) * LIMBS_DOWN;
    const uvec4 x0 = limb_integers(v[0], up), x1 = limb_integers(v[1], up);
    const uvec4 x2 = limb_integers(v[2], up), x3 = limb_integers(v[3], up);
    given_back[to] = back;
    given_sums[to] = float(total_of(x0) + total_of(x1) + (total_of(x2) + total_of(x3))) * back;
    UNROLL for (uint l = 0u; l < 3u; l++) {
        given[run * 2u * SLAB + l * SLAB + to] =
            PACKED4(bytes_joined(x0, l), bytes_joined(x1, l), bytes_joined(x2, l), bytes_joined(x3, l));
    }
}

// Four quants of a run, of word `w` of its chunk.
RLX_FN uint limb_quants(const Chunk c, const uint u, const uint run, const uint w) {
    if (NIBBLES) return WORD_OF(c.q, w) & 0x0f0f0f0fu << (4u * run);
    if (SIGNED_BYTES) return WORD_OF(c.q, w);
    return quad_of(c, u, run, w);
}
// What the sums of a run's limbs come to, in units of the lowest.
RLX_FN float limbs_sum(const int upper, const int middle, const int lower) {
    return FMA(float(upper), 65536.0f, float(middle * 256 + lower));
}
// Adds the products with two chunks of each row to acc.
RLX_FN void add_limbs(float* acc, const Chunk* held, const uvec4* words, const uvec4* others, const ScalePair* pairs,
                      const uint unit, const uint own) {
    UNROLL for (uint run = 0u; run < RUNS; run++) {
        int upper[2u * ROWS], middle[2u * ROWS], lower[2u * ROWS];  // of each chunk, or of both in the first
        UNROLL for (uint j = 0u; j < 2u * ROWS; j++) upper[j] = middle[j] = lower[j] = 0;
        UNROLL for (uint p = 0u; p < 2u; p++) {
            const uint from = run * 3u * SLAB + p * (SLAB / 2u) + own;
            const uvec4 x0 = given[from], x1 = given[from + SLAB], x2 = given[from + 2u * SLAB];
            UNROLL for (uint r = 0u; r < ROWS; r++) {
                const uint of = (SAME_SCALES ? 0u : p * ROWS) + r;
                UNROLL for (uint w = 0u; w < 4u; w++) {
                    const uint quants = limb_quants(held[p * ROWS + r], (unit + p) % UNITS, run, w);
                    upper[of] = dot_upper(quants, WORD_OF(x2, w), upper[of]);
                    middle[of] = dot_lower(quants, WORD_OF(x1, w), middle[of]);
                    lower[of] = dot_lower(quants, WORD_OF(x0, w), lower[of]);
                }
            }
        }
        const float back = given_back[run * SLAB + own] * (NIBBLES && run == 1u ? 0.0625f : 1.0f) * PAIR_POWER(run);
        UNROLL for (uint r = 0u; r < ROWS; r++) {
            const float sum = limbs_sum(upper[r], middle[r], lower[r]) * back;
            const float other = limbs_sum(upper[ROWS + r], middle[ROWS + r], lower[ROWS + r]) * back;
            acc[r] = with_run(acc[r], pairs[r], words[r], others[r], run, unit, own, sum, SAME_SCALES ? 0.0f : other);
        }
    }
}
#define PLACE_LIMBS(v, run, to) place_limbs(v, run, to);
#define ADD_LIMBS add_limbs(acc, held, words, others, pairs, unit, own);
#endif
