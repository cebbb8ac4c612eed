// A tile of 16 x 16 pixels by a workgroup: the splats of its list blended front to back, a thread for each pixel.
// Splats go through shared memory some at a time; the workgroup ends when every pixel is finished. y is (height,
// width, 4): the colour, and the light that is left.
#include "splat_stage.h"

SHARED uint going;  // 1 + the place of the last stage that an unfinished pixel asked for

RLX_FN void splat_blend_body(PTR(T) splats, PTR(i32) ids, PTR(i32) ranges, PTR(T) y, const uint width,
                             const uint height, const uint across, const uint tiles, const uint n, const uint pairs) {
    if (GROUP >= tiles) return;
    const uint begin = bounded(LOAD(i32, ranges, GROUP), pairs), end = bounded(LOAD(i32, ranges, GROUP + 1u), pairs);
    const uint column = GROUP % across * TILE + THREAD % TILE, row = GROUP / across * TILE + THREAD / TILE;
    const bool inside = column < width && row < height;
    const REAL px = REAL(column) + 0.5f, py = REAL(row) + 0.5f;
    REAL light = inside ? 1.0f : 0.0f, red = 0.0f, green = 0.0f, blue = 0.0f;
    if (THREAD == 0u) going = 0u;
    for (uint at = begin; at < end; at += STAGED) {
        BARRIER;
        if (light >= STOP) going = at + 1u;
        stage(splats, ids, at, end, n, GROUP / across * TILE);
        BARRIER;
        if (going != at + 1u) break;
        const uint low = walked(0u, end - at), high = walked(32u, end - at);
        for (uint base = 0u; base < STAGED; base += 32u) {
            for (uint bits = base == 0u ? low : high; bits != 0u && light >= STOP; bits &= bits - 1u) {
                const uint i = base + LOWEST(bits);
                const QUAD a = first_of[i], b = second_of[i];
                const REAL alpha = limited(cover_at(a, b, px - a.x, py - a.y));
                if (alpha > 0.0f) {
                    const REAL weight = alpha * light;
                    red = FMA_IN(T, weight, b.w, red);
                    green = FMA_IN(T, weight, third_of[i].x, green);
                    blue = FMA_IN(T, weight, third_of[i].y, blue);
                    light *= 1.0f - alpha;
                }
            }
        }
    }
    if (!inside) return;
    PTR(T) to = SKIP(T, y, row * width + column, 4u);
    STORE(T, to, 0u, red);
    STORE(T, to, 1u, green);
    STORE(T, to, 2u, blue);
    STORE(T, to, 3u, light);
}
