// What attention by matrix instructions needs beyond mma.glsl, for GLSL; bodies/attention_words.h is the same for CUDA.
#ifndef RLX_ATTENTION_WORDS_GLSL
#define RLX_ATTENTION_WORDS_GLSL
#extension GL_KHR_shader_subgroup_shuffle : require
#define UNITS(n) shared uvec4 units[n];
#define EXP2(x) exp2(x)
#define QUICK_RECIP(x) (1.0f / (x))
#define WARP_MEET                \
    subgroupMemoryBarrierShared(); \
    subgroupBarrier()
// units[to] = unit i of p, which is read only where it is there, or zero.
#define COPY_OR_ZERO(to, p, i, there)     \
    if (there)                            \
        units[to] = LOAD_UNIT(p, i);      \
    else                                  \
        units[to] = uvec4(0u);
#define two_halves(x, y) pair_bits(x, y)
#define SHUFFLE(v, lane) subgroupShuffleXor(v, lane)

// The sums whose first unit is units[at], rows `row` units apart; and their product, element by element.
#define LOAD_SUMS(sums, at, row) coopMatLoad(sums, units, at, row, gl_CooperativeMatrixLayoutRowMajor);
#define SUMS_TIMES(to, sums) to = to * sums;
#endif
