// What attention by matrix instructions needs beyond mma.h, for CUDA: fast functions whose errors are small beside the
// rounding of the weights, shared memory of a size given at the launch, shuffles. shaders/include/attention_words.glsl
// defines the same for GLSL.
#ifndef RLX_ATTENTION_WORDS_H
#define RLX_ATTENTION_WORDS_H
#ifdef RLX_ON_HOST
#define UNITS(n) static uint4 units[n];
#define EXP2(x) std::exp2(x)
#define QUICK_RECIP(x) (1.0f / (x))
#define WARP_MEET rlx_meet(-8)
#define two_halves(x, y) pair_bits(x, y)
#else
#define UNITS(n)                     \
    extern __shared__ uint4 units[]; \
    extern "C" __device__ unsigned int rlx_dynamic_shared = (n) * 16u;
RLX_FN uint two_halves_f16(const float x, const float y) {
    uint w;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(y), "f"(x));
    return w;
}
#define two_halves_bf16(x, y) pair_bits_bf16(x, y)
#define two_halves(x, y) RLX_JOIN(two_halves_, MATRIX)(x, y)
// Weights below 2^-126 of the greatest are flushed to 0, which saves three of four instructions.
#define EXP2(x) RLX_FLUSHED_EXP2(x)
#define QUICK_RECIP(x) RLX_QUICK_RECIP(x)
#define WARP_MEET __syncwarp()
#endif
// units[to] = unit i of p if `there`, else zero; without a branch, and without reading in the second case.
#ifdef RLX_ON_HOST
#define COPY_OR_ZERO(to, p, i, there) units[to] = (there) ? ((const uint4*)(p))[i] : make_uint4(0u, 0u, 0u, 0u);
#else
RLX_FN void rlx_copy_or_zero(uint4* to, const uint4* from, const uint nbytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"((uint)__cvta_generic_to_shared(to)), "l"(from), "r"(nbytes)
                 : "memory");
}
#define COPY_OR_ZERO(to, p, i, there) \
    rlx_copy_or_zero(&units[to], (const uint4*)(p) + (i), (there) ? 16u : 0u);
#endif
#define GREATER(x, y) fmaxf(x, y)  // one instruction; it drops a NaN, which the sum restores
#define BALLOT(yes) __ballot_sync(0xffffffffu, yes)
#define SHUFFLE(v, lane) __shfl_xor_sync(0xffffffffu, v, lane)

// Two neighbours of a row, from an even column on, where the row is aligned.
#define store_two_f32(p, c, a, b) ((float2*)(p))[(c) / 2u] = make_float2(a, b)
#define store_two_f16(p, c, a, b) ((uint*)(p))[(c) / 2u] = two_halves(a, b)
#define store_two_bf16(p, c, a, b) ((uint*)(p))[(c) / 2u] = two_halves(a, b)
#define STORE_TWO(p, c, a, b) RLX_JOIN(store_two_, O)(p, c, a, b)

// The sums whose first unit is units[at], rows `row` units apart; and their product, element by element.
#define LOAD_SUMS(sums, at, row)                                                           \
    {                                                                                      \
        const float2* from = (const float2*)&units[at] + LANE / 4u * (row) * 2u + LANE % 4u; \
        const float2 w0 = from[0], w1 = from[(row) * 16u];                                 \
        const float2 w2 = from[4], w3 = from[(row) * 16u + 4u];                            \
        sums.c[0] = w0.x;                                                                  \
        sums.c[1] = w0.y;                                                                  \
        sums.c[2] = w1.x;                                                                  \
        sums.c[3] = w1.y;                                                                  \
        sums.c[4] = w2.x;                                                                  \
        sums.c[5] = w2.y;                                                                  \
        sums.c[6] = w3.x;                                                                  \
        sums.c[7] = w3.y;                                                                  \
    }
#define SUMS_TIMES(to, sums) \
    UNROLL for (int e = 0; e < 8; e++) to.c[e] *= sums.c[e];
#endif
