// Eight neighbours of 16 bits at once, for the templates of tree kernels: sixteen bytes and the values in them.
#define TREE_EIGHT(T, V)                                                                          \
    uvec4 load8_##T(const ptr_##T p, const uint q) { return ptr_uvec4(uvec2(p)).at[q]; }   \
    V low4_##T(const uvec4 w) { return four_##T(w.xy); }                                          \
    V high4_##T(const uvec4 w) { return four_##T(w.zw); }                                         \
    void store8_##T(const ptr_##T p, const uint q, const V a, const V b) {                        \
        ptr_uvec4(uvec2(p)).at[q] = words_##T(a, b);                                              \
    }
vec4 four_f16(const uvec2 w) { return vec4(unpackHalf2x16(w.x), unpackHalf2x16(w.y)); }
vec4 four_bf16(const uvec2 w) {
    return uintBitsToFloat(uvec4(w.x << 16, w.x & 0xffff0000u, w.y << 16, w.y & 0xffff0000u));
}
ivec4 four_u16(const uvec2 w) { return ivec4(w.x & 0xffffu, w.x >> 16, w.y & 0xffffu, w.y >> 16); }
uvec4 words_u16(const ivec4 a, const ivec4 b) {
    return (uvec4(a.xz, b.xz) & 0xffffu) | uvec4(a.yw, b.yw) << 16;
}
TREE_EIGHT(f16, vec4)
TREE_EIGHT(bf16, vec4)
TREE_EIGHT(u16, ivec4)
