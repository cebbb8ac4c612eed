// Matrix instructions for CUDA: 16 x 16 matrices of halves, or 16 x 8 ones of tf32, spread over a warp, loaded from rows
// of 16-byte units in shared memory (`units`), multiplied into sums in f32. shaders/include/mma.glsl is the same for GLSL,
// of halves. Layouts: PTX ISA, ldmatrix, mma.m16n8k16 and mma.m16n8k8; compute capability 8.0 or newer. Those of tf32 are
// loaded as halves are, but not TRANSPOSED as A or otherwise as B.
#ifndef RLX_MMA_H
#define RLX_MMA_H
#define UVEC4(a, b, c, d) make_uint4(a, b, c, d)
#define LOAD_UNIT(p, i) (((const uint4*)(p))[i])
#define WARP (THREAD / 32u)
#define LANE (THREAD % 32u)
struct RLX_EIGHT {
    vec4 lo, hi;
};

// Two halves in a word, each rounded to nearest even, and their values.
RLX_FN uint pair_bits_f16(const float x, const float y) { return f16_bits(x) | f16_bits(y) << 16; }
RLX_FN float value_f16(const uint h) { return p_f16_value(h); }
RLX_FN uint pair_bits_bf16(const float x, const float y) {
#ifdef RLX_ON_HOST
    return bf16_bits(x) | bf16_bits(y) << 16;
#else
    uint w;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(y), "f"(x));
    return w;
#endif
}
RLX_FN float value_bf16(const uint h) { return bf16_value(h); }
#define pair_bits(x, y) RLX_JOIN(pair_bits_, MATRIX)(x, y)
#define low_value(w) RLX_JOIN(value_, MATRIX)((w) & 0xffffu)
#define high_value(w) RLX_JOIN(value_, MATRIX)((w) >> 16)

struct Matrix {
    uint r[4];
};
struct Sums {
    float c[8];
};
#define MATRIX_A Matrix
#define MATRIX_B Matrix
#define SUMS Sums

#ifndef RLX_ON_HOST
#define MMA_ASYNC 1u
// Four 8 x 8 matrices, whose rows the lanes point to in turn.
RLX_FN void rlx_ldmatrix(uint* r, const uint4* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint)__cvta_generic_to_shared(row)));
}
RLX_FN void rlx_ldmatrix_trans(uint* r, const uint4* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint)__cvta_generic_to_shared(row)));
}
#define RLX_MMA(NAME, TERMS, TYPE)                                                                            \
    RLX_FN void NAME(float* c, const uint* a, const uint* b) {                                                \
        asm volatile("mma.sync.aligned.m16n8k" TERMS ".row.col.f32." TYPE "." TYPE                            \
                     ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                   \
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                         \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                     \
    }
RLX_MMA(rlx_mma_f16, "16", "f16")
RLX_MMA(rlx_mma_bf16, "16", "bf16")
RLX_MMA(rlx_mma_tf32, "8", "tf32")
RLX_FN void rlx_copy_unit(uint4* to, const uint4* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :
                 : "r"((uint)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
}
#define COPIES_DONE asm volatile("cp.async.wait_all;" ::: "memory");
#else
#define MMA_ASYNC 1u
#define rlx_copy_unit(to, from) *(to) = *(from)
#define COPIES_DONE
#endif
#define COPY_UNIT(to, p, i) rlx_copy_unit(&units[to], (const uint4*)(p) + (i));

// The matrix whose first unit is units[at], rows `row` units apart; TRANSPOSED: as it lies there, rows and columns
// swapped.
#define LOAD_A(frag, at, row, TRANSPOSED)                                                                     \
    if (TRANSPOSED)                                                                                           \
        rlx_ldmatrix_trans(frag.r, &units[(at) + (LANE / 16u * 8u + LANE % 8u) * (row) + LANE / 8u % 2u]);    \
    else                                                                                                      \
        rlx_ldmatrix(frag.r, &units[(at) + LANE % 16u * (row) + LANE / 16u]);
#define LOAD_B(frag, at, row, TRANSPOSED)                                                                     \
    if (TRANSPOSED)                                                                                           \
        rlx_ldmatrix(frag.r, &units[(at) + (LANE / 16u * 8u + LANE % 8u) * (row) + LANE / 8u % 2u]);          \
    else                                                                                                      \
        rlx_ldmatrix_trans(frag.r, &units[(at) + LANE % 16u * (row) + LANE / 16u]);
#define MULTIPLY(sums, ma, mb) MULTIPLY_INTO((sums).c, ma, mb)
#define MULTIPLY_INTO(c, ma, mb)                                                                              \
    RLX_JOIN(rlx_mma_, MATRIX)(c, (ma).r, (mb).r);                                                            \
    RLX_JOIN(rlx_mma_, MATRIX)((c) + 4, (ma).r, (mb).r + 2);
#define SUMS_ZERO(sums) \
    UNROLL for (int e = 0; e < 8; e++) sums.c[e] = 0.0f;
#define SUMS_ADD(to, sums) \
    UNROLL for (int e = 0; e < 8; e++) to.c[e] += sums.c[e];
#define STORE_SUMS(sums, at, row)                                                                             \
    {                                                                                                         \
        float2* to = (float2*)&units[at] + LANE / 4u * (row) * 2u + LANE % 4u;                                \
        to[0] = make_float2(sums.c[0], sums.c[1]);                                                            \
        to[(row) * 16u] = make_float2(sums.c[2], sums.c[3]);                                                  \
        to[4] = make_float2(sums.c[4], sums.c[5]);                                                            \
        to[(row) * 16u + 4u] = make_float2(sums.c[6], sums.c[7]);                                             \
    }
#endif
