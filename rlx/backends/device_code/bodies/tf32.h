// Numbers rounded to tf32, f32 whose last 13 bits are zero, to nearest, halfway away from zero. Matrix units cut these bits
// off: tf32_near leaves them as they are, and is only read by such instructions.
#ifndef RLX_TF32_H
#define RLX_TF32_H
// Of what is no number, all bits of which may be ones, nothing changes; what is too large becomes infinite.
RLX_FN uint tf32_near(const uint bits) {
    const float v = RLX_FLOAT(bits);
    return v == v ? bits + 0x1000u : bits;
}
// What is finite stays so: it is cut off where rounding would make it infinite.
RLX_FN uint tf32_finite(const uint bits) {
    if ((bits & 0x7f800000u) == 0x7f800000u) return bits;
    const uint near = tf32_near(bits), kept = (near & 0x7f800000u) == 0x7f800000u ? bits : near;
    return kept & 0xffffe000u;
}
#endif
