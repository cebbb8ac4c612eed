// What softmax cross-entropy and its gradient share: the greatest of a row, and the sum of exp(x - greatest).
#include "rows.h"

RLX_FN float max4(const vec4 v) { return max_of(max_of(v.x, v.y), max_of(v.z, v.w)); }
RLX_FN vec4 exp4(const vec4 v, const float top) {
    return VEC4(p_exp_f(v.x - top), p_exp_f(v.y - top), p_exp_f(v.z - top), p_exp_f(v.w - top));
}
// A label of n classes, brought to the nearest class.
RLX_FN uint class_of(const int label, const uint n) {
    if (label < 0) return 0u;
    return uint(label) < n ? uint(label) : n - 1u;
}
