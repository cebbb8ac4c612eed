// Loads of 16 bytes, a unit, that are outstanding while a kernel computes. In CUDA they are asynchronous copies into
// `units`, a ring in shared memory whose size is fixed at the launch, so that they occupy no registers; in GLSL they wait
// in registers. LOAD_AHEAD(to, at, p, i, there) begins to load unit i of p, as units[at] or into the register `to`; where
// it is not `there`, units[at] becomes zero, and `to` is unspecified. VALUE_AHEAD takes the given unit instead.
// LOADS_END closes a group of such loads, and LOADS_WAIT(n) waits until at most the last n groups are outstanding.
#ifdef RLX_GLSL
#define LOAD_AHEAD(to, at, p, i, there) to = LOAD_ONCE(p, i);
#define VALUE_AHEAD(to, at, v, there) to = v;
#define LOADS_END
#define LOADS_WAIT(n)
#else
#define VALUE_AHEAD(to, at, v, there) units[at] = (there) ? v : make_uint4(0u, 0u, 0u, 0u);
#define LOAD_AHEAD(to, at, p, i, there) rlx_load_ahead(&units[at], (const uint4*)(p) + (i), there);
#ifdef RLX_ON_HOST
#define UNITS(n) static uint4 units[n];
#else
#define UNITS(n)                     \
    extern __shared__ uint4 units[]; \
    extern "C" __device__ unsigned int rlx_dynamic_shared = (n) * 16u;
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
RLX_FN void rlx_load_ahead(uint4* to, const uint4* from, const bool there) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :
                 : "r"((uint)__cvta_generic_to_shared(to)), "l"(from), "r"(there ? 16u : 0u)
                 : "memory");
}
#define LOADS_END asm volatile("cp.async.commit_group;" ::: "memory");
#define LOADS_WAIT(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
#else
RLX_FN void rlx_load_ahead(uint4* to, const uint4* from, const bool there) {
    *to = there ? *from : make_uint4(0u, 0u, 0u, 0u);
}
#define LOADS_END
#define LOADS_WAIT(n)
#endif
#endif
