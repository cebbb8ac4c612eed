// The last of several workgroups finds what all of them wrote. ARRIVE(counter, i, n, last): all threads of a workgroup
// call it when what they have written with SHOW is written; `last`, in shared memory, is then true in the last of n
// workgroups alone, and what the others wrote may be read with SEEN. The counter is 0 before and after. No workgroup waits
// for another, so that nothing depends on how many the device runs at once.
#ifdef RLX_GLSL
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer rlx_shown_f32 { float at[]; };
#define SHOW(p, i, x) rlx_shown_f32(uvec2(p)).at[i] = (x)
#define SEEN(p, i) rlx_shown_f32(uvec2(p)).at[i]
#define RLX_RELEASE memoryBarrierBuffer()
#define RLX_ACQUIRE memoryBarrierBuffer()
#define RLX_COUNT(p, i) atomicAdd(p.at[i], 1u)
#else
#define SHOW(p, i, x) (p)[i] = (x)
#define SEEN(p, i) (p)[i]
#ifdef RLX_ON_HOST
#define RLX_RELEASE
#define RLX_ACQUIRE
#else
#define RLX_RELEASE __threadfence()
#define RLX_ACQUIRE __threadfence()
#endif
#define RLX_COUNT(p, i) atomicAdd((p) + (i), 1u)
#endif
// The first barrier brings the writes of all threads before the count of one.
#define ARRIVE(counter, i, n, last)                        \
    RLX_RELEASE;                                           \
    BARRIER;                                               \
    if (THREAD == 0u) {                                    \
        last = RLX_COUNT(counter, i) == (n) - 1u;          \
        if (last) counter AT(i) = 0u;                      \
    }                                                      \
    BARRIER;                                               \
    RLX_ACQUIRE;
