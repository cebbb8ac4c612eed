// Functions of f32 that a processor computes in another way than the GPUs; the CPU's engine alone reads this file.
//
// A fused multiply-add is one instruction there, doubles cost two floats, and a branch that no lane takes costs next to
// nothing: so each is the short formula for numbers that are neither huge nor special, and the other headers' function,
// named `..._any`, for vectors with others. Errors are below 1.5 ULP (tests/cpu/test_engine_functions.py). Polynomials
// are minimax fits (Remez) to the functions that the comments name.
// exp(x) = s (1 + e), s = 2^(k - down), for |x| < 87 + down.
RLX_FN float q_exp_parts(const float x, const uint down, RLX_OUT(float) s) {
    const float t = RLX_MAD(x, 1.442695022e+00f, 12582912.0f);  // the last bits are k
    const float n = t - 12582912.0f;
    const float r = RLX_MAD(n, -1.4286067653e-06f, RLX_MAD(n, -6.9314575195e-01f, x));
    s = RLX_FLOAT((RLX_BITS(t) << 23) + (0x3f800000u - (down << 23)));
    float p = 1.991028694e-04f;  // (exp(r) - 1 - r) / r^2
    p = RLX_MAD(p, r, 1.393545419e-03f);
    p = RLX_MAD(p, r, 8.333281614e-03f);
    p = RLX_MAD(p, r, 4.166644812e-02f);
    p = RLX_MAD(p, r, 1.666666716e-01f);
    p = RLX_MAD(p, r, 0.5f);
    return RLX_MAD(r * r, p, r);
}
// 2^x for |x| < 125, the integer next to x being k.
RLX_FN float q_exp2(const float f, const uint k) {
    float p = 1.546975109e-04f;  // (2^f - 1) / f
    p = RLX_MAD(p, f, 1.339086681e-03f);
    p = RLX_MAD(p, f, 9.618030861e-03f);
    p = RLX_MAD(p, f, 5.550356954e-02f);
    p = RLX_MAD(p, f, 2.402265072e-01f);
    p = RLX_MAD(p, f, 6.931471825e-01f);
    return RLX_FLOAT(RLX_BITS(RLX_MAD(p, f, 1.0f)) + (k << 23));
}
RLX_FN float m_exp2(const float x) {
    const float t = x + 12582912.0f;
    float y = q_exp2(x - (t - 12582912.0f), RLX_BITS(t));
    if (!(RLX_ABS(x) < 125.0f)) { y = m_exp2_any(x); }
    return y;
}
RLX_FN float m_expm1(const float x) {
    const float low = x < -40.0f ? -40.0f : x;
    float s;
    const float e = q_exp_parts(low > 90.0f ? 90.0f : low, 3u, s);
    const float y = RLX_MAD(s, e, s - 0.125f) * 8.0f;
    return m_abs_bits(x) < 0x33000000u ? x : y;
}
// A quotient that does not count must be no subnormal number, which takes long.
RLX_FN float m_cosh(const float x) {
    const float a = RLX_ABS(x);
    float s;
    const float e = q_exp_parts(a > 90.0f ? 90.0f : a, 8u, s);
    const float h = RLX_MAD(s, e, s);
    return (h + (1.52587890625e-05f / (h > 1.0e20f ? 1.0e20f : h) + RLX_MAD(s, e, s - h))) * 128.0f;
}
RLX_FN float m_sinh(const float x) {
    const float a = RLX_ABS(x);
    float s;
    const float e = q_exp_parts(a > 90.0f ? 90.0f : a, 8u, s);
    const float h = RLX_MAD(s, e, s);
    const float far = (h - (1.52587890625e-05f / (h > 1.0e20f ? 1.0e20f : h) - RLX_MAD(s, e, s - h))) * 128.0f;
    const float z = x * x;
    float p = 2.806331167e-06f;  // (sinh(x) / x - 1) / x^2
    p = RLX_MAD(p, z, 1.983809489e-04f);
    p = RLX_MAD(p, z, 8.333339356e-03f);
    p = RLX_MAD(p, z, 1.666666716e-01f);
    return a < 1.0f ? RLX_MAD(x * z, p, x) : m_with_sign(far, x);
}

RLX_FN float m_tanh(const float x) {
    const float a = RLX_ABS(x);
    const float z = x * x;
    float p = -5.717054009e-03f;  // (tanh(x) / x - 1) / x^2
    p = RLX_MAD(p, z, 2.065059543e-02f);
    p = RLX_MAD(p, z, -5.374350026e-02f);
    p = RLX_MAD(p, z, 1.333149076e-01f);
    p = RLX_MAD(p, z, -3.333328366e-01f);
    const float near = RLX_MAD(a * z, p, a);
    const float b = a > 10.0f ? 10.0f : a;
    float s;
    const float e = q_exp_parts(b + b, 0u, s);
    const float far = RLX_MAD(-2.0f, 1.0f / RLX_MAD(s, e, s + 1.0f), 1.0f);
    return m_with_sign(a < 0.625f ? near : far, x);
}

// x = 2^k (1 + f) for a normal positive x with the bits u.
RLX_FN int q_exponent(const uint u) { return int(u - 0x3f3504f3u) >> 23; }
RLX_FN float q_rest(const uint u, const int k) { return RLX_FLOAT(u - (uint(k) << 23)) - 1.0f; }
RLX_FN float q_log_sum(const float n, const float f, const float low) {
    float p = 7.332585752e-02f;  // (log(1 + f) - f + f^2 / 2) / f^3
    p = RLX_MAD(p, f, -1.165995151e-01f);
    p = RLX_MAD(p, f, 1.163464859e-01f);
    p = RLX_MAD(p, f, -1.239669472e-01f);
    p = RLX_MAD(p, f, 1.425115615e-01f);
    p = RLX_MAD(p, f, -1.666915119e-01f);
    p = RLX_MAD(p, f, 2.000068873e-01f);
    p = RLX_MAD(p, f, -2.499998063e-01f);
    p = RLX_MAD(p, f, 3.333333135e-01f);
    const float z = f * f;
    const float y = RLX_MAD(n, 1.4286067653e-06f, RLX_MAD(-0.5f, z, (f * z) * p));
    return RLX_MAD(n, 6.9314575195e-01f, f + (y + low));
}
RLX_FN float m_log(const float x) {
    const uint u = RLX_BITS(x);
    const int k = q_exponent(u);
    float y = q_log_sum(float(k), q_rest(u, k), 0.0f);
    if (u - 0x00800000u >= 0x7f000000u) { y = m_log_any(x); }
    return y;
}
// log(1 + x + low), x > -1, for a low that is small beside x.
RLX_FN float q_log1p_pair(const float x, const float low) {
    const float a = x > 1.0f ? x : 1.0f;
    const float b = x > 1.0f ? 1.0f : x;
    const float w = a + b;
    const uint u = RLX_BITS(w);
    const int k = q_exponent(u);
    const float scale = RLX_FLOAT(0x3f800000u - (uint(k) << 23));
    const float g = q_rest(u, k);
    const float rest = ((b - (w - a)) + low) * scale;
    const float f = g + rest;
    return q_log_sum(float(k), f, (g - f) + rest);
}
RLX_FN float m_log1p(const float x) {
    const float a = x > 1.0f ? x : 1.0f;
    const float b = x > 1.0f ? 1.0f : x;
    const float w = a + b;
    const uint u = RLX_BITS(w);
    const int k = q_exponent(u);
    const float scale = RLX_FLOAT(0x3f800000u - (uint(k) << 23));
    float y = q_log_sum(float(k), RLX_MAD(b - (w - a), scale, q_rest(u, k)), 0.0f);
    y = m_abs_bits(x) < 0x33000000u ? x : y;
    if (!(x > -1.0f && x < 1.0e38f)) { y = m_log1p_any(x); }
    return y;
}
// Of x = 2^k z, 45/64 <= z < 45/32, the tables have c near 1 / z, and 1 where z is near 1, and the logarithm of 1 / c,
// a multiple of 2^-17. So is the first part of the logarithm of 2: k of them are added exactly. The text has 2^23 k.
// ONE is the factor of the logarithm.
RLX_TABLE float q_lbf_c[16] = {1.394695282e+00f, 1.330686212e+00f, 1.283568978e+00f, 1.230287910e+00f,
    1.184687734e+00f, 1.142250657e+00f, 1.106599689e+00f, 1.069660306e+00f, 1.0f, 1.0f, 1.0f, 8.894550800e-01f,
    8.394390941e-01f, 8.036881089e-01f, 7.621539235e-01f, 7.301344872e-01f};
RLX_TABLE float q_lbf_of[16] = {-4.799499512e-01f, -4.121704102e-01f, -3.601608276e-01f, -2.989959717e-01f,
    -2.445068359e-01f, -1.918792725e-01f, -1.461334229e-01f, -9.715270996e-02f, 0.0f, 0.0f, 0.0f, 1.690063477e-01f,
    2.525024414e-01f, 3.152923584e-01f, 3.918457031e-01f, 4.537658691e-01f};
RLX_TABLE float q_lgf_c[16] = {1.387700796e+00f, 1.336124301e+00f, 1.281705022e+00f, 1.231642365e+00f,
    1.186324477e+00f, 1.139807105e+00f, 1.102564931e+00f, 1.066333532e+00f, 1.0f, 1.0f, 1.0f, 8.899930120e-01f,
    8.383174539e-01f, 8.036509156e-01f, 7.654265165e-01f, 7.290586233e-01f};
RLX_TABLE float q_lgf_of[16] = {-1.422958374e-01f, -1.258468628e-01f, -1.077880859e-01f, -9.048461914e-02f,
    -7.420349121e-02f, -5.683135986e-02f, -4.240417480e-02f, -2.789306641e-02f, 0.0f, 0.0f, 0.0f, 5.061340332e-02f,
    7.659149170e-02f, 9.493255615e-02f, 1.160964966e-01f, 1.372375488e-01f};
#define Q_LOG_OF(NAME, C, HEAD, ONE, REST, P0, P1, P2, P3) \
    RLX_FN float NAME(const float x) { \
        const uint u = RLX_BITS(x); \
        const uint t = u - 0x3f340000u; \
        const uint i = t >> 19; \
        const uint two = t & 0xff800000u; \
        const float r = RLX_MAD(RLX_FLOAT(u - two), C[i], -1.0f); \
        float p = P0; \
        p = RLX_MAD(p, r, P1); \
        p = RLX_MAD(p, r, P2); \
        p = RLX_MAD(p, r, P3); \
        const float k = float(int(two)); \
        float y = HEAD + RLX_MAD(r, ONE, REST); \
        if (u - 0x00800000u >= 0x7f000000u) { y = NAME##_any(x); } \
        return y; \
    }
// P: (log(1 + r) - r) / r^2, times the factor, for -0.047 < r < 0.094.
Q_LOG_OF(m_log2_of, q_lbf_c, RLX_MAD(k, 1.192092896e-07f, q_lbf_of[i]), 1.442695022e+00f,
    r * RLX_MAD(p, r, 1.925963034e-08f), 2.646780908e-01f, -3.609108031e-01f, 4.809508026e-01f, -7.213475704e-01f)
Q_LOG_OF(m_log10, q_lgf_c, RLX_MAD(k, 3.588593245e-08f, q_lgf_of[i]), 4.342944920e-01f,
    RLX_MAD(r, RLX_MAD(p, r, -1.010304995e-08f), k * -3.605312663e-13f),
    7.971341908e-02f, -1.086487696e-01f, 1.447805464e-01f, -2.171472460e-01f)
// atanh(a) = k log(2) / 2 + atanh(t), t = (s - 2^k) / (s + 2^k) for s = (1 + a) / (1 - a); k is taken from the bits of
// both, so that s / 2^k lies between 0.8 and 1.8 and t = (1 - 2^k + a (1 + 2^k)) / (1 + 2^k + a (1 - 2^k)).
RLX_FN float m_atanh(const float x) {
    const float a = RLX_ABS(x);
    const uint n = RLX_BITS(1.0f + a) - RLX_BITS(1.0f - a) + 0x00200000u;
    const float two = RLX_FLOAT((n & 0xff800000u) + 0x3f800000u);
    const float more = 1.0f + two;
    const float less = 1.0f - two;
    const float t = RLX_MAD(a, more, less) / RLX_MAD(a, less, more);
    const float z = t * t;
    float p = 1.294355989e-01f;  // (atanh(t) / t - 1) / t^2
    p = RLX_MAD(p, z, 1.416721791e-01f);
    p = RLX_MAD(p, z, 2.000296563e-01f);
    p = RLX_MAD(p, z, 3.333331048e-01f);
    const float k = float(int(n >> 23));
    const float h = k * 3.465728760e-01f;
    const float w = h + t;
    float y = m_with_sign(w + (((h - w) + t) + RLX_MAD(t * z, p, k * 7.143034e-07f)), x);
    if (!(a < 9.999997616e-01f)) { y = m_atanh_any(x); }
    return y;
}
// asinh(a) = log(1 + a + a^2 / (1 + sqrt(1 + a^2))).
RLX_FN float m_asinh(const float x) {
    const float a = RLX_ABS(x);
    const float t = (a * a) / (1.0f + RLX_SQRT(RLX_MAD(a, a, 1.0f)));
    const float w = a + t;
    float y = m_with_sign(q_log1p_pair(w, t - (w - a)), x);
    y = a < 2.44140625e-04f ? x : y;
    if (!(a < 1.0e18f)) { y = m_asinh_any(x); }
    return y;
}
// Of x = 2^k z, 45/64 <= z < 45/32, the table has c near 1 / z and log2(1 / c) as high + low; log2(c z) is a
// polynomial, all but its cubic and higher terms in two floats: what y multiplies is good to 2^-33.
RLX_TABLE float q_part_c[16] = {1.391304374e+00f, 1.333333373e+00f, 1.279999971e+00f, 1.230769277e+00f,
    1.185185194e+00f, 1.142857194e+00f, 1.103448272e+00f, 1.066666722e+00f, 1.032258034e+00f, 1.000000000e+00f,
    9.411764741e-01f, 8.888888955e-01f, 8.421052694e-01f, 8.000000119e-01f, 7.619047761e-01f, 7.272727489e-01f};
RLX_TABLE float q_part_high[16] = {-4.764404297e-01f, -4.150390625e-01f, -3.561401367e-01f, -2.995605469e-01f,
    -2.451171875e-01f, -1.926574707e-01f, -1.420288086e-01f, -9.310913086e-02f, -4.580688477e-02f, 0.0f,
    8.746337891e-02f, 1.699218750e-01f, 2.479248047e-01f, 3.219299316e-01f, 3.923034668e-01f, 4.594421387e-01f};
RLX_TABLE float q_part_low[16] = {2.358872224e-06f, 1.520225494e-06f, -3.641259778e-06f, 2.112715148e-07f,
    4.678914553e-06f, 1.232826724e-05f, 9.809095780e-06f, -3.487745143e-07f, 3.238148164e-06f, 0.0f,
    -5.430303684e-07f, 3.115693397e-06f, 2.698007170e-06f, -1.858251094e-06f, 1.392910960e-05f, -1.056303024e-05f};
RLX_FN float m_pow(const float x, const float y) {
    const uint u = RLX_BITS(x);
    const uint t = u - 0x3f340000u;
    const uint i = t >> 19;
    const float m = RLX_FLOAT(u - (t & 0xff800000u));
    const float c = q_part_c[i];
    const float product = m * c;
    const float r = product - 1.0f;
    float p = -1.662262538e-01f;  // (log(1 + r) - r + r^2 / 2) / r^3
    p = RLX_MAD(p, r, 2.001789510e-01f);
    p = RLX_MAD(p, r, -2.500003481e-01f);
    p = RLX_MAD(p, r, 3.333332840e-01f);
    const float sq = r * r;
    const float half_sq = 0.5f * sq;
    const float v = r - half_sq;
    const float lost = RLX_MAD(m, c, -product);
    const float rest = RLX_MAD(-0.5f, RLX_MAD(r, r, -sq), RLX_MAD(-r, lost, lost));
    const float low = ((r - v) - half_sq) + RLX_MAD(sq * r, p, rest);
    const float g = v * 1.442695022e+00f;
    const float g_low = RLX_MAD(v, 1.442695022e+00f, -g) + RLX_MAD(v, 1.925962991e-08f, low * 1.442695022e+00f);
    const float s = float(int(t) >> 23) + q_part_high[i];
    const float l = s + g;
    const float e = l * y;
    const float e_low = RLX_MAD(l, y, -e) + (((s - l) + g) + (g_low + q_part_low[i])) * y;
    const float n = e + 12582912.0f;
    float z = q_exp2((e - (n - 12582912.0f)) + e_low, RLX_BITS(n));
    if (!(u - 0x00800000u < 0x7f000000u && RLX_ABS(e) < 125.0f)) { z = m_pow_any(x, y); }
    return z;
}

// x - n pi/2 as hi + lo, for |x| < 2^14. The first product cancels exactly.
RLX_FN RLX_F2 q_angle(const float x, RLX_OUT(uint) n) {
    const float t = RLX_MAD(x, 6.366197467e-01f, 12582912.0f);
    n = RLX_BITS(t);
    const float k = t - 12582912.0f;
    const float r = RLX_MAD(k, -1.5707962513e+00f, x);
    const RLX_F2 p = m_product(k, 7.5497894159e-08f);
    const float h = r - p.x;
    return RLX_MAKE_F2(h, RLX_MAD(k, -5.3903029535e-15f, ((r - h) - p.x) - p.y));
}
RLX_FN float q_sin_quadrant(const RLX_F2 r, const uint n) {
    const float z = r.x * r.x;
    float p = 2.724385922e-06f;  // (sin(r) / r - 1) / r^2
    p = RLX_MAD(p, z, -1.984003902e-04f);
    p = RLX_MAD(p, z, 8.333331905e-03f);
    p = RLX_MAD(p, z, -1.666666716e-01f);
    float q = 2.454297282e-05f;  // (cos(r) - 1 + r^2 / 2) / r^4
    q = RLX_MAD(q, z, -1.388828037e-03f);
    q = RLX_MAD(q, z, 4.166666418e-02f);
    const float half_z = 0.5f * z;
    const float w = 1.0f - half_z;
    const float c = w + (((1.0f - w) - half_z) + RLX_MAD(z * z, q, -(r.x * r.y)));
    const float y = (n & 1u) == 1u ? c : r.x + RLX_MAD(r.x * z, p, r.y);
    return RLX_FLOAT(RLX_BITS(y) ^ ((n & 2u) << 30));
}
RLX_FN float m_sin(const float x) {
    uint n;
    const RLX_F2 r = q_angle(x, n);
    float y = q_sin_quadrant(r, n);
    y = m_abs_bits(x) < 0x39000000u ? x : y;
    if (!(RLX_ABS(x) < 16384.0f)) { y = m_sin_quadrant(x, 0); }
    return y;
}
RLX_FN float m_cos(const float x) {
    uint n;
    const RLX_F2 r = q_angle(x, n);
    float y = q_sin_quadrant(r, n + 1u);
    if (!(RLX_ABS(x) < 16384.0f)) { y = m_sin_quadrant(x, 1); }
    return y;
}
RLX_FN float m_tan(const float x) {
    uint n;
    const RLX_F2 r = q_angle(x, n);
    const float z = r.x * r.x;
    float p = 3.970646765e-03f;  // (tan(r) / r - 1) / r^2
    p = RLX_MAD(p, z, 9.606009698e-04f);
    p = RLX_MAD(p, z, 1.011010073e-02f);
    p = RLX_MAD(p, z, 2.157642692e-02f);
    p = RLX_MAD(p, z, 5.400053784e-02f);
    p = RLX_MAD(p, z, 1.333320141e-01f);
    p = RLX_MAD(p, z, 3.333333433e-01f);
    const float v = RLX_MAD(r.x * z, p, RLX_MAD(r.y, 1.6f * z, r.y));  // tan' = 1 + tan^2, about
    const float u = r.x + v;
    const float low = (r.x - u) + v;
    const float c = -1.0f / u;
    float y = (n & 1u) == 1u ? RLX_MAD(c, RLX_MAD(c, low, RLX_MAD(c, u, 1.0f)), c) : u;
    y = m_abs_bits(x) < 0x39000000u ? x : y;
    if (!(RLX_ABS(x) < 16384.0f)) { y = m_tan_any(x); }
    return y;
}
RLX_FN float m_atan(const float x) {
    const float a = RLX_ABS(x);
    const float t = a > 1.0f ? 1.0f / a : a;
    const float z = t * t;
    float p = 1.565795275e-03f;  // (atan(t) / t - 1) / t^2
    p = RLX_MAD(p, z, -9.493120946e-03f);
    p = RLX_MAD(p, z, 2.696172707e-02f);
    p = RLX_MAD(p, z, -4.962843657e-02f);
    p = RLX_MAD(p, z, 7.071545720e-02f);
    p = RLX_MAD(p, z, -8.945658803e-02f);
    p = RLX_MAD(p, z, 1.109097824e-01f);
    p = RLX_MAD(p, z, -1.428427100e-01f);
    p = RLX_MAD(p, z, 1.999996006e-01f);
    p = RLX_MAD(p, z, -3.333333433e-01f);
    const float v = (t * z) * p;
    const float w = 1.5707963705e+00f - t;
    const float far = w + ((((1.5707963705e+00f - w) - t) - v) + -4.3711388287e-08f);
    return m_with_sign(a > 1.0f ? far : t + v, x);
}
RLX_FN float m_atan2(const float y, const float x) {
    const float a = RLX_ABS(y);
    const float b = RLX_ABS(x);
    const bool steep = a > b;
    const float small = steep ? b : a;
    const float large = steep ? a : b;
    const float by = 1.0f / large;
    const float t = small * by;
    const float z = t * t;
    float p = 1.565795275e-03f;  // as in m_atan
    p = RLX_MAD(p, z, -9.493120946e-03f);
    p = RLX_MAD(p, z, 2.696172707e-02f);
    p = RLX_MAD(p, z, -4.962843657e-02f);
    p = RLX_MAD(p, z, 7.071545720e-02f);
    p = RLX_MAD(p, z, -8.945658803e-02f);
    p = RLX_MAD(p, z, 1.109097824e-01f);
    p = RLX_MAD(p, z, -1.428427100e-01f);
    p = RLX_MAD(p, z, 1.999996006e-01f);
    p = RLX_MAD(p, z, -3.333333433e-01f);
    const float rest = RLX_MAD(-t, large, small) * by;  // of the quotient; atan' = 1 - z / 2, about
    const float v = RLX_MAD(rest, RLX_MAD(-0.5f, z, 1.0f), (t * z) * p);
    const float w = 1.5707963705e+00f - t;
    const float h = steep ? w : t;
    const float low = steep ? (((1.5707963705e+00f - w) - t) - v) + -4.3711388287e-08f : v;
    const float g = 3.1415927410e+00f - h;
    const float far = g + ((((3.1415927410e+00f - g) - h) - low) + -8.7422776573e-08f);
    float r = m_with_sign(RLX_BITS(x) >= 0x80000000u ? far : h + low, y);
    // Between 2^-60 and 2^60 nothing overflows, and the quotient's rest is no subnormal number.
    const bool plain = small == 0.0f || small >= 8.6736173799e-19f;
    if (!(plain && large >= 8.6736173799e-19f && large < 1.1529215046e+18f)) { r = m_atan2_any(y, x); }
    return r;
}
// r = x^(-1/3) to 12 bits, by a line through the bits and one step; then x r^2, in two floats, times (1 - e)^(-2/3) for
// e = 1 - x r^3.
RLX_FN float m_cbrt(const float x) {
    const float a = RLX_ABS(x);
    const uint u = RLX_BITS(a);
    const float guess = RLX_FLOAT(uint(int(RLX_MAD(float(int(u)), -3.3333334327e-01f, 1.4199678720e+09f))));
    const float far = RLX_MAD(-a * guess, guess * guess, 1.0f);
    const float near = guess * RLX_MAD(far, 3.281029463e-01f, 1.001165509e+00f);
    const float r = RLX_FLOAT(RLX_BITS(near) & 0xfffff000u);
    const float s = r * r;
    const float y = a * s;
    const float low = RLX_MAD(a, s, -y);
    const float e = RLX_MAD(-low, r, RLX_MAD(-y, r, 1.0f));
    float p = 4.936583638e-01f;  // ((1 - e)^(-2/3) - 1) / e
    p = RLX_MAD(p, e, 5.555610657e-01f);
    p = RLX_MAD(p, e, 6.666666865e-01f);
    float w = m_with_sign(y + RLX_MAD(y * e, p, low), x);
    if (u - 0x00800000u >= 0x7f000000u) { w = m_cbrt_any(x); }
    return w;
}
// (asin(s) / s - 1) s of z = s^2 <= 1/4.
RLX_FN float q_asin_rest(const float s, const float z) {
    float p = 3.392107785e-02f;
    p = RLX_MAD(p, z, 1.700577699e-02f);
    p = RLX_MAD(p, z, 3.113192506e-02f);
    p = RLX_MAD(p, z, 4.459662363e-02f);
    p = RLX_MAD(p, z, 7.500103116e-02f);
    p = RLX_MAD(p, z, 1.666666567e-01f);
    return (s * z) * p;
}
// The square root's own error, of z < 1/4, by a reciprocal good to 4 %.
RLX_FN float q_root_rest(const float s, const float z) {
    return RLX_MAD(-s, s, z) * (0.5f * RLX_FLOAT(0x5f3759dfu - (RLX_BITS(z) >> 1)));
}
RLX_FN float m_asin(const float x) {
    const float a = RLX_ABS(x);
    const bool big = a >= 0.5f;
    const float z = big ? RLX_MAD(-0.5f, a, 0.5f) : a * a;
    const float s = big ? RLX_SQRT(z) : a;
    const float v = q_asin_rest(s, z);
    const float w = 1.5707963705e+00f - (s + s);
    const float far = w + (((1.5707963705e+00f - w) - (s + s)) - (v + v) + -4.3711388287e-08f);
    return m_with_sign(big ? far : s + v, x);
}
RLX_FN float m_acos(const float x) {
    const float a = RLX_ABS(x);
    const bool big = a >= 0.5f;
    const float z = big ? RLX_MAD(-0.5f, a, 0.5f) : a * a;
    const float s = big ? RLX_SQRT(z) : x;
    float v = q_asin_rest(s, z);
    v = big ? v + q_root_rest(s, z) : v;
    const float twice = big ? s + s : s;
    const float most = big ? 3.1415927410e+00f : 1.5707963705e+00f;
    const float w = most - twice;
    const float lost = big ? -8.7422776573e-08f : -4.3711388287e-08f;
    const float far = w + (((most - w) - twice) - (big ? v + v : v) + lost);
    return big && x > 0.0f ? 2.0f * (s + v) : far;
}
