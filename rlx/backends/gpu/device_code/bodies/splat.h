// What the kernels of Gaussian splatting share: a splat's fields in shared memory, and what it covers of a pixel.
#ifndef RLX_SPLAT_H
#define RLX_SPLAT_H
#include "near_exp.h"
#define TILE 16u
#define FIELDS 9u
#define MOST 0x7fffffffu
#define STAGED 64u  // splats in shared memory
#define ALPHA_MIN (1.0f / 255.0f)
#define ALPHA_MAX (127.0f / 128.0f)
#define STOP 1e-4f

RLX_FN uint plus(const uint a, const uint b) { return a + b < MOST ? a + b : MOST; }
RLX_FN uint least(const uint a, const uint b) { return a < b ? a : b; }
RLX_FN uint bounded(const int a, const uint high) { return a < 0 ? 0u : least(UINT(a), high); }

// The exponent at a distance (dx, dy) from the centre of a splat (·, ·, xx, xy), (yy, …).
RLX_FN float exponent(const vec4 first, const vec4 second, const float dx, const float dy) {
    return FMA(first.z * dx, dx, FMA(2.0f * first.w * dx, dy, second.x * dy * dy));
}

// Where exponents exceed this, alpha is below ALPHA_MIN; what rounding decides is left to alpha itself.
RLX_FN float reach(const float opacity) { return 2.0f * p_log_f(opacity * 255.0f) + 0.01f; }

// What a splat covers of a pixel before the limit ALPHA_MAX; 0 where the pixel skips it.
RLX_FN float cover(const vec4 first, const vec4 second, const float dx, const float dy) {
    const float q = exponent(first, second, dx, dy);
    if (!(q >= 0.0f && q <= second.z)) return 0.0f;
    const float alpha = second.y * (q < 170.0f ? near_exp(-0.5f * q) : p_exp_f(-0.5f * q));
    return alpha >= ALPHA_MIN ? alpha : 0.0f;
}
#endif
