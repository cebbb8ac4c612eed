// Some splats of a tile's list in shared memory, from place `at` on: STAGED of them, or those before `end`. A place
// without a splat gets one that no pixel sees.
#include "splat.h"

SHARED vec4 first_of[STAGED];   // x, y, xx, xy
SHARED vec4 second_of[STAGED];  // yy, opacity, reach, red
SHARED vec4 third_of[STAGED];   // green, blue

RLX_FN void stage(PTR(f32) splats, PTR(i32) ids, const uint at, const uint end, const uint n) {
    if (THREAD < STAGED && at + THREAD < end) {
        const int id = LOAD(i32, ids, at + THREAD);
        vec4 a = VEC4(0.0f, 0.0f, 0.0f, 0.0f), b = a, c = a;
        if (id >= 0 && UINT(id) < n) {
            PTR(f32) p = SKIP(f32, splats, UINT(id), FIELDS);
            a = VEC4(LOAD(f32, p, 0u), LOAD(f32, p, 1u), LOAD(f32, p, 2u), LOAD(f32, p, 3u));
            const float opacity = LOAD(f32, p, 5u);
            b = VEC4(LOAD(f32, p, 4u), opacity, reach(opacity), LOAD(f32, p, 6u));
            c = VEC4(LOAD(f32, p, 7u), LOAD(f32, p, 8u), 0.0f, 0.0f);
        }
        first_of[THREAD] = a;
        second_of[THREAD] = b;
        third_of[THREAD] = c;
    }
}
