// What bodies printed from row programs use (rlx/backends/gpu/program/row_bodies.py). `max` keeps a NaN or drops it, and
// it comes back through a sum; `max_or_nan` and `min_or_nan` keep it.
#define max_or_nan_of(a, b) p_max_f(a, b)
#define min_or_nan_of(a, b) p_min_f(a, b)
#define JOIN_MAX_OR_NAN(a, b) a = p_max_f(a, b)
#define JOIN_MIN_OR_NAN(a, b) a = p_min_f(a, b)
#define EXTREME4(NAME) \
    RLX_FN float NAME##4(const vec4 v) { return NAME##_of(NAME##_of(v.x, v.y), NAME##_of(v.z, v.w)); }
// Quad j of a row of n elements with `other` past its end.
#define MASKED                                                                                              \
    RLX_FN vec4 masked(const uint j, const uint n, const float other, const vec4 v) {                       \
        return VEC4(place(j, 0u) < n ? v.x : other, place(j, 1u) < n ? v.y : other,                         \
                    place(j, 2u) < n ? v.z : other, place(j, 3u) < n ? v.w : other);                        \
    }
// What a sum of exponentials of what lies below one number is multiplied by where that number becomes another.
#define RISEN \
    RLX_FN float risen(const float a, const float b) { return a == b ? 1.0f : p_exp_f(a - b); }
// An index into a row of n elements, brought to the nearest one.
#define ROW_INDEX                                                                                           \
    RLX_FN uint row_index(const int index, const uint n) {                                                  \
        if (index < 0) return 0u;                                                                           \
        return uint(index) < n ? uint(index) : n - 1u;                                                      \
    }
