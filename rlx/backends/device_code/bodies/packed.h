// Packed weights: rows of blocks in planes (see Storage in rlx/dtypes.py), read 16 bytes of quants at a time. FORMAT: the
// number of the format, below; BLOCK: elements of a block; SIZE0: bytes of a block in the first plane; AT1, AT2, AT3:
// bytes of a block in all planes before the second, third, fourth; ALIGN: 16 or 4 where every row begins at such a
// multiple, else 1; RUNS: runs in a chunk, 0 for formats without chunks.
// READ_ONCE: a kernel says that what it reads 16 bytes at a time should make room in caches for all else.
// A chunk is 16 bytes of the first plane: RUNS runs of 16 neighbouring elements. An element is s (q - zero) + m: q a
// byte, and s, zero and m those of its run. Products are exact in f32 (q of at most 8 bits; s of 16, or the one rounding
// that the format has), so that only the last sum rounds, whether or not it is fused with the product.
#define Q4_0 0u
#define Q4_1 1u
#define Q5_0 2u
#define Q5_1 3u
#define Q8_0 4u
#define Q2_K 5u
#define Q3_K 6u
#define Q4_K 7u
#define Q5_K 8u
#define Q6_K 9u
#define TQ1_0 10u
#define TQ2_0 11u
#define MXFP4 12u
#define NVFP4 13u
#define IQ2_XXS 14u
#define IQ2_XS 15u
#define IQ2_S 16u
#define IQ3_XXS 17u
#define IQ3_S 18u
#define IQ1_S 19u
#define IQ1_M 20u
#define IQ4_NL 21u
#define IQ4_XS 22u
#define INT8 23u
#define INT8_ZP 24u
#define INT4 25u
#define INT4_ZP 26u
#define FP8_E4M3 27u
#define FP8_E5M2 28u
#define NF4 29u
#define FP4 30u
#ifdef RLX_GLSL
#define WORD_OF(v, i) v[i]
#define PACKED4(a, b, c, d) uvec4(a, b, c, d)
#define SIGNED(u) int(u)
#define SIXTEEN(p, i) ptr_uvec4(uvec2(p)).at[i]
#else
#define WORD_OF(v, i) ((const uint*)&(v))[i]
#define PACKED4(a, b, c, d) make_uint4(a, b, c, d)
#define SIGNED(u) ((int)(u))
#if defined(READ_ONCE) && defined(__CUDA_ARCH__)
#define SIXTEEN(p, i) __ldcs((const uint4*)(p) + (i))
#else
#define SIXTEEN(p, i) ((const uint4*)(p))[i]
#endif
#endif

#define PACKED_BYTES (FORMAT == Q8_0 || FORMAT == INT8 || FORMAT == INT8_ZP || IS_FP8)
#define IS_FP8 (FORMAT == FP8_E4M3 || FORMAT == FP8_E5M2)
#define IS_INT4 (FORMAT == INT4 || FORMAT == INT4_ZP)
#define IS_TABLE (FORMAT == NF4 || FORMAT == FP4)
#define IS_TWO_BITS (FORMAT == Q2_K || FORMAT == Q3_K || FORMAT == TQ2_0)
// Whether elements have a minimum beside their scale.
#define HAS_LOW (FORMAT == Q4_1 || FORMAT == Q5_1 || FORMAT == Q2_K || FORMAT == Q4_K || FORMAT == Q5_K)
#define IN_CHUNKS (RUNS > 0u)
// What a thread decodes at a time, in a block: a chunk, or eight elements.
#define UNITS (IN_CHUNKS ? SIZE0 / 16u : BLOCK / 8u)

// A row: the address of its first whole word, and how many bytes of that word lie before it.
struct Row {
    PTR(u32) words;
    uint skew;
};
// Its planes: where each but the first begins, in a row of so many blocks.
struct Planes {
    uint at1, at2, at3, blocks;
};
RLX_FN Planes planes_of(const uint blocks) {
    Planes at;
    at.at1 = blocks * AT1;
    at.at2 = blocks * AT2;
    at.at3 = blocks * AT3;
    at.blocks = blocks;
    return at;
}

// Row `row` of rows of `pitch` bytes from p on.
RLX_FN Row row_of(PTR(u32) p, const uint row, const uint pitch) {
    Row made;
#ifdef RLX_GLSL
    const uvec2 at = rlx_skip(uvec2(p), row, pitch, 0u);
    made.skew = ALIGN >= 4u ? 0u : at.x & 3u;
    made.words = ptr_u32(uvec2(at.x - made.skew, at.y));
#else
    const unsigned char* at = (const unsigned char*)p + (size_t)row * (size_t)pitch;
    made.skew = ALIGN >= 4u ? 0u : (uint)(size_t)at & 3u;
    made.words = (uint*)(at - made.skew);
#endif
    return made;
}

// The word whose low `n` bytes lie from byte `at` of the row on. It reads no word that holds none of them. Where rows begin
// at whole words, so does every field of four bytes, and those of two lie within words.
RLX_FN uint bytes_at(const Row row, const uint at, const uint n) {
    const uint from = row.skew + at, shift = from % 4u * 8u;
#ifndef RLX_GLSL
    // Nothing is done with what was loaded: a shift would wait for it.
    if (ALIGN >= 4u && n == 2u) return ((const unsigned short*)row.words)[at / 2u];
    if (ALIGN >= 4u && n == 1u) return ((const unsigned char*)row.words)[at];
#endif
    if (ALIGN >= 4u) return n == 4u ? row.words AT(from / 4u) : row.words AT(from / 4u) >> shift;
    uint w = row.words AT(from / 4u) >> shift;
    if (shift + 8u * n > 32u) w |= row.words AT(from / 4u + 1u) << (32u - shift);
    return w;
}
RLX_FN uint byte_at(const Row row, const uint at) { return bytes_at(row, at, 1u) & 0xffu; }
RLX_FN uint pair_at(const Row row, const uint at) { return bytes_at(row, at, 2u) & 0xffffu; }
RLX_FN uvec4 sixteen_at(const Row row, const uint at) {
    if (ALIGN == 16u) return SIXTEEN(row.words, at / 16u);
    return PACKED4(bytes_at(row, at, 4u), bytes_at(row, at + 4u, 4u), bytes_at(row, at + 8u, 4u),
                   bytes_at(row, at + 12u, 4u));
}

// An f16 by integers: a device may flush subnormal halves. HALVES: it is known to keep them.
#ifndef HALVES
#define HALVES false
#endif
RLX_FN float half_of(const uint h) {
#ifdef RLX_GLSL
    if (HALVES) return unpackHalf2x16(h).x;
    const uint e = h >> 10 & 31u, f = h & 1023u;
    const float small = float(f) * 5.9604644775390625e-08f;
    const float whole = RLX_FLOAT((e == 31u ? 0x7f800000u : (e + 112u) << 23) | f << 13);
    const float v = e == 0u ? small : whole;
    return (h & 0x8000u) != 0u ? -v : v;
#else
    return p_f16_value(h & 0xffffu);
#endif
}
RLX_FN float signed_byte(const uint b) { return float(SIGNED(b & 0xffu ^ 0x80u) - 128); }

// -- chunks

struct Chunk {
    uvec4 q, h;  // quants, and what else their bits need
};

// The first element of a run within its row, of chunk u of block b.
RLX_FN uint element_of(const uint b, const uint u, const uint run) {
    if (PACKED_BYTES) return b * BLOCK + u * 16u;
    if (FORMAT == Q4_K || FORMAT == Q5_K) return b * BLOCK + u / 2u * 64u + run * 32u + u % 2u * 16u;
    if (FORMAT == Q6_K) return b * BLOCK + u / 4u * 128u + run * 64u + u % 4u * 16u;
    if (IS_TWO_BITS) return b * BLOCK + u / 2u * 128u + run * 32u + u % 2u * 16u;
    return b * BLOCK + u * 32u + run * 16u;
}

// Where the words of higher bits of a chunk lie: four, or the one of q5_0 and q5_1.
#define HIGH_WORDS (FORMAT == Q5_K || FORMAT == Q3_K || FORMAT == Q6_K)
#define HIGH_WORD (FORMAT == Q5_0 || FORMAT == Q5_1)
RLX_FN uint high_at(const Planes at, const uint b, const uint u) {
    if (HIGH_WORD) return at.at1 + b * 4u;
    return at.at1 + (FORMAT == Q6_K ? b * 64u + u / 4u * 32u : b * 32u) + u % 2u * 16u;
}

RLX_FN Chunk chunk_of(const Row row, const Planes at, const uint b, const uint u) {
    Chunk c;
    c.q = sixteen_at(row, b * SIZE0 + u * 16u);
    c.h = PACKED4(0u, 0u, 0u, 0u);
    if (HIGH_WORD) c.h.x = bytes_at(row, high_at(at, b, u), 4u);
    if (HIGH_WORDS) c.h = sixteen_at(row, high_at(at, b, u));
    return c;
}

#define LOOK_UP(t0, t1, t2, t3, i)                                                                  \
    ((((i) & 8u) != 0u ? (((i) & 4u) != 0u ? t3 : t2) : (((i) & 4u) != 0u ? t1 : t0)) >> (((i) & 3u) * 8u) & 0xffu)
#define LOOK_UP4(t0, t1, t2, t3, n)                                                                           \
    (LOOK_UP(t0, t1, t2, t3, n) | LOOK_UP(t0, t1, t2, t3, (n) >> 8) << 8 | LOOK_UP(t0, t1, t2, t3, (n) >> 16) << 16 | \
     LOOK_UP(t0, t1, t2, t3, (n) >> 24) << 24)

// Four elements of a run as bytes, those from 4 w on: q and h are the words of the chunk that hold them.
RLX_FN uint bytes_of(const uint q, const uint h, const uint u, const uint run, const uint w) {
    if (FORMAT == Q8_0 || FORMAT == INT8) return q ^ 0x80808080u;
    if (PACKED_BYTES) return q;
    if (FORMAT == Q2_K || FORMAT == TQ2_0) return q >> (2u * run) & 0x03030303u;
    if (FORMAT == Q3_K) return q >> (2u * run) & 0x03030303u | (h >> (u / 2u * 4u + run) & 0x01010101u) << 2;
    if (IS_INT4) {
        const uint n = q >> (w % 2u * 16u);
        return n & 0xfu | (n & 0xf0u) << 4 | (n & 0xf00u) << 8 | (n & 0xf000u) << 12;
    }
    const uint n = q >> (4u * run) & 0x0f0f0f0fu;
    // Four bits spread over four bytes: each copy lies 7 bits further, and one of its bits counts.
    if (FORMAT == Q5_0 || FORMAT == Q5_1) return n | (h >> (16u * run + 4u * w) & 15u) * 0x02040810u & 0x10101010u;
    if (FORMAT == Q5_K) return n | (h >> (u / 2u * 2u + run) & 0x01010101u) << 4;
    if (FORMAT == Q6_K) {
        const uint here = h >> (u % 4u / 2u * 2u);
        return n | (run == 0u ? here << 4 : here) & 0x30303030u;
    }
    // The values of iq4 plus 127, twice those of e2m1 plus 12.
    if (FORMAT == IQ4_NL || FORMAT == IQ4_XS) return LOOK_UP4(0x3e2c1700u, 0x75695c4eu, 0xa5988c80u, 0xf0d8c4b4u, n);
    if (FORMAT == MXFP4) return LOOK_UP4(0x0f0e0d0cu, 0x18141210u, 0x090a0b0cu, 0x00040608u, n);
    return n;
}
RLX_FN uint word_of(const uint run, const uint w) { return IS_INT4 ? 2u * run + w / 2u : w; }
RLX_FN uint quad_of(const Chunk c, const uint u, const uint run, const uint w) {
    const uint q = WORD_OF(c.q, word_of(run, w));
    return bytes_of(q, FORMAT == Q5_0 || FORMAT == Q5_1 ? c.h.x : WORD_OF(c.h, w), u, run, w);
}

struct Scale {
    float s, m, zero;
};

// The zero of formats whose blocks have none of their own.
RLX_FN float zero_of() {
    if (FORMAT == Q8_0 || FORMAT == INT8) return 128.0f;
    if (FORMAT == Q4_0 || FORMAT == INT4) return 8.0f;
    if (FORMAT == Q5_0) return 16.0f;
    if (FORMAT == Q6_K) return 32.0f;
    if (FORMAT == Q3_K) return 4.0f;
    if (FORMAT == TQ2_0) return 1.0f;
    if (FORMAT == IQ4_NL || FORMAT == IQ4_XS) return 127.0f;
    return FORMAT == MXFP4 ? 12.0f : 0.0f;
}

// The words that hold the scales of chunk u of block b, so that they can be read before they are needed.
RLX_FN uvec4 scale_words(const Row row, const Planes at, const uint b, const uint u) {
    uvec4 w = PACKED4(0u, 0u, 0u, 0u);
    if (FORMAT == Q4_1 || FORMAT == Q5_1) {
        w.x = bytes_at(row, (FORMAT == Q4_1 ? at.at1 : at.at2) + b * 4u, 4u);
    } else if (FORMAT == Q2_K) {
        w.x = bytes_at(row, at.at2 + b * 4u, 4u);
        w.y = bytes_at(row, at.at1 + b * 16u + u / 2u * 8u, 4u);
        w.z = bytes_at(row, at.at1 + b * 16u + u / 2u * 8u + 4u, 4u);
    } else if (FORMAT == Q3_K) {
        const uint scales = at.at2 + b * 12u;
        w.x = bytes_at(row, at.at3 + b * 2u, 2u);
        w.y = bytes_at(row, scales, 4u);
        w.z = bytes_at(row, scales + 4u, 4u);
        w.w = bytes_at(row, scales + 8u, 4u);
    } else if (FORMAT == Q4_K || FORMAT == Q5_K) {
        const uint scales = (FORMAT == Q4_K ? at.at1 : at.at2) + b * 12u;
        w.x = bytes_at(row, (FORMAT == Q4_K ? at.at2 : at.at3) + b * 4u, 4u);
        w.y = bytes_at(row, scales, 4u);
        w.z = bytes_at(row, scales + 4u, 4u);
        w.w = bytes_at(row, scales + 8u, 4u);
    } else if (FORMAT == Q6_K) {
        w.x = bytes_at(row, at.at3 + b * 2u, 2u);
        w.y = bytes_at(row, at.at2 + b * 16u + u / 4u * 8u, 4u);
        w.z = bytes_at(row, at.at2 + b * 16u + u / 4u * 8u + 4u, 4u);
    } else if (FORMAT == MXFP4) {
        w.x = bytes_at(row, at.at1 + b, 1u);
    } else if (FORMAT == IQ4_XS) {
        w.x = bytes_at(row, at.at3 + b * 2u, 2u);
        w.y = bytes_at(row, at.at1 + b * 4u, 4u);
        w.z = bytes_at(row, at.at2 + b * 2u, 2u);
    } else if (FORMAT >= INT8) {
        w.x = bytes_at(row, at.at1 + b * 4u, 4u);
        if (FORMAT == INT8_ZP || FORMAT == INT4_ZP) w.y = bytes_at(row, at.at2 + b, 1u);
    } else {
        w.x = bytes_at(row, (FORMAT == Q5_0 ? at.at2 : at.at1) + b * 2u, 2u);
    }
    return w;
}

// The scale of a run of chunk u, from those words.
RLX_FN Scale scale_from(const uvec4 w, const uint u, const uint run) {
    Scale made;
    made.m = 0.0f;
    made.zero = zero_of();
    if (FORMAT == Q4_1 || FORMAT == Q5_1) {
        made.s = half_of(w.x);
        made.m = half_of(w.x >> 16);
    } else if (FORMAT == Q2_K) {
        const uint sc = (run < 2u ? w.y : w.z) >> (run % 2u * 16u + u % 2u * 8u) & 0xffu;
        made.s = half_of(w.x) * float(sc & 15u);
        made.m = -(half_of(w.x >> 16) * float(sc >> 4));
    } else if (FORMAT == Q3_K) {
        const uint i = u / 2u * 8u + run * 2u + u % 2u;
        const uint low = ((i & 4u) != 0u ? w.z : w.y) >> (i % 4u * 8u + i / 8u * 4u) & 15u;
        const uint high = w.w >> (i % 4u * 8u + i / 4u * 2u) & 3u;
        made.s = half_of(w.x) * float(SIGNED(low | high << 4) - 32);
    } else if (FORMAT == Q4_K || FORMAT == Q5_K) {
        // Those of both runs at once.
        const uint shift = u / 2u % 2u * 16u, d = w.y >> shift, m = w.z >> shift, both = w.w >> shift;
        const uint sc = u < 4u ? d & 0x3f3fu : both & 0x0f0fu | d >> 2 & 0x3030u;
        const uint low = u < 4u ? m & 0x3f3fu : both >> 4 & 0x0f0fu | m >> 2 & 0x3030u;
        made.s = half_of(w.x) * float(sc >> (8u * run) & 0xffu);
        made.m = -(half_of(w.x >> 16) * float(low >> (8u * run) & 0xffu));
    } else if (FORMAT == Q6_K) {
        made.s = half_of(w.x) * signed_byte((run == 0u ? w.y : w.z) >> (u % 4u * 8u));
    } else if (FORMAT == MXFP4) {
        const uint e = w.x & 0xffu;
        made.s = RLX_FLOAT(e < 2u ? 0x200000u << e : (e - 1u) << 23);
    } else if (FORMAT == IQ4_XS) {
        const uint low = w.y >> (u * 4u) & 15u, high = w.z >> (2u * u) & 3u;
        made.s = half_of(w.x) * float(SIGNED(low | high << 4) - 32);
    } else if (FORMAT >= INT8) {
        made.s = RLX_FLOAT(w.x);
        if (FORMAT == INT8_ZP || FORMAT == INT4_ZP) made.zero = float(w.y & 0xffu);
    } else {
        made.s = half_of(w.x);
    }
    return made;
}
RLX_FN Scale scale_of(const Row row, const Planes at, const uint b, const uint u, const uint run) {
    return scale_from(scale_words(row, at, b, u), u, run);
}

// The values of bytes of fp8. Those of e4m3 below 2^-6 are differences of larger numbers: no f32 is subnormal.
RLX_FN float fp8_of(const uint b) {
    float v;
    if (FORMAT == FP8_E5M2) {
        v = half_of((b & 0x7fu) << 8);
    } else {
        const uint a = b & 0x7fu, bits = (a + 960u) << 20;
        v = a < 8u ? RLX_FLOAT(bits + 0x800000u) - 0.015625f : RLX_FLOAT(a == 0x7fu ? 0x7fc00000u : bits);
    }
    return (b & 0x80u) != 0u ? -v : v;
}

// The numbers of nf4 and fp4, as TABLES in rlx/packed/codebooks.py has them. Kernels that take these formats define TABLED:
// the 16 numbers then lie in shared memory, in as many banks, so that all threads of a warp look up any codes at once.
#ifdef TABLED
SHARED float table_numbers[16];
RLX_FN float nf4_of(const uint code) {
    const uint low = code & 7u;
    if (code < 8u) {
        return low == 0u   ? -1.0f
               : low == 1u ? -0.6961928009986877f
               : low == 2u ? -0.5250730514526367f
               : low == 3u ? -0.39491748809814453f
               : low == 4u ? -0.28444138169288635f
               : low == 5u ? -0.18477343022823334f
               : low == 6u ? -0.09105003625154495f
                           : 0.0f;
    }
    return low == 0u   ? 0.07958029955625534f
           : low == 1u ? 0.16093020141124725f
           : low == 2u ? 0.24611230194568634f
           : low == 3u ? 0.33791524171829224f
           : low == 4u ? 0.44070982933044434f
           : low == 5u ? 0.5626170039176941f
           : low == 6u ? 0.7229568362236023f
                       : 1.0f;
}
RLX_FN float fp4_of(const uint code) {
    const uint low = code & 7u;
    const float size = low == 0u   ? 0.0f
                       : low == 1u ? 0.005208333488553762f
                       : low == 2u ? 0.6666666865348816f
                       : low == 3u ? 1.0f
                       : low == 4u ? 0.3333333432674408f
                       : low == 5u ? 0.5f
                       : low == 6u ? 0.1666666716337204f
                                   : 0.25f;
    return code > 8u ? -size : size;
}
// What a workgroup does before the barrier that stands before its first element.
RLX_FN void fill_table() {
    if (IS_TABLE && THREAD < 16u) table_numbers[THREAD] = FORMAT == NF4 ? nf4_of(THREAD) : fp4_of(THREAD);
}
#endif

// Four bytes as the numbers q - zero, exactly: bits of a float beside its leading one, which a sum takes away.
RLX_FN vec4 values_of(const uint q, const float zero) {
    if (IS_FP8) return VEC4(fp8_of(q), fp8_of(q >> 8), fp8_of(q >> 16), fp8_of(q >> 24));
#ifdef TABLED
    if (IS_TABLE) {
        return VEC4(table_numbers[q & 15u], table_numbers[q >> 8 & 15u], table_numbers[q >> 16 & 15u],
                    table_numbers[q >> 24 & 15u]);
    }
#endif
    const float low = -(8388608.0f + zero), high = -(32768.0f + zero);
    const uint upper = q >> 16;
    return VEC4(RLX_FLOAT(q & 0xffu | 0x4b000000u) + low, RLX_MAD(RLX_FLOAT(q & 0xff00u | 0x4b000000u), 0.00390625f, high),
                RLX_FLOAT(upper & 0xffu | 0x4b000000u) + low,
                RLX_MAD(RLX_FLOAT(upper & 0xff00u | 0x4b000000u), 0.00390625f, high));
}

RLX_FN float weight_of(const Scale scale, const float v) {
    return HAS_LOW ? scale.s * v + scale.m : scale.s * v;
}
