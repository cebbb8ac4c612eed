// What blending and its gradient share, in the dtype T: some splats of a tile's list in shared memory, and what a
// splat covers of a pixel. 32 neighbouring threads, a warp, have a strip of two rows of the tile's pixels. Where they
// exchange registers (WARPS), each warp walks over the splats that may touch its strip, otherwise over all.
#include "near_exp.h"
#include "splat.h"

#define REAL VAL(T)
#define STAGED 64u  // splats in shared memory
#define ALPHA_MIN_f32 (1.0f / 255.0f)
#define ALPHA_MIN_f64 RLX_D64(0x3f701010u, 0x10101010u)
#define ALPHA_MIN RLX_JOIN(ALPHA_MIN_, T)
#define ALPHA_MAX (127.0f / 128.0f)
#define FARTHEST 150.0f
#define STOP_f32 1e-4f
#define STOP_f64 RLX_D64(0x3f1a36e2u, 0xeb1c432du)
#define STOP RLX_JOIN(STOP_, T)
#ifdef RLX_GLSL
#define QUAD_f64 dvec4
#define MAKE_QUAD_f64(a, b, c, d) dvec4(a, b, c, d)
#else
struct Quad64 { double x, y, z, w; };
#define QUAD_f64 Quad64
#define MAKE_QUAD_f64(a, b, c, d) Quad64{a, b, c, d}
#endif
#define QUAD_f32 vec4
#define MAKE_QUAD_f32(a, b, c, d) VEC4(a, b, c, d)
#define QUAD RLX_JOIN(QUAD_, T)
#define MAKE_QUAD(a, b, c, d) RLX_JOIN(MAKE_QUAD_, T)(a, b, c, d)

#ifdef RLX_GLSL
#ifdef RLX_SUBGROUPS
#extension GL_KHR_shader_subgroup_ballot : require
#define WARPS (SUBGROUP >= 32u)
#define WARP_BALLOT(yes) (SUBGROUP >= 32u ? subgroupBallot(yes)[THREAD % SUBGROUP / 32u] : 0u)
#define WARP_SHUFFLE(v, step) subgroupShuffleXor(v, step)
#else
#define WARPS false
#define WARP_BALLOT(yes) 0u
#endif
#define LOWEST(bits) uint(findLSB(bits))
#define HIGHEST(bits) uint(findMSB(bits))
#else
#define WARPS true
#define WARP_BALLOT(yes) __ballot_sync(0xffffffffu, yes)
#define WARP_SHUFFLE(v, step) __shfl_xor_sync(0xffffffffu, v, step)
#define LOWEST(bits) UINT(__ffs(int(bits)) - 1)
#define HIGHEST(bits) UINT(31 - __clz(int(bits)))
#endif

SHARED QUAD first_of[STAGED];   // x, y, xx, xy
SHARED QUAD second_of[STAGED];  // yy, opacity, reach, red
SHARED QUAD third_of[STAGED];   // green, blue
SHARED uint strips_of[STAGED];  // a bit for each strip that the splat may touch

// exp(-q / 2) for q from 0 to FARTHEST.
RLX_FN float fall_f32(const float q) { return near_exp(-0.5f * q); }
RLX_FN double fall_f64(const double q) { return d_exp(RLX_D(-0.5) * q); }

// 1 / a for a from 1 / 255 on, within an ULP or two. A language's own division of f64 may be as inexact as one of f32.
RLX_FN float inverse_f32(const float a) {
    const float near = RLX_QUICK_RECIP(a);
    return FMA(near, FMA(-a, near, 1.0f), near);
}
RLX_FN double inverse_f64(const double a) { return d_div(RLX_D(1.0), a); }
#define INVERSE(a) RLX_JOIN(inverse_, T)(a)

// The strips that pixels with an exponent of at most `reach` lie in, of the tile whose first row is `top`: along y
// these pixels are within sqrt(reach xx / (xx yy - xy^2)) of the centre. All, where rounding may leave nothing of the
// difference.
RLX_FN uint strips(const float y, const float xx, const float xy, const float yy, const float reach, const float top) {
    const float product = xx * yy, square = xy * xy, difference = (product - square) - 1e-6f * (product + square);
    const float by = sqrt(reach * xx / difference) * 1.001f + 0.01f;
    if (!(difference > 0.0f && by < 1e6f)) return 255u;
    const float low = (y - by - top - 0.5f) * 0.5f, high = (y + by - top - 0.5f) * 0.5f;
    if (!(high >= 0.0f && low < 8.0f)) return 0u;
    const uint first = low > 0.0f ? UINT(low) : 0u, last = high < 7.0f ? UINT(high) : 7u;
    return (255u << first) & (255u >> (7u - last));
}

// Splats from place `at` of the lists on: STAGED of them, or those before `end`. A place without a splat gets one that
// no pixel sees. Where an exponent exceeds a splat's reach, 2 log(255 opacity) and some more for rounding, it covers
// less than ALPHA_MIN; nearer than that alpha itself is compared. No reach exceeds FARTHEST.
RLX_FN void stage(PTR(T) splats, PTR(i32) ids, const uint at, const uint end, const uint n, const uint top) {
    if (THREAD >= STAGED) return;
    strips_of[THREAD] = 0u;
    if (at + THREAD >= end) return;
    const int id = LOAD(i32, ids, at + THREAD);
    QUAD a = MAKE_QUAD(0.0f, 0.0f, 0.0f, 0.0f), b = a, c = a;
    if (id >= 0 && UINT(id) < n) {
        PTR(T) p = SKIP(T, splats, UINT(id), FIELDS);
        a = MAKE_QUAD(LOAD(T, p, 0u), LOAD(T, p, 1u), LOAD(T, p, 2u), LOAD(T, p, 3u));
        const REAL opacity = LOAD(T, p, 5u);
        const float reach = p_min_f(2.0f * p_log_f(float(opacity) * 255.0f) + 0.01f, FARTHEST);
        b = MAKE_QUAD(LOAD(T, p, 4u), opacity, reach, LOAD(T, p, 6u));
        c = MAKE_QUAD(LOAD(T, p, 7u), LOAD(T, p, 8u), 0.0f, 0.0f);
        strips_of[THREAD] = strips(float(a.y), float(a.z), float(a.w), float(b.x), reach, float(top));
    }
    first_of[THREAD] = a;
    second_of[THREAD] = b;
    third_of[THREAD] = c;
}

// Which of the 32 staged splats from `first` on this thread's warp walks over, a bit each.
RLX_FN uint walked(const uint first, const uint count) {
    if (WARPS) return WARP_BALLOT((strips_of[first + THREAD % 32u] >> (THREAD / 32u) & 1u) != 0u);
    const uint left = count > first ? count - first : 0u;
    return left >= 32u ? 0xffffffffu : (1u << left) - 1u;
}

// What a splat (yy, opacity, reach, ·) covers of a pixel with the exponent q, before the limit ALPHA_MAX; 0 where the
// pixel skips it.
RLX_FN REAL cover(const QUAD second, const REAL q) {
    if (!(q >= 0.0f && q <= second.z)) return 0.0f;
    const REAL alpha = second.y * RLX_JOIN(fall_, T)(q);
    return alpha >= ALPHA_MIN ? alpha : 0.0f;
}
RLX_FN REAL limited(const REAL alpha) { return alpha < ALPHA_MAX ? alpha : ALPHA_MAX; }

// What a splat covers of the pixel at a distance (dx, dy) from its centre.
RLX_FN REAL cover_at(const QUAD first, const QUAD second, const REAL dx, const REAL dy) {
    const REAL u = FMA_IN(T, first.z, dx, first.w * dy), v = FMA_IN(T, first.w, dx, second.x * dy);
    return cover(second, FMA_IN(T, u, dx, v * dy));
}
