// Matrix instructions of a warpgroup (four warps), compute capability 9.0 alone: 64 x 16 matrices of halves times 16 x
// N, N = 64 or 128, into sums in f32; each warp has 16 rows of them, spread over it as mma.h's are. Matrices lie in
// shared memory in panels: rows of 64 halves, 128 bytes, whose eight units change places with the row (unit c of row r
// lies at c ^ r % 8), panels beginning at multiples of 1024 bytes. Layouts: PTX ISA, wgmma.mma_async. The instructions
// run on their own: WG_READY before the first that reads registers or sums just written, WG_SENT after those that make
// a set, WG_WAIT(n) until at most n sets are on their way, and HOLD before sums of a set are read.
#ifndef RLX_WGMMA_H
#define RLX_WGMMA_H
// Where unit c of row r of a panel lies.
#define PANEL_UNIT(r, c) ((r) * 8u + (((c) ^ (r)) & 7u))
#ifdef RLX_ON_HOST
#define PANELS_IN_UNITS(n) static uint4 units[n];
#define WG_READY
#define WG_SENT
#define WG_WAIT(n)
#define COPIES_SEEN
#define HOLD(c, n)
#define HOLD_BITS(r, n)
#define WG_START (GROUP % 2u << 20)  // as in a cluster of two
#else
#define PANELS_IN_UNITS(n)                           \
    extern __shared__ __align__(1024) uint4 units[]; \
    extern "C" __device__ unsigned int rlx_dynamic_shared = (n) * 16u;
#define WG_READY asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#define WG_SENT asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#define WG_WAIT(n) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
// What this thread copied to shared memory is seen by instructions that follow the next barrier.
#define COPIES_SEEN asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#define HOLD(c, n) \
    UNROLL for (uint h = 0u; h < (n); h++) asm volatile("" : "+f"((c)[h])::"memory");
// The same of registers that instructions on their way read.
#define HOLD_BITS(r, n) \
    UNROLL for (uint h = 0u; h < (n); h++) asm volatile("" : "+r"((r)[h])::"memory");
#define WG_START ((uint)__cvta_generic_to_shared(units) >> 4)
#endif
// Where units[at] lies, in units. In a cluster an address also has the rank of its workgroup, above the 18 bits of
// shared memory, which a descriptor has no room for: it would change the distance of panels.
#define WG_PLACE(at) ((WG_START & 0x3fffu) + (at))
// Where a matrix lies: from units[at] on, its groups of eight rows 1024 bytes apart, its panels `panel` units.
#define WG_MATRIX(at, panel) ((rlx_u64)(1u << 30 | 64u) << 32 | (((panel) << 16) + WG_PLACE(at)))

#ifndef RLX_ON_HOST
#define RLX_WG_SUMS_64 \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
#define RLX_WG_SUMS_128 \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
#define RLX_WG_SUMS_256 \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
#define RLX_WG_4(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define RLX_WG_16(c, i) RLX_WG_4(c, i), RLX_WG_4(c, i + 4), RLX_WG_4(c, i + 8), RLX_WG_4(c, i + 12)
#define RLX_WG_OUT_64(c) RLX_WG_16(c, 0), RLX_WG_16(c, 16)
#define RLX_WG_OUT_128(c) RLX_WG_OUT_64(c), RLX_WG_16(c, 32), RLX_WG_16(c, 48)
// c = a b^T, or that and c if `more`: 64 x N, both in shared memory by rows.
#define RLX_WG_ROWS(N, A, B, MORE, H, TYPE)                                                                  \
    RLX_FN void rlx_wg_rows_##N##_##H(float* c, const rlx_u64 a, const rlx_u64 b, const uint more) {         \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " MORE ", 0;\n"                                      \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " " RLX_WG_SUMS_##N     \
                     A ", " B ", p, 1, 1, 0, 0;\n}"                                                          \
                     : RLX_WG_OUT_##N(c)                                                                     \
                     : "l"(a), "l"(b), "r"(more));                                                           \
    }
// c += a b: 64 x N, a in registers, b in shared memory by rows.
#define RLX_WG_COLUMNS(N, A0, A1, A2, A3, B, H, TYPE)                                                        \
    RLX_FN void rlx_wg_columns_##N##_##H(float* c, const uint* a, const rlx_u64 b) {                         \
        asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                              \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " " RLX_WG_SUMS_##N     \
                     "{" A0 ", " A1 ", " A2 ", " A3 "}, " B ", p, 1, 1, 1;\n}"                               \
                     : RLX_WG_OUT_##N(c)                                                                     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                  \
    }
// c += a b^T, of tf32: 64 x N, a in registers (eight terms, as mma.h's), b in shared memory by rows.
#define RLX_WG_HELD(N, A0, A1, A2, A3, B)                                                                    \
    RLX_FN void rlx_wg_held_##N##_tf32(float* c, const uint* a, const rlx_u64 b) {                           \
        asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                              \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32 " RLX_WG_SUMS_##N              \
                     "{" A0 ", " A1 ", " A2 ", " A3 "}, " B ", p, 1, 1;\n}"                                  \
                     : RLX_WG_OUT_##N(c)                                                                     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                  \
    }
RLX_WG_HELD(64, "%32", "%33", "%34", "%35", "%36")
RLX_WG_HELD(128, "%64", "%65", "%66", "%67", "%68")
RLX_WG_ROWS(64, "%32", "%33", "%34", f16, "f16")
RLX_WG_ROWS(64, "%32", "%33", "%34", bf16, "bf16")
RLX_WG_ROWS(128, "%64", "%65", "%66", f16, "f16")
RLX_WG_ROWS(128, "%64", "%65", "%66", bf16, "bf16")
RLX_WG_COLUMNS(64, "%32", "%33", "%34", "%35", "%36", f16, "f16")
RLX_WG_COLUMNS(64, "%32", "%33", "%34", "%35", "%36", bf16, "bf16")
RLX_WG_COLUMNS(128, "%64", "%65", "%66", "%67", "%68", f16, "f16")
RLX_WG_COLUMNS(128, "%64", "%65", "%66", "%67", "%68", bf16, "bf16")
#endif
#define RLX_WG_NAME(KIND, n, H) rlx_wg_##KIND##_##n##_##H
#define RLX_WG_CALL(KIND, n, H) RLX_WG_NAME(KIND, n, H)
#endif
