// loss = log(sum(exp(x))) - x[label] over rows of n classes; 0 where the label is `ignored`.
#include "entropy_rows.h"

RLX_FN void cross_entropy_body(PTR(T) x, PTR(i32) label, PTR(f32) loss, const uint rows, const uint n,
                               const int ignored) {
    const uint row = ROW;
    const uint len = row < rows ? n : 0u;
    const uint at = row < rows ? row : 0u;
    PTR(T) p = SKIP(T, x, at, n);
    const uint quads = IN_REGISTERS ? QUADS : (n + 4u * LANES - 1u) / (4u * LANES);
    float top = -INFINITE, total = 0.0f;
    if (IN_REGISTERS) {
        vec4 r[QUADS];
        UNROLL for (uint j = 0u; j < QUADS; j++) r[j] = get(p, j, len, -INFINITE);
        UNROLL for (uint j = 0u; j < QUADS; j++) top = max_of(max4(r[j]), top);
        top = row_max(top);
        UNROLL for (uint j = 0u; j < QUADS; j++) total += sum4(exp4(r[j], top));
    } else {
        for (uint j = 0u; j < quads; j++) top = max_of(max4(get(p, j, len, -INFINITE)), top);
        top = row_max(top);
        for (uint j = 0u; j < quads; j++) total += sum4(exp4(get(p, j, len, -INFINITE), top));
    }
    total = row_sum(total);
    if (row < rows && LANE == 0u) {
        const int wanted = LOAD(i32, label, row);
        const float picked = LOAD(T, p, class_of(wanted, n)) - top;
        STORE(f32, loss, row, wanted == ignored ? 0.0f : p_log_f(total) - picked);
    }
}
