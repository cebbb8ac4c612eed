// Rows (see rows.h) whose weights belong to channels: element e of a row has weight first + e / inner.
// WEIGHTS 0: any inner; 1: four neighbours share a channel; 2: inner is 1 and first 0, so that weights are read in
// quads.
#include "rows.h"
#include "row_mean.h"
RLX_GET(get_weight, W)

RLX_FN vec4 weights(PTR(W) w, const uint first, const uint inner, const uint j, const uint n) {
    if (WEIGHTS == 2u) return get_weight(w, j, n, 0.0f);
    if (WEIGHTS == 1u && ALIGNED) {
        const float one = place(j, 0u) < n ? LOAD(W, w, first + place(j, 0u) / inner) : 0.0f;
        return VEC4(one, one, one, one);
    }
    vec4 v = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    if (place(j, 0u) < n) v.x = LOAD(W, w, first + place(j, 0u) / inner);
    if (place(j, 1u) < n) v.y = LOAD(W, w, first + place(j, 1u) / inner);
    if (place(j, 2u) < n) v.z = LOAD(W, w, first + place(j, 2u) / inner);
    if (place(j, 3u) < n) v.w = LOAD(W, w, first + place(j, 3u) / inner);
    return v;
}

// (v - mean - rest) * inverse of each element.
RLX_FN vec4 standard(const vec4 v, const float mean, const float rest, const float inverse) {
    const vec4 c = centred(v, mean, rest);
    return VEC4(c.x * inverse, c.y * inverse, c.z * inverse, c.w * inverse);
}
RLX_FN vec4 product(const vec4 a, const vec4 b) { return VEC4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }
