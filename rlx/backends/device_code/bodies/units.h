// Units of sixteen bytes as numbers: PER_<T> elements of type T, of which LOWER_<T>(u) are the first four and UPPER_<T>(u)
// the last four; f32 has four in all.
#define PER_f32 4u
#define PER_f16 8u
#define PER_bf16 8u
#define FLOATS(a, b, c, d) VEC4(RLX_FLOAT(a), RLX_FLOAT(b), RLX_FLOAT(c), RLX_FLOAT(d))
#define LOWER_f32(u) FLOATS(u.x, u.y, u.z, u.w)
#define UPPER_f32(u) LOWER_f32(u)
#define BRAINS(a, b) FLOATS((a) << 16, (a) & 0xffff0000u, (b) << 16, (b) & 0xffff0000u)
#define LOWER_bf16(u) BRAINS(u.x, u.y)
#define UPPER_bf16(u) BRAINS(u.z, u.w)
#define HALVES(a, b) \
    VEC4(p_f16_value((a) & 0xffffu), p_f16_value((a) >> 16), p_f16_value((b) & 0xffffu), p_f16_value((b) >> 16))
#define LOWER_f16(u) HALVES(u.x, u.y)
#define UPPER_f16(u) HALVES(u.z, u.w)
