// BEGIN: what follows may read what earlier kernels wrote. A kernel may be launched while the one before still runs: it
// lets the next one take its place as early, and waits there until all that was launched before is done. On CUDA it is the
// first instruction of every kernel, except of bodies that are declared to say it themselves. PREFETCH(p, i): brings unit
// i of 16 bytes into the device's cache, where that can be asked for; it may stand before BEGIN. PEEK(p, i): an i32 that
// may be old before BEGIN, good for choosing what to bring.
#ifndef RLX_BEGIN_H
#define RLX_BEGIN_H
#ifdef RLX_GLSL
#define BEGIN
#define PREFETCH(p, i)
#define PEEK(p, i) (p).at[i]
#else
#define BEGIN rlx_begin()
#define PREFETCH(p, i) rlx_prefetch((const uint4*)(p) + (i));
#define PEEK(p, i) rlx_peek((p) + (i))
RLX_FN void rlx_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
RLX_FN int rlx_peek(const int* p) {
#ifdef __CUDA_ARCH__
    int v;
    asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
#else
    return *p;
#endif
}
RLX_FN void rlx_prefetch(const uint4* p) {
#ifdef __CUDA_ARCH__
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#endif
}
#endif
#endif
