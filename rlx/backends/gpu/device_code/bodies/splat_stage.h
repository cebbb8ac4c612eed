// What blending and its gradient share, in the dtype T: some splats of a tile's list in shared memory, and what a splat
// covers of a pixel.
#include "near_exp.h"
#include "splat.h"

#define REAL VAL(T)
#define STAGED 64u  // splats in shared memory
#define ALPHA_MIN_f32 (1.0f / 255.0f)
#define ALPHA_MIN_f64 RLX_D64(0x3f701010u, 0x10101010u)
#define ALPHA_MIN RLX_JOIN(ALPHA_MIN_, T)
#define ALPHA_MAX (127.0f / 128.0f)
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

SHARED QUAD first_of[STAGED];   // x, y, xx, xy
SHARED QUAD second_of[STAGED];  // yy, opacity, reach, red
SHARED QUAD third_of[STAGED];   // green, blue

// exp(-q / 2) for q >= 0.
RLX_FN float fall_f32(const float q) { return q < 170.0f ? near_exp(-0.5f * q) : p_exp_f(-0.5f * q); }
RLX_FN double fall_f64(const double q) { return d_exp(RLX_D(-0.5) * q); }

// 1 / a for an ordinary a: a language's own division of f64 may be as inexact as one of f32.
RLX_FN float inverse_f32(const float a) { return 1.0f / a; }
RLX_FN double inverse_f64(const double a) { return d_div(RLX_D(1.0), a); }
#define INVERSE(a) RLX_JOIN(inverse_, T)(a)

// Splats from place `at` of the lists on: STAGED of them, or those before `end`. A place without a splat gets one that no
// pixel sees. Where an exponent exceeds a splat's reach, 2 log(255 opacity) and some more for rounding, it covers less
// than ALPHA_MIN; nearer than that alpha itself is compared.
RLX_FN void stage(PTR(T) splats, PTR(i32) ids, const uint at, const uint end, const uint n) {
    if (THREAD < STAGED && at + THREAD < end) {
        const int id = LOAD(i32, ids, at + THREAD);
        QUAD a = MAKE_QUAD(0.0f, 0.0f, 0.0f, 0.0f), b = a, c = a;
        if (id >= 0 && UINT(id) < n) {
            PTR(T) p = SKIP(T, splats, UINT(id), FIELDS);
            a = MAKE_QUAD(LOAD(T, p, 0u), LOAD(T, p, 1u), LOAD(T, p, 2u), LOAD(T, p, 3u));
            const REAL opacity = LOAD(T, p, 5u);
            const float reach = 2.0f * p_log_f(float(opacity) * 255.0f) + 0.01f;
            b = MAKE_QUAD(LOAD(T, p, 4u), opacity, reach, LOAD(T, p, 6u));
            c = MAKE_QUAD(LOAD(T, p, 7u), LOAD(T, p, 8u), 0.0f, 0.0f);
        }
        first_of[THREAD] = a;
        second_of[THREAD] = b;
        third_of[THREAD] = c;
    }
}

// What a splat covers of the pixel at a distance (dx, dy) from its centre, before the limit ALPHA_MAX; 0 where the pixel
// skips it.
RLX_FN REAL cover(const QUAD first, const QUAD second, const REAL dx, const REAL dy) {
    const REAL q = FMA_IN(T, first.z * dx, dx, FMA_IN(T, 2.0f * first.w * dx, dy, second.x * dy * dy));
    if (!(q >= 0.0f && q <= second.z)) return 0.0f;
    const REAL alpha = second.y * RLX_JOIN(fall_, T)(q);
    return alpha >= ALPHA_MIN ? alpha : 0.0f;
}
RLX_FN REAL limited(const REAL alpha) { return alpha < ALPHA_MAX ? alpha : ALPHA_MAX; }
