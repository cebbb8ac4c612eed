// Functions of f64 as quick32.h has those of f32: short formulas with fused multiply-adds, the other headers' beside them.
//
// Logarithms look up 1 / z and its logarithm for one of 16 intervals of z. Errors are below 1.5 ULP
// (tests/cpu/test_engine_functions.py).
// exp(x) = s (1 + r + low), s = 2^(k - down), for |x| < 708 + down.
RLX_FN double q_exp_parts64(const double x, const uint down, RLX_OUT(double) s, RLX_OUT(double) low) {
    const double t = RLX_MAD64(x, 1.4426950408889634, 6755399441055744.0);  // the last bits are k
    const double n = t - 6755399441055744.0;
    const double h = RLX_MAD64(n, -0.6931471805598903, x);
    const double r = RLX_MAD64(n, -5.497923018708371e-14, h);
    s = RLX_DOUBLE((RLX_DBITS(t) << 52) + RLX_U64(0x3ff00000u - (down << 20), 0u));
    double p = 2.5112352246243985e-08;  // (exp(r) - 1 - r) / r^2
    p = RLX_MAD64(p, r, 2.762232790060994e-07);
    p = RLX_MAD64(p, r, 2.755723515829986e-06);
    p = RLX_MAD64(p, r, 2.480151610917895e-05);
    p = RLX_MAD64(p, r, 0.00019841269894307342);
    p = RLX_MAD64(p, r, 0.0013888888920684005);
    p = RLX_MAD64(p, r, 0.008333333333318971);
    p = RLX_MAD64(p, r, 0.0416666666666196);
    p = RLX_MAD64(p, r, 0.1666666666666668);
    p = RLX_MAD64(p, r, 0.5);
    low = RLX_MAD64(r * r, p, RLX_MAD64(n, -5.497923018708371e-14, h - r));
    return r;
}
RLX_FN double d_exp(const double x) {
    double s;
    double low;
    const double r = q_exp_parts64(x, 0u, s, low);
    double y = RLX_MAD64(s, r + low, s);
    if (!(RLX_DABS(x) < 708.0)) { y = d_exp_any(x); }
    return y;
}
// 2^(k + f), k the last bits of t, |f| <= 1/2.
RLX_FN double q_exp2_64(const double f, const rlx_u64 t) {
    double p = 2.5741783916106737e-11;  // (2^f - 1) / f
    p = RLX_MAD64(p, f, 4.45667051668933e-10);
    p = RLX_MAD64(p, f, 7.054888269200489e-09);
    p = RLX_MAD64(p, f, 1.0178051228936199e-07);
    p = RLX_MAD64(p, f, 1.3215486833005837e-06);
    p = RLX_MAD64(p, f, 1.5252733856193282e-05);
    p = RLX_MAD64(p, f, 0.00015403530393341165);
    p = RLX_MAD64(p, f, 0.001333355814639048);
    p = RLX_MAD64(p, f, 0.009618129107628496);
    p = RLX_MAD64(p, f, 0.0555041086648217);
    p = RLX_MAD64(p, f, 0.24022650695910072);
    p = RLX_MAD64(p, f, 0.6931471805599453);
    return RLX_DOUBLE(RLX_DBITS(RLX_MAD64(p, f, 1.0)) + (t << 52));
}
RLX_FN double d_exp2(const double x) {
    const double t = x + 6755399441055744.0;
    double y = q_exp2_64(x - (t - 6755399441055744.0), RLX_DBITS(t));
    if (!(RLX_DABS(x) < 1021.0)) { y = d_exp2_any(x); }
    return y;
}
RLX_FN double d_expm1(const double x) {
    const double a = x < -50.0 ? -50.0 : x;
    double s;
    double low;
    const double r = q_exp_parts64(a > 712.0 ? 712.0 : a, 6u, s, low);
    const double t = s * r;
    const double b = s - 0.015625;
    const double h = b + t;
    const double y = (h + RLX_MAD64(s, low, t - (h - b))) * 64.0;
    return d_abs_bits(x) < RLX_U64(0x3c900000u, 0u) ? x : y;
}
RLX_FN double d_cosh(const double x) {
    const double a = RLX_DABS(x);
    double s;
    double rest;
    const double r = q_exp_parts64(a > 714.0 ? 714.0 : a, 10u, s, rest);
    const double e = r + rest;
    const double h = RLX_MAD64(s, e, s);
    const double low = RLX_MAD64(s, (r - e) + rest, RLX_MAD64(s, e, s - h));
    return (h + (9.5367431640625e-07 / (h > 1.0e100 ? 1.0e100 : h) + low)) * 512.0;
}
RLX_FN double d_sinh(const double x) {
    const double a = RLX_DABS(x);
    double s;
    double rest;
    const double r = q_exp_parts64(a > 714.0 ? 714.0 : a, 10u, s, rest);
    const double e = r + rest;
    const double h = RLX_MAD64(s, e, s);
    const double low = RLX_MAD64(s, (r - e) + rest, RLX_MAD64(s, e, s - h));
    const double far = (h - (9.5367431640625e-07 / (h > 1.0e100 ? 1.0e100 : h) - low)) * 512.0;
    const double z = x * x;
    double p = 7.746178593e-13;  // (sinh(x) / x - 1) / x^2
    p = RLX_MAD64(p, z, RLX_D64(0x3de611cbu, 0x330c1fe8u));
    p = RLX_MAD64(p, z, RLX_D64(0x3e5ae646u, 0x0fae3728u));
    p = RLX_MAD64(p, z, RLX_D64(0x3ec71de3u, 0xa4e14f40u));
    p = RLX_MAD64(p, z, RLX_D64(0x3f2a01a0u, 0x1a01ee70u));
    p = RLX_MAD64(p, z, RLX_D64(0x3f811111u, 0x111110fdu));
    p = RLX_MAD64(p, z, RLX_D64(0x3fc55555u, 0x55555555u));
    return a < 1.0 ? RLX_MAD64(x * z, p, x) : d_with_sign(far, x);
}
RLX_FN double d_tanh(const double x) {
    const double a = RLX_DABS(x);
    const double z = x * x;
    double p = -1.6107559423335435e-05;  // (tanh(x) / x - 1) / x^2
    p = RLX_MAD64(p, z, 7.721921084635964e-05);
    p = RLX_MAD64(p, z, -0.0002286332730395681);
    p = RLX_MAD64(p, z, 0.0005863525021393676);
    p = RLX_MAD64(p, z, -0.001454970482384428);
    p = RLX_MAD64(p, z, 0.0035919915721429876);
    p = RLX_MAD64(p, z, -0.008863221319475131);
    p = RLX_MAD64(p, z, 0.021869487601984247);
    p = RLX_MAD64(p, z, -0.0539682539324833);
    p = RLX_MAD64(p, z, 0.13333333333264918);
    p = RLX_MAD64(p, z, -0.33333333333332876);
    const double near = RLX_MAD64(a * z, p, a);
    const double b = a > 20.0 ? 20.0 : a;
    double s;
    double low;
    const double r = q_exp_parts64(b + b, 0u, s, low);
    const double far = RLX_MAD64(-2.0, 1.0 / RLX_MAD64(s, r + low, s + 1.0), 1.0);
    return d_with_sign(a < 0.625 ? near : far, x);
}

// x = 2^k z of the bits u, 45/64 <= z < 45/32: the number of z's interval, 2^k as a factor's bits, k.
RLX_FN rlx_u64 q_log_place(const rlx_u64 u) { return u - RLX_U64(0x3fe68000u, 0u); }
RLX_FN rlx_u64 q_log_twos(const rlx_u64 t) { return t & RLX_U64(0xfff00000u, 0u); }
RLX_FN double q_log_count(const rlx_u64 t) {  // an integer is added to 2^52 by its bits
    const rlx_u64 k = (t + RLX_U64(0x40000000u, 0u)) >> 52;
    return RLX_DOUBLE(k | RLX_U64(0x43300000u, 0u)) - 4503599627371520.0;
}
RLX_TABLE double q_ln_c[16] = {1.3912582667842186, 1.3332665545087161, 1.2799294197622766, 1.2307169182095175,
    1.185140856778943, 1.1428316801901413, 1.1034677371067239, 1.0666252716514797, 1.0322230694293726, 1.0,
    0.9412257697421298, 0.8888694422490749, 0.842107713365196, 0.800024806372152, 0.7619168052307099,
    0.7272377534920997};
RLX_TABLE double q_ln_of[16] = {-0.33020856557322986, -0.2876319870790667, -0.246804935600494,
    -0.20759685992015875, -0.1698616340031549, -0.13350911254269704, -0.09845770941069532, -0.06449971255779019,
    -0.031714796249616484, 0.0, 0.06057224283722462, 0.11780491336548948, 0.17184734730972195, 0.22311254382975676,
    0.27191790874326216, 0.318501821223208};
RLX_TABLE double q_lb_c[16] = {1.3913289232212216, 1.3332994906542242, 1.2799670093286437, 1.230763648618253,
    1.1851726581269126, 1.1428781515327395, 1.1034856365627501, 1.066676357678553, 1.0322972016060072, 1.0,
    0.9411367048511889, 0.8889007771365248, 0.8421287707371878, 0.799975776982596, 0.7619368564913485,
    0.727277671902235};
RLX_TABLE double q_lb_of[16] = {-0.4764635268559232, -0.4150008803151195, -0.3561066257789207,
    -0.2995537385040734, -0.24509724889435347, -0.19267159817172796, -0.14206785100896013, -0.09312251168330477,
    -0.04585838699654232, 0.0, 0.08752379798420407, 0.16990570656594173, 0.2478872408123607, 0.3219717785825651,
    0.39225665176377333, 0.459421809980995};
RLX_TABLE double q_lg_c[16] = {1.3912154438755304, 1.3332063748581626, 1.2800468329397812, 1.2307549429105074,
    1.1851870810370253, 1.1429032510058625, 1.1035657274443336, 1.0668048944660202, 1.032334265926937, 1.0,
    0.9410745912463163, 0.8889909784871909, 0.8420884136695068, 0.7999144397720915, 0.7619248272890657,
    0.727239569822191};
RLX_TABLE double q_lg_of[16] = {-0.1433943901222392, -0.12489738161548303, -0.10722585942539808,
    -0.09017158864503472, -0.07378690886866934, -0.05800946807448781, -0.042798204481186986, -0.02808499955131083,
    -0.013820342971712307, 0.0, 0.026375952255193624, 0.05110264624363481, 0.07464230808113825, 0.09695646341060637,
    0.11808787472864424, 0.13832249875213165};
// log(2^k / c) + log(1 + r + low), |r| <= 1/32; k log(2) / c has few digits, so that its first part is exact.
RLX_FN double q_log_sum64(const double k, const double of, const double r, const double low) {
    double p = -0.09939252967859762;  // (log(1 + r) - r) / r^2
    p = RLX_MAD64(p, r, 0.11131210705624209);
    p = RLX_MAD64(p, r, -0.12500126537330644);
    p = RLX_MAD64(p, r, 0.1428569892151045);
    p = RLX_MAD64(p, r, -0.16666666590250115);
    p = RLX_MAD64(p, r, 0.2000000000464624);
    p = RLX_MAD64(p, r, -0.2500000000001579);
    p = RLX_MAD64(p, r, 0.33333333333332893);
    p = RLX_MAD64(p, r, -0.5);
    const double h = RLX_MAD64(k, 0.6931471805598903, of);
    const double w = h + r;
    return w + RLX_MAD64(k, 5.497923018708371e-14, RLX_MAD64(r * r, p, ((h - w) + r) + low));
}
RLX_FN double d_log(const double x) {
    const rlx_u64 u = RLX_DBITS(x);
    const rlx_u64 t = q_log_place(u);
    const rlx_u64 i = t >> 48;
    const double r = RLX_MAD64(RLX_DOUBLE(u - q_log_twos(t)), q_ln_c[i], -1.0);
    double y = q_log_sum64(q_log_count(t), q_ln_of[i], r, 0.0);
    if (u - RLX_U64(0x00100000u, 0u) >= RLX_U64(0x7fe00000u, 0u)) { y = d_log_any(x); }
    return y;
}
#define Q_LOG64_OF(NAME, C, HEAD, REST, ONE, ONE_LOW, P0, P1, P2, P3, P4, P5, P6, P7, P8) \
    RLX_FN double NAME(const double x) { \
        const rlx_u64 u = RLX_DBITS(x); \
        const rlx_u64 t = q_log_place(u); \
        const rlx_u64 i = t >> 48; \
        const double r = RLX_MAD64(RLX_DOUBLE(u - q_log_twos(t)), C[i], -1.0); \
        double p = P0; \
        p = RLX_MAD64(p, r, P1); \
        p = RLX_MAD64(p, r, P2); \
        p = RLX_MAD64(p, r, P3); \
        p = RLX_MAD64(p, r, P4); \
        p = RLX_MAD64(p, r, P5); \
        p = RLX_MAD64(p, r, P6); \
        p = RLX_MAD64(p, r, P7); \
        p = RLX_MAD64(p, r, P8); \
        const double g = r * ONE; \
        const double low = RLX_MAD64(r, ONE_LOW, RLX_MAD64(r, ONE, -g)); \
        const double k = q_log_count(t); \
        const double h = HEAD; \
        const double w = h + g; \
        const double rest = RLX_MAD64(r * r, p, ((h - w) + g) + low); \
        double y = w + REST; \
        if (u - RLX_U64(0x00100000u, 0u) >= RLX_U64(0x7fe00000u, 0u)) { y = NAME##_any(x); } \
        return y; \
    }
// P: (log(1 + r) - r) / r^2, times the logarithm's factor, which is ONE + ONE_LOW.
Q_LOG64_OF(d_log2_of, q_lb_c, k + q_lb_of[i], rest, 1.4426950408889634, 2.0355273740931033e-17,
    -0.1433931096687219, 0.16058942484094185, -0.18033870565891452, 0.20609906989695942, -0.2404491723790361,
    0.28853900824482376, -0.3606737602224686, 0.48089834696298145, -0.7213475204444817)
Q_LOG64_OF(d_log10, q_lg_c, RLX_MAD64(k, 0.3010299956640665, q_lg_of[i]), RLX_MAD64(k, -8.532344317057107e-14, rest),
    0.4342944819032518, 1.098319650216765e-17, -0.04316562718182013, 0.04834223386354996, -0.05428735978255102,
    0.06204200211743225, -0.0723824133186691, 0.08685889640082872, -0.10857362047588152, 0.14476482730108203,
    -0.2171472409516259)
// log(1 + x + low), x > -1, for a low that is small beside x.
RLX_FN double q_log1p_pair64(const double x, const double low) {
    const double a = x > 1.0 ? x : 1.0;
    const double b = x > 1.0 ? 1.0 : x;
    const double w = a + b;
    const rlx_u64 u = RLX_DBITS(w);
    const rlx_u64 t = q_log_place(u);
    const rlx_u64 e = q_log_twos(t);
    const rlx_u64 i = t >> 48;
    const double c = q_ln_c[i];
    const double rest = ((b - (w - a)) + low) * (RLX_DOUBLE(RLX_U64(0x3ff00000u, 0u) - e) * c);
    const double g = RLX_MAD64(RLX_DOUBLE(u - e), c, -1.0);
    const double r = g + rest;
    return q_log_sum64(q_log_count(t), q_ln_of[i], r, (g - r) + rest);
}
RLX_FN double d_log1p(const double x) {
    double y = q_log1p_pair64(x, 0.0);
    y = d_abs_bits(x) < RLX_U64(0x3c900000u, 0u) ? x : y;
    if (!(x > -1.0 && x < 1.0e300)) { y = d_log1p_any(x); }
    return y;
}
RLX_FN double d_atanh(const double x) {
    const double a = RLX_DABS(x);
    const double d = 1.0 - a;
    const double by = 1.0 / d;
    const double n = a + a;
    const double q = n * by;
    const double rest = (RLX_MAD64(-q, d, n) - q * ((1.0 - d) - a)) * by;
    double y = d_with_sign(0.5 * q_log1p_pair64(q, rest), x);
    y = a < 7.450580596923828e-09 ? x : y;
    if (!(a < 1.0)) { y = d_atanh_any(x); }
    return y;
}
RLX_FN double d_asinh(const double x) {
    const double a = RLX_DABS(x);
    const double t = (a * a) / (1.0 + RLX_DSQRT(RLX_MAD64(a, a, 1.0)));
    const double w = a + t;
    double y = d_with_sign(q_log1p_pair64(w, t - (w - a)), x);
    y = a < 7.450580596923828e-09 ? x : y;
    if (!(a < 1.0e150)) { y = d_asinh_any(x); }
    return y;
}

RLX_TABLE double q_lb_low[16] = {-1.7404216736982987e-20, -5.3034869119040805e-20, 5.137584579142155e-21,
    -1.99535900133604e-20, 3.2452305946070268e-21, 4.896880628326097e-20, -2.6825182440360465e-20,
    3.377467948907628e-20, 4.044738835239281e-20, 0.0, -8.620072224181604e-21, 2.6592153457317773e-21,
    6.210516632276085e-21, -5.2900322196209526e-20, -4.151437507865293e-21, 4.63043134221001e-21};
// As in f32, with the cubic term in two doubles too: what y multiplies is good to 2^-64.
RLX_FN double d_pow(const double x, const double y) {
    const rlx_u64 u = RLX_DBITS(x);
    const rlx_u64 t = q_log_place(u);
    const rlx_u64 i = t >> 48;
    const double m = RLX_DOUBLE(u - q_log_twos(t));
    const double c = q_lb_c[i];
    const double product = m * c;
    const double r = product - 1.0;
    const double lost = RLX_MAD64(m, c, -product);
    double p = 0.07641302005181397;  // ((log(1 + r) - r + r^2 / 2) / r^3 - 1 / 3) / r
    p = RLX_MAD64(p, r, -0.08350999148240243);
    p = RLX_MAD64(p, r, 0.09091030592786693);
    p = RLX_MAD64(p, r, -0.09999984118770458);
    p = RLX_MAD64(p, r, 0.11111111022753861);
    p = RLX_MAD64(p, r, -0.12500000006231532);
    p = RLX_MAD64(p, r, 0.142857142857388);
    p = RLX_MAD64(p, r, -0.16666666666665678);
    p = RLX_MAD64(p, r, 0.19999999999999998);
    p = RLX_MAD64(p, r, -0.25);
    const double q = p * r;
    const double third = 0.3333333333333333 + q;
    const double third_low = (0.3333333333333333 - third) + q + 1.850371707708594e-17;
    const double sq = r * r;
    const double sq_low = RLX_MAD64(r, r, -sq);
    const double cube = sq * r;
    const double cube_low = RLX_MAD64(sq, r, -cube) + sq_low * r;
    const double b = cube * third;
    const double b_low = RLX_MAD64(cube, third, -b) + RLX_MAD64(cube, third_low, cube_low * third);
    const double half_sq = 0.5 * sq;
    const double v = r - half_sq;
    const double w = v + b;
    const double rest = RLX_MAD64(lost, RLX_MAD64(r, r - 1.0, 1.0), RLX_MAD64(-0.5, sq_low, b_low));
    const double low = ((v - w) + b) + (((r - v) - half_sq) + rest);
    const double g = w * 1.4426950408889634;
    const double g_more = RLX_MAD64(w, 2.0355273740931033e-17, low * 1.4426950408889634);
    const double g_low = RLX_MAD64(w, 1.4426950408889634, -g) + g_more;
    const double s = q_log_count(t) + q_lb_of[i];
    const double l = s + g;
    const double e = l * y;
    const double e_low = RLX_MAD64(l, y, -e) + (((s - l) + g) + (g_low + q_lb_low[i])) * y;
    const double n = e + 6755399441055744.0;
    double z = q_exp2_64((e - (n - 6755399441055744.0)) + e_low, RLX_DBITS(n));
    if (!(u - RLX_U64(0x00100000u, 0u) < RLX_U64(0x7fe00000u, 0u) && RLX_DABS(e) < 1021.0)) { z = d_pow_any(x, y); }
    return z;
}

// x - n pi/2 as hi + lo, for |x| < 2^20. The first product is exact.
RLX_FN RLX_D2 q_angle64(const double x, RLX_OUT(uint) n) {
    const double t = RLX_MAD64(x, 0.6366197723675814, 6755399441055744.0);
    n = uint(RLX_DBITS(t));
    const double k = t - 6755399441055744.0;
    const double r = RLX_MAD64(k, -1.5707963267341256, x);
    const RLX_D2 p = d_product(k, 6.077100506506192e-11);
    const double h = r - p.x;
    return RLX_MAKE_D2(h, RLX_MAD64(k, -3.5215598651832e-27, ((r - h) - p.x) - p.y));
}
// cos of hi + lo as hi + lo, without the rest of hi^2.
RLX_FN RLX_D2 q_cos_small64(const RLX_D2 r) {
    const double z = r.x * r.x;
    double p = RLX_D64(0xbda907d7u, 0x24680d4eu);  // (cos(r) - 1 + r^2 / 2) / r^4
    p = RLX_MAD64(p, z, RLX_D64(0x3e21eeb6u, 0x8a508535u));
    p = RLX_MAD64(p, z, RLX_D64(0xbe927e4fu, 0xa179895fu));
    p = RLX_MAD64(p, z, RLX_D64(0x3efa01a0u, 0x19f4e7d9u));
    p = RLX_MAD64(p, z, RLX_D64(0xbf56c16cu, 0x16c16966u));
    p = RLX_MAD64(p, z, RLX_D64(0x3fa55555u, 0x55555555u));
    const double w = RLX_MAD64(-0.5, z, 1.0);
    return d_quick_sum(w, RLX_MAD64(-0.5, z, 1.0 - w) + RLX_MAD64(z * z, p, -(r.x * r.y)));
}
RLX_FN double d_tan(const double x) {
    uint n;
    const RLX_D2 r = q_angle64(x, n);
    const RLX_D2 s = d_sin_small(r);
    const RLX_D2 c = q_cos_small64(r);
    const bool odd = (n & 1u) == 1u;
    const double a = odd ? -c.x : s.x;
    const double b = odd ? s.x : c.x;
    const double by = 1.0 / b;
    const double q = a * by;
    const double rest = RLX_MAD64(-q, b, a) + ((odd ? -c.y : s.y) - q * (odd ? s.y : c.y));
    double y = RLX_MAD64(rest, by, q);
    y = RLX_DABS(x) < 7.450580596923828e-09 ? x : y;
    if (!(RLX_DABS(x) < 1048576.0)) { y = d_tan_any(x); }
    return y;
}
RLX_FN double q_sin_quadrant64(const RLX_D2 r, const uint n) {
    const RLX_D2 s = d_sin_small(r);
    const RLX_D2 c = d_cos_small(r);
    return RLX_DOUBLE(RLX_DBITS((n & 1u) == 1u ? c.x : s.x) ^ (rlx_u64(n & 2u) << 62));
}
RLX_FN double d_sin(const double x) {
    uint n;
    const RLX_D2 r = q_angle64(x, n);
    double y = q_sin_quadrant64(r, n);
    y = RLX_DABS(x) < 7.450580596923828e-09 ? x : y;
    if (!(RLX_DABS(x) < 1048576.0)) { y = d_sin_any(x); }
    return y;
}
RLX_FN double d_cos(const double x) {
    uint n;
    const RLX_D2 r = q_angle64(x, n);
    double y = q_sin_quadrant64(r, n + 1u);
    if (!(RLX_DABS(x) < 1048576.0)) { y = d_cos_any(x); }
    return y;
}
RLX_FN double q_atan_rest(const double t, const double z) {
    double p = 1.3489782468819663e-05;  // (atan(t) / t - 1) / t^2
    p = RLX_MAD64(p, z, -0.00015480187011106006);
    p = RLX_MAD64(p, z, 0.0008435059619594754);
    p = RLX_MAD64(p, z, -0.0029194002363371655);
    p = RLX_MAD64(p, z, 0.0072634679046894145);
    p = RLX_MAD64(p, z, -0.013995140675442063);
    p = RLX_MAD64(p, z, 0.022085315521727128);
    p = RLX_MAD64(p, z, -0.029985708371686605);
    p = RLX_MAD64(p, z, 0.036693617452639125);
    p = RLX_MAD64(p, z, -0.042217223957363825);
    p = RLX_MAD64(p, z, 0.04723295158525825);
    p = RLX_MAD64(p, z, -0.052538061004252394);
    p = RLX_MAD64(p, z, 0.058805926831704075);
    p = RLX_MAD64(p, z, -0.06666415020557366);
    p = RLX_MAD64(p, z, 0.07692281189835588);
    p = RLX_MAD64(p, z, -0.09090907119547474);
    p = RLX_MAD64(p, z, 0.11111111013669354);
    p = RLX_MAD64(p, z, -0.14285714282802947);
    p = RLX_MAD64(p, z, 0.1999999999995545);
    p = RLX_MAD64(p, z, -0.33333333333333093);
    return (t * z) * p;
}
// What atan(t) differs from t by, t = small by, by = 1 / large; atan' = 1 - t^2 / 2, about.
RLX_FN double q_atan_more(const double t, const double small, const double large, const double by) {
    const double z = t * t;
    return RLX_MAD64(RLX_MAD64(-t, large, small) * by, RLX_MAD64(-0.5, z, 1.0), q_atan_rest(t, z));
}
RLX_FN double d_atan(const double x) {
    const double a = RLX_DABS(x);
    const bool steep = a > 1.0;
    const double large = steep ? a : 1.0;
    const double small = steep ? 1.0 : a;
    const double by = 1.0 / large;
    const double t = small * by;
    double v = q_atan_more(t, small, large, by);
    v = d_abs_bits(x) == D_INF_BITS ? 0.0 : v;
    const double w = D_PI_2 - t;
    const double far = w + ((((D_PI_2 - w) - t) - v) + D_PI_2_REST);
    return d_with_sign(steep ? far : t + v, x);
}
RLX_FN double d_atan2(const double y, const double x) {
    const double a = RLX_DABS(y);
    const double b = RLX_DABS(x);
    const bool steep = a > b;
    const double small = steep ? b : a;
    const double large = steep ? a : b;
    const double by = 1.0 / large;
    const double t = small * by;
    const double v = q_atan_more(t, small, large, by);
    const double w = D_PI_2 - t;
    const double h = steep ? w : t;
    const double low = steep ? (((D_PI_2 - w) - t) - v) + D_PI_2_REST : v;
    const double g = D_PI - h;
    const double far = g + ((((D_PI - g) - h) - low) + D_PI_REST);
    double r = d_with_sign(d_negative(x) ? far : h + low, y);
    // Between 2^-400 and 2^400 nothing overflows, and the quotient's rest is no subnormal number.
    const bool plain = small == 0.0 || small >= 1.0e-120;
    if (!(plain && large >= 1.0e-120 && large < 1.0e120)) { r = d_atan2_any(y, x); }
    return r;
}
// The square root's own error, of z < 1/4, by a reciprocal good to 4 %.
RLX_FN double q_root_rest64(const double s, const double z) {
    return RLX_MAD64(-s, s, z) * (0.5 * RLX_DOUBLE(RLX_U64(0x5fe6eb50u, 0xc7b537a9u) - (RLX_DBITS(z) >> 1)));
}
RLX_FN double d_asin(const double x) {
    const double a = RLX_DABS(x);
    const bool big = a >= 0.5;
    const double z = big ? RLX_MAD64(-0.5, a, 0.5) : a * a;
    const double s = big ? RLX_DSQRT(z) : a;
    const double v = (s * z) * d_asin_poly(z);
    const double low = v + q_root_rest64(s, z);
    const double w = D_PI_2 - (s + s);
    const double far = w + (((D_PI_2 - w) - (s + s)) - (low + low) + D_PI_2_REST);
    return d_with_sign(big ? far : s + v, x);
}
RLX_FN double d_acos(const double x) {
    const double a = RLX_DABS(x);
    const bool big = a >= 0.5;
    const double z = big ? RLX_MAD64(-0.5, a, 0.5) : a * a;
    const double s = big ? RLX_DSQRT(z) : x;
    double v = (s * z) * d_asin_poly(z);
    v = big ? v + q_root_rest64(s, z) : v;
    const double twice = big ? s + s : s;
    const double most = big ? D_PI : D_PI_2;
    const double w = most - twice;
    const double lost = big ? D_PI_REST : D_PI_2_REST;
    const double far = w + (((most - w) - twice) - (big ? v + v : v) + lost);
    return big && x > 0.0 ? 2.0 * (s + v) : far;
}
// r = x^(-1/3) by Halley's rule, as in f32; the guess is from the upper half of the bits.
RLX_FN double q_root_step64(const double a, const double r) {
    const double e = RLX_MAD64(-a * r, r * r, 1.0);
    return RLX_MAD64(r * e, RLX_MAD64(e, 0.2222222222222222, 0.3333333333333333), r);
}
RLX_FN double d_cbrt(const double x) {
    const double a = RLX_DABS(x);
    const rlx_u64 u = RLX_DBITS(a);
    const double high = RLX_DOUBLE((u >> 32) | RLX_U64(0x43300000u, 0u)) - 4503599627370496.0;
    const double guess = RLX_MAD64(high, -0.3333333333333333, 4503599627370496.0 + 1430186251.0);
    double r = RLX_DOUBLE(RLX_DBITS(guess) << 32);
    r = q_root_step64(a, r);
    r = q_root_step64(a, r);
    const double s = r * r;
    const double y = a * s;
    const double z = y * y;
    const double rest = RLX_MAD64(RLX_MAD64(y, y, -z), y, RLX_MAD64(z, y, -a));
    double w = d_with_sign(RLX_MAD64(rest * s, -0.3333333333333333, y), x);
    if (!(a > 1.0e-100 && a < 1.0e100)) { w = d_cbrt_any(x); }
    return w;
}
