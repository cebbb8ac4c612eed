// The mean of a row of rows.h, kept as two floats that are both subtracted: f32 holds the mean of numbers far from 0 no
// better than them, and adding the second to the first would round it away again. `mean` is near the mean: the first
// element, and the mean of what the others differ from it by, of all where they are in registers, else of the first
// sixteenth of the row. `rest` is the mean of what is left. A row of one number leaves exactly 0, whatever its length.
#define FEW(quads) (IN_REGISTERS ? QUADS : ((quads) + 15u) / 16u)
#define ROW_MEAN(VALUE, origin, quads, n, len, share, mean, rest)                                                    \
    UNROLL for (uint j = 0u; j < FEW(quads); j++) {                                                                 \
        VALUE(v, j);                                                                                                \
        mean += inside(less(v, origin), j, len);                                                                     \
    }                                                                                                               \
    mean = origin + row_sum(mean) * (IN_REGISTERS ? share : p_recip_f(float(FEW(quads) * 4u * LANES)));              \
    UNROLL for (uint j = 0u; j < quads; j++) {                                                                      \
        VALUE(v, j);                                                                                                \
        rest += inside(less(v, mean), j, len);                                                                      \
    }                                                                                                               \
    rest = row_sum(rest) * share;

RLX_FN vec4 less(const vec4 v, const float by) { return VEC4(v.x - by, v.y - by, v.z - by, v.w - by); }
RLX_FN vec4 centred(const vec4 v, const float mean, const float rest) { return less(less(v, mean), rest); }

// Sums over the elements of quad j that lie in the row: of them, and of their squares.
RLX_FN float inside(const vec4 v, const uint j, const uint n) {
    if (ALIGNED) return place(j, 0u) < n ? sum4(v) : 0.0f;
    float s = 0.0f;
    if (place(j, 0u) < n) s = v.x;
    if (place(j, 1u) < n) s += v.y;
    if (place(j, 2u) < n) s += v.z;
    if (place(j, 3u) < n) s += v.w;
    return s;
}
RLX_FN float squares(const vec4 v, const uint j, const uint n) {
    float s = FMA(v.x, v.x, v.y * v.y) + FMA(v.z, v.z, v.w * v.w);
    if (ALIGNED) return place(j, 0u) < n ? s : 0.0f;
    s = 0.0f;
    if (place(j, 0u) < n) s = FMA(v.x, v.x, s);
    if (place(j, 1u) < n) s = FMA(v.y, v.y, s);
    if (place(j, 2u) < n) s = FMA(v.z, v.z, s);
    if (place(j, 3u) < n) s = FMA(v.w, v.w, s);
    return s;
}
