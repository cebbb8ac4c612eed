// dx = (softmax(x) - one-hot(label)) * d over rows of n classes; 0 where the label is `ignored`.
#include "entropy_rows.h"

RLX_FN float entry(const float e, const uint at, const uint wanted, const float inverse, const float d) {
    return (e * inverse - (at == wanted ? 1.0f : 0.0f)) * d;
}
RLX_FN vec4 entries(const vec4 e, const uint j, const uint wanted, const float inverse, const float d) {
    return VEC4(entry(e.x, place(j, 0u), wanted, inverse, d), entry(e.y, place(j, 1u), wanted, inverse, d),
                entry(e.z, place(j, 2u), wanted, inverse, d), entry(e.w, place(j, 3u), wanted, inverse, d));
}

RLX_FN void cross_entropy_grad_body(PTR(f32) d, PTR(T) x, PTR(i32) label, PTR(T) dx, const uint rows, const uint n,
                                    const int ignored) {
    const uint row = ROW;
    const uint len = row < rows ? n : 0u;
    const uint at = row < rows ? row : 0u;
    PTR(T) p = SKIP(T, x, at, n);
    PTR(T) q = SKIP(T, dx, at, n);
    const int label_here = LOAD(i32, label, at);
    const bool skipped = label_here == ignored;
    const uint wanted = class_of(label_here, n);
    const float scale = LOAD(f32, d, at);
    const vec4 zero = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    const uint quads = IN_REGISTERS ? QUADS : (n + 4u * LANES - 1u) / (4u * LANES);
    float top = -INFINITE, total = 0.0f;
    if (IN_REGISTERS) {
        vec4 r[QUADS];
        UNROLL for (uint j = 0u; j < QUADS; j++) r[j] = get(p, j, len, -INFINITE);
        UNROLL for (uint j = 0u; j < QUADS; j++) top = max_of(max4(r[j]), top);
        top = row_max(top);
        UNROLL for (uint j = 0u; j < QUADS; j++) {
            r[j] = exp4(r[j], top);
            total += sum4(r[j]);
        }
        const float inverse = p_recip_f(row_sum(total));
        UNROLL for (uint j = 0u; j < QUADS; j++) {
            vec4 v = entries(r[j], j, wanted, inverse, scale);
            if (skipped) v = zero;
            put(q, j, len, v);
        }
    } else {
        for (uint j = 0u; j < quads; j++) top = max_of(max4(get(p, j, len, -INFINITE)), top);
        top = row_max(top);
        for (uint j = 0u; j < quads; j++) total += sum4(exp4(get(p, j, len, -INFINITE), top));
        const float inverse = p_recip_f(row_sum(total));
        for (uint j = 0u; j < quads; j++) {
            vec4 v = entries(exp4(get(p, j, len, -INFINITE), top), j, wanted, inverse, scale);
            if (skipped) v = zero;
            put(q, j, len, v);
        }
    }
}
