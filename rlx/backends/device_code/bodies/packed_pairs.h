// Quants of packed weights as mma.sync takes them: see packed.h. T is the type of 16 bits. Four bytes of quants are two
// words of a matrix, the first and third byte and the second and fourth; PAIRED places x beside them.
#define HAS_ZEROS (FORMAT == INT8_ZP || FORMAT == INT4_ZP)
// The scale of a chunk is a half, and two are a word.
#define ONE_HALF (FORMAT == Q4_0 || FORMAT == Q5_0 || FORMAT == IQ4_NL)
#ifdef RLX_ON_HOST
#define WARP_SYNC rlx_shuffle(0.0f, 0u);
#define RLX_MMA_FROM(TYPE)                                                                  \
    RLX_FN void from_##TYPE(float* c, const uint* a, const uint* b, const float* before) {  \
        for (uint i = 0u; i < 4u; i++) c[i] = before[i];                                    \
        rlx_mma_##TYPE(c, a, b);                                                            \
    }
RLX_FN uint pair_sub_f16(const uint a, const uint b) {
    return f16_bits(p_f16_value(a & 0xffffu) - p_f16_value(b & 0xffffu)) |
           f16_bits(p_f16_value(a >> 16) - p_f16_value(b >> 16)) << 16;
}
RLX_FN uint scaled_bf16(const uint a) {
    const float up = RLX_FLOAT(247u << 23);
    return bf16_bits(bf16_value(a & 0xffffu) * up) | bf16_bits(bf16_value(a >> 16) * up) << 16;
}
RLX_FN uint pair_sub_bf16(const uint a, const uint b) {
    return bf16_bits(bf16_value(a & 0xffffu) - bf16_value(b & 0xffffu)) |
           bf16_bits(bf16_value(a >> 16) - bf16_value(b >> 16)) << 16;
}
#else
#define WARP_SYNC __syncwarp();
// As rlx_mma_f16 and rlx_mma_bf16, onto sums that stay where they are.
#define RLX_MMA_FROM(TYPE)                                                                                    \
    RLX_FN void from_##TYPE(float* c, const uint* a, const uint* b, const float* before) {                    \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." #TYPE "." #TYPE                                 \
                     ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"               \
                     : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])                                         \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(before[0]),      \
                       "f"(before[1]), "f"(before[2]), "f"(before[3]));                                       \
    }
RLX_FN uint pair_sub_f16(const uint a, const uint b) {
    uint d;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
RLX_FN uint scaled_bf16(const uint a) {  // times 2^120
    uint d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(0x7b807b80u), "r"(0x80008000u));
    return d;
}
RLX_FN uint pair_sub_bf16(const uint a, const uint b) {
    uint d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(b), "r"(0xbf80bf80u), "r"(a));
    return d;
}
#endif
RLX_MMA_FROM(f16)
RLX_MMA_FROM(bf16)
#define MULTIPLY_FROM(c, a, b, before) RLX_JOIN(from_, T)(c, a, b, before);
#define MULTIPLY_ONTO(c, a, b) RLX_JOIN(rlx_mma_, T)(c, a, b);
#define SET_FRAG(m, w0, w1, w2, w3) \
    {                               \
        (m)[0] = w0;                \
        (m)[1] = w1;                \
        (m)[2] = w2;                \
        (m)[3] = w3;                \
    }
RLX_FN uint lesser(const uint a, const uint b) { return a < b ? a : b; }
#define LANE_ROW (LANE / 4u)
#define LANE_QUAD (LANE % 4u)

#define EVEN_BYTES(q, high) ((q) & 0x00ff00ffu | high)
#define ODD_BYTES(q, high) ((q) >> 8 & 0x00ff00ffu | high)
#ifdef RLX_ON_HOST
#define PAIRED(a, b) make_uint2((a) & 0xffffu | (b) << 16, (a) >> 16 | (b) & 0xffff0000u)
#else
#define PAIRED(a, b) make_uint2(__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632))
#endif
// The numbers q - zero of four bytes as two words. A half whose bits are a small integer q is 2^-24 q, exactly, and an
// e4m3 in the place of a half 2^-8 of itself: so no instruction converts them, the sums are multiplied by the power of
// two at the end, and the zero is taken from the sum.
#define RAW_f16 (!HAS_ZEROS && FORMAT != FP8_E5M2)
#define RAW_bf16 false
#define RAW RLX_JOIN(RAW_, T)
#define POWER (!RAW ? 1.0f : FORMAT == FP8_E4M3 ? 256.0f : 16777216.0f)
RLX_FN uvec2 pairs_f16(const uint q, const float zero) {
    uvec2 made;
    const uint a = EVEN_BYTES(q, 0u), b = ODD_BYTES(q, 0u);
    if (FORMAT == FP8_E5M2) {
        made.x = a << 8;
        made.y = b << 8;
    } else if (FORMAT == FP8_E4M3) {
        // NaN is seen to elsewhere.
        made.x = a << 7 & 0x3f803f80u | a << 8 & 0x80008000u;
        made.y = b << 7 & 0x3f803f80u | b << 8 & 0x80008000u;
    } else if (RAW_f16) {
        made.x = a;
        made.y = b;
    } else {
        const uint less = 0x64006400u + uint(zero) * 0x00010001u;
        made.x = pair_sub_f16(EVEN_BYTES(q, 0x64006400u), less);
        made.y = pair_sub_f16(ODD_BYTES(q, 0x64006400u), less);
    }
    return made;
}
RLX_FN uvec2 pairs_bf16(const uint q, const float zero) {
    uvec2 made;
    if (FORMAT == FP8_E4M3) {
        const uint a = EVEN_BYTES(q, 0u), b = ODD_BYTES(q, 0u);
        made.x = scaled_bf16(a << 4 & 0x07f007f0u | a << 8 & 0x80008000u);
        made.y = scaled_bf16(b << 4 & 0x07f007f0u | b << 8 & 0x80008000u);
        return made;
    }
    if (!IS_FP8) {
        // A bf16 from 128 to 256 counts in ones: seven bits fit beside its leading one, the eighth takes 128 away, or
        // not.
        if (!PACKED_BYTES && !HAS_ZEROS && FORMAT != IQ4_NL && FORMAT != IQ4_XS) {
            const uint less = 0x43004300u + uint(zero) * 0x00010001u;
            made.x = pair_sub_bf16(EVEN_BYTES(q, 0x43004300u), less);
            made.y = pair_sub_bf16(ODD_BYTES(q, 0x43004300u), less);
            return made;
        }
        const uint a = EVEN_BYTES(q, 0u), b = ODD_BYTES(q, 0u);
        made.x = pair_sub_bf16(a & 0x007f007fu | 0x43004300u, a & 0x00800080u ^ 0x43804380u);
        made.y = pair_sub_bf16(b & 0x007f007fu | 0x43004300u, b & 0x00800080u ^ 0x43804380u);
        if (HAS_ZEROS || zero_of() != 128.0f) {
            const uint rest = (RLX_BITS(zero - 128.0f) >> 16) * 0x00010001u;
            made.x = pair_sub_bf16(made.x, rest);
            made.y = pair_sub_bf16(made.y, rest);
        }
        return made;
    }
    const vec4 v = values_of(q, zero);
    made.x = RLX_BITS(v.x) >> 16 | RLX_BITS(v.z) & 0xffff0000u;
    made.y = RLX_BITS(v.y) >> 16 | RLX_BITS(v.w) & 0xffff0000u;
    return made;
}
#define PAIRS_OF(q, zero) RLX_JOIN(pairs_, T)(q, zero)
#define ONES_f16 (RAW_f16 ? 0x00010001u : 0x3c003c00u)
#define ONES_bf16 0x3f803f80u
#define ONES RLX_JOIN(ONES_, T)
#define LESS_ZERO (RAW && !IS_FP8 && !HAS_LOW)  // whether sums begin at minus the zero times the sum of x
#define MINUS_ZERO ((0x8000u | uint(zero_of())) * 0x00010001u)
#define TERM 0.00048828125f  // what the second half of an f32 is times

#ifdef RLX_ON_HOST
#define STREAMED(row, at) sixteen_at(row, at)
#define KEPT_SIXTEEN(p) *(p)
#else
#define RLX_SIXTEEN(NAME, HOW)                                          \
    RLX_FN uvec4 NAME(const void* p) {                                  \
        uvec4 v;                                                        \
        asm("ld.global.nc." HOW "v4.u32 {%0, %1, %2, %3}, [%4];"        \
            : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)                \
            : "l"(p));                                                  \
        return v;                                                       \
    }
// Weights are read once: they do not take the place of x in the cache.
RLX_SIXTEEN(streamed, "L1::no_allocate.")
RLX_SIXTEEN(kept_sixteen, "")
#define STREAMED(row, at) streamed((row).words + (at) / 4u)
#define KEPT_SIXTEEN(p) kept_sixteen(p)
#endif
// The sum of a row of x that is TERMS rows of halves, those from `start` times TERMS on, by one thread.
RLX_FN float dot_of_terms(PTR(T) x, const Row row, const Planes at, const uint chunks, const uint start) {
    float sum = 0.0f;
    for (uint t = 0u; t < TERMS; t++) {
        const float dot = dot_of(x, row, at, chunks, start * TERMS + t * at.blocks * BLOCK);
        sum += t == 0u ? dot : dot * TERM;
    }
    return sum;
}
RLX_FN void store_sum(PTR(T) y, PTR(f32) scales, const uint row, const uint n, const uint column, const float sum) {
    if (TERMS == 2u) {
        STORE(f32, (float*)y, row * n + column, sum * LOAD(f32, scales, row));
    } else {
        STORE(T, y, row * n + column, sum);
    }
}

// Shared memory whose size is fixed at the launch, in units of 16 bytes; copies to it that are under way, in groups.
#ifdef RLX_ON_HOST
#define SHARED_UNITS(n) static uint4 units[n];
#define COPIES_END
#define COPIES_WAIT(n)
#else
#define SHARED_UNITS(n)              \
    extern __shared__ uint4 units[]; \
    extern "C" __device__ unsigned int rlx_dynamic_shared = (n) * 16u;
#define COPIES_END asm volatile("cp.async.commit_group;" ::: "memory");
#define COPIES_WAIT(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
#endif
// What the compiler does not compute anew before each use.
#ifdef RLX_ON_HOST
#define KEPT(v)
#define KEPT_PTR(p)
#define SET_ALL(matrix, w) SET_FRAG(matrix, w, w, w, w)
#else
#define KEPT(v) asm volatile("" : "+r"(v));
#define KEPT_PTR(p)                  \
    asm volatile("" : "+l"(p));      \
    __builtin_assume(__isGlobal(p));
// Sizes are below 2^31: their top bits make four registers of a number, different ones in each lane for all that the
// compiler knows.
#define TOP(size) ((size) + LANE >> 31)
#define SET_ALL(matrix, w) \
    SET_FRAG(matrix, (w) + TOP(n), (w) + TOP(blocks), (w) + TOP(pitch), (w) + TOP(m))
#endif
