// Units of sixteen bytes. LOAD_ONCE(p, i): unit i of what is read once, such as weights; on CUDA it leaves the caches near
// the multiprocessor to what is read again. unit_f32, unit_f16, unit_bf16(p, r, c, columns, pitch): the unit from (r, c)
// on of a matrix that cannot be read by units, zero beyond its columns. SYNC_WARP: the threads of a warp see each other's
// writes to shared memory, and need not wait for what they read from the device's.
#ifdef RLX_GLSL
#define LOAD_ONCE(p, i) ptr_uvec4(uvec2(p)).at[i]
#define SYNC_WARP \
    controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease)
#else
#define SYNC_WARP __syncwarp()
#define LOAD_ONCE(p, i) rlx_load_once((const uint4*)(p) + (i))
RLX_FN uint4 rlx_load_once(const uint4* p) {
#ifdef RLX_ON_HOST
    return *p;
#else
    uint4 v;
    // Volatile, as what BEGIN does is: the compiler keeps the order of such instructions alone, and an earlier kernel may
    // have written what is read here.
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(p));
    return v;
#endif
}
#endif
#ifndef UVEC4
#ifdef RLX_GLSL
#define UVEC4(a, b, c, d) uvec4(a, b, c, d)
#else
#define UVEC4(a, b, c, d) make_uint4(a, b, c, d)
#endif
#endif

RLX_FN uint least(const uint a, const uint b) { return a < b ? a : b; }
RLX_FN uint rlx_float_at(PTR(f32) p, const uint i, const bool inside) {
    uint w = 0u;
    if (inside) w = RLX_BITS(LOAD(f32, p, i));
    return w;
}
RLX_FN uvec4 unit_f32(PTR(f32) p, const uint r, const uint c, const uint columns, const uint pitch) {
    const uint i = r * pitch + c;
    return UVEC4(rlx_float_at(p, i, c < columns), rlx_float_at(p, i + 1u, c + 1u < columns),
                 rlx_float_at(p, i + 2u, c + 2u < columns), rlx_float_at(p, i + 3u, c + 3u < columns));
}
#define RLX_UNIT_OF_HALVES(T)                                                                                     \
    RLX_FN uint rlx_pair_##T(PTR(T) p, const uint i, const uint c, const uint columns) {                          \
        uint w = 0u;                                                                                              \
        if (c < columns) w = uint(p AT(i));                                                                       \
        if (c + 1u < columns) w |= uint(p AT(i + 1u)) << 16;                                                      \
        return w;                                                                                                 \
    }                                                                                                             \
    RLX_FN uvec4 unit_##T(PTR(T) p, const uint r, const uint c, const uint columns, const uint pitch) {           \
        const uint i = r * pitch + c;                                                                             \
        return UVEC4(rlx_pair_##T(p, i, c, columns), rlx_pair_##T(p, i + 2u, c + 2u, columns),                    \
                     rlx_pair_##T(p, i + 4u, c + 4u, columns), rlx_pair_##T(p, i + 6u, c + 6u, columns));         \
    }
RLX_UNIT_OF_HALVES(f16)
RLX_UNIT_OF_HALVES(bf16)
