// Matrix instructions for GLSL: 16 x 16 matrices of halves spread over a subgroup of 32, loaded from rows of 16-byte units
// in shared memory (`units`), multiplied into sums in f32. rlx/backends/device_code/bodies/mma.h is the same for CUDA.
// Follows SPV_KHR_cooperative_matrix and SPV_KHR_bfloat16.
#ifndef RLX_MMA_GLSL
#define RLX_MMA_GLSL
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_bfloat16 : require
#define UVEC4(a, b, c, d) uvec4(a, b, c, d)
#define LOAD_UNIT(p, i) ptr_uvec4(uvec2(p)).at[i]
#define WARP gl_SubgroupID
#define LANE gl_SubgroupInvocationID
struct RLX_EIGHT {
    vec4 lo, hi;
};

// Two halves in a word, each rounded to nearest even, and their values.
uint pair_bits_f16(const float x, const float y) { return p_f16_bits(x) | p_f16_bits(y) << 16; }
float value_f16(const uint h) { return p_f16_value(h); }
uint pair_bits_bf16(const float x, const float y) { return p_bf16_bits(x) | p_bf16_bits(y) << 16; }
float value_bf16(const uint h) { return p_bf16_value(h); }
#define pair_bits(x, y) RLX_JOIN(pair_bits_, MATRIX)(x, y)
#define low_value(w) RLX_JOIN(value_, MATRIX)((w) & 0xffffu)
#define high_value(w) RLX_JOIN(value_, MATRIX)((w) >> 16)

#define element_f16 float16_t
#define element_bf16 bfloat16_t
#define MATRIX_A coopmat<RLX_JOIN(element_, MATRIX), gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define MATRIX_B coopmat<RLX_JOIN(element_, MATRIX), gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>

#define MMA_ASYNC 0u
#define COPY_UNIT(to, p, i)
#define COPIES_DONE

// The matrix whose first unit is units[at], rows `row` units apart; TRANSPOSED: as it lies there, rows and columns swapped.
#define LOAD_FRAG(frag, at, row, TRANSPOSED)                                        \
    if (TRANSPOSED)                                                                 \
        coopMatLoad(frag, units, at, row, gl_CooperativeMatrixLayoutColumnMajor);   \
    else                                                                            \
        coopMatLoad(frag, units, at, row, gl_CooperativeMatrixLayoutRowMajor);
#define LOAD_A(frag, at, row, TRANSPOSED) LOAD_FRAG(frag, at, row, TRANSPOSED)
#define LOAD_B(frag, at, row, TRANSPOSED) LOAD_FRAG(frag, at, row, TRANSPOSED)
#define MULTIPLY(sums, ma, mb) sums = coopMatMulAdd(ma, mb, sums);
#define SUMS_ZERO(sums) sums = SUMS(0.0f);
#define SUMS_ADD(to, sums) to = to + sums;
#define STORE_SUMS(sums, at, row) coopMatStore(sums, units, at, row, gl_CooperativeMatrixLayoutRowMajor);
#endif
