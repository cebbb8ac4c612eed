// Dot products of signed bytes, four in a word. DOT: whether SPIR-V has them as an instruction ("packed"), or products
// are added up one by one ("plain").
#ifndef RLX_GLSL
#define DOT4(a, b, c) __dp4a((int)(a), (int)(b), c)
#define MAKE_UVEC4(a, b, c, d) make_uint4(a, b, c, d)
#define SIXTEEN_AT(p, i) ((const uint4*)(p))[i]
#else
#ifdef DOT_packed
#extension GL_EXT_integer_dot_product : require
#define DOT4(a, b, c) (dotPacked4x8EXT(int(a), int(b)) + (c))
#else
#define SIGNED_BYTE(u, i) bitfieldExtract(int(u), 8 * (i), 8)
#define DOT4(a, b, c)                                                                        \
    (SIGNED_BYTE(a, 0) * SIGNED_BYTE(b, 0) + SIGNED_BYTE(a, 1) * SIGNED_BYTE(b, 1) +         \
     SIGNED_BYTE(a, 2) * SIGNED_BYTE(b, 2) + SIGNED_BYTE(a, 3) * SIGNED_BYTE(b, 3) + (c))
#endif
#define MAKE_UVEC4(a, b, c, d) uvec4(a, b, c, d)
#define SIXTEEN_AT(p, i) ptr_uvec4(uvec2(p)).at[i]
#endif
#define DOT16(a, b) DOT4(a.x, b.x, DOT4(a.y, b.y, DOT4(a.z, b.z, DOT4(a.w, b.w, 0))))
