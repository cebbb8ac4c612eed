"""Functions of f64 as `quick32` has those of f32: short formulas with fused multiply-adds, the headers' beside them.

Logarithms look up 1 / z and its logarithm for one of 16 intervals of z. Errors are below 1 ULP, of powers below 1.5
(tests/cpu/test_engine_functions.py).
"""

QUICK64 = r"""
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
RLX_FN double d_exp2(const double x) {
    const double t = x + 6755399441055744.0;
    const double f = x - (t - 6755399441055744.0);
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
    double y = RLX_DOUBLE(RLX_DBITS(RLX_MAD64(p, f, 1.0)) + (RLX_DBITS(t) << 52));
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
    return (h + (9.5367431640625e-07 / h + low)) * 512.0;
}
RLX_FN double d_sinh(const double x) {
    const double a = RLX_DABS(x);
    double s;
    double rest;
    const double r = q_exp_parts64(a > 714.0 ? 714.0 : a, 10u, s, rest);
    const double e = r + rest;
    const double h = RLX_MAD64(s, e, s);
    const double low = RLX_MAD64(s, (r - e) + rest, RLX_MAD64(s, e, s - h));
    const double far = (h - (9.5367431640625e-07 / h - low)) * 512.0;
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

// x = 2^k z of the bits u, 11/16 <= z < 11/8: the number of z's interval, 2^k as a factor's bits, k.
RLX_FN rlx_u64 q_log_place(const rlx_u64 u) { return u - RLX_U64(0x3fe60000u, 0u); }
RLX_FN rlx_u64 q_log_twos(const rlx_u64 t) { return t & RLX_U64(0xfff00000u, 0u); }
RLX_FN double q_log_count(const rlx_u64 t) {  // an integer is added to 2^52 by its bits
    const rlx_u64 k = (t + RLX_U64(0x40000000u, 0u)) >> 52;
    return RLX_DOUBLE(k | RLX_U64(0x43300000u, 0u)) - 4503599627371520.0;
}
RLX_TABLE double q_ln_c[16] = {1.422222214143442, 1.3617021255962694, 1.3061224537059113, 1.2549019662689727,
    1.2075471751897313, 1.1636363684724935, 1.1228070190220014, 1.0847457671973124, 1.0491803260891293, 1.0, 1.0,
    0.9142857112736085, 0.8648648666649094, 0.8205128249973681, 0.7804878009861111, 0.7441860443298262};
RLX_TABLE double q_ln_of[16] = {-0.3522205879089597, -0.3087354801343736, -0.26706278886763357,
    -0.22705745500593366, -0.18859117426154626, -0.15154990228325005, -0.11583181684159172, -0.08134564358897478,
    -0.04800921749006193, 0.0, 0.0, 0.08961216198417787, 0.14518200776319645, 0.19782573786437752,
    0.24783616889112636, 0.295464215825632};
RLX_TABLE double q_lb_c[16] = {1.4222222216684501, 1.3617021279619599, 1.3061224494821062, 1.2549019613178465,
    1.2075471701061005, 1.163636363516122, 1.1228070178217908, 1.0847457628436814, 1.0491803279236969, 1.0, 1.0,
    0.9142857146580271, 0.8648648650772827, 0.8205128207508197, 0.7804878052322864, 0.7441860467849242};
RLX_TABLE double q_lb_of[16] = {-0.5081469031085817, -0.4454111486427337, -0.38529015643985076, -0.32757465864187907,
    -0.2720795457889835, -0.21864028632626287, -0.16710998619237216, -0.1173569508134733, -0.06926266251252855, 0.0,
    0.0, 0.1292830163574763, 0.20945336527461222, 0.2854022184437781, 0.357552003963292, 0.42626475417227994};
RLX_TABLE double q_lg_c[16] = {1.4222222232336692, 1.361702128065156, 1.3061224478569788, 1.2549019600261506,
    1.2075471699382792, 1.163636362919304, 1.122807017122313, 1.084745763298796, 1.0491803292202486, 1.0, 1.0,
    0.9142857138710804, 0.8648648660684015, 0.8205128198623667, 0.7804878046402153, 0.744186046476218};
RLX_TABLE double q_lg_of[16] = {-0.1529674605174023, -0.13408211617752386, -0.11598389358209715,
    -0.09860979762356692, -0.08190410442875873, -0.06581728422202104, -0.05030511814834426, -0.03532796257672999,
    -0.020850139532512912, 0.0, 0.0, 0.038918066227324744, 0.06305174514272949, 0.0859146290508761,
    0.10763387853216955, 0.12831847728034518};
// log(2^k / c) + log(1 + r + low), |r| <= 1/16; k log(2) / c has few digits, so that its first part is exact.
RLX_FN double q_log_sum64(const double k, const double of, const double r, const double low) {
    double p = 0.07850381417491963;  // (log(1 + r) - r) / r^2
    p = RLX_MAD64(p, r, -0.0995459934816267);
    p = RLX_MAD64(p, r, 0.11113044311560628);
    p = RLX_MAD64(p, r, -0.12500137126177224);
    p = RLX_MAD64(p, r, 0.1428571403663789);
    p = RLX_MAD64(p, r, -0.16666666548312264);
    p = RLX_MAD64(p, r, 0.199999999993989);
    p = RLX_MAD64(p, r, -0.2500000000003786);
    p = RLX_MAD64(p, r, 0.333333333333335);
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
RLX_FN double d_log2_of(const double x) {
    const rlx_u64 u = RLX_DBITS(x);
    const rlx_u64 t = q_log_place(u);
    const rlx_u64 i = t >> 48;
    const double r = RLX_MAD64(RLX_DOUBLE(u - q_log_twos(t)), q_lb_c[i], -1.0);
    double p = 0.11325706340102525;  // (log2(1 + r) - r / log(2)) / r^2
    p = RLX_MAD64(p, r, -0.1436145111363079);
    p = RLX_MAD64(p, r, 0.16032733917467823);
    p = RLX_MAD64(p, r, -0.180338858423679);
    p = RLX_MAD64(p, r, 0.20609928796215338);
    p = RLX_MAD64(p, r, -0.24044917177400082);
    p = RLX_MAD64(p, r, 0.28853900816912065);
    p = RLX_MAD64(p, r, -0.3606737602227871);
    p = RLX_MAD64(p, r, 0.4808983469629902);
    p = RLX_MAD64(p, r, -0.7213475204444817);
    const double g = r * 1.4426950408889634;
    const double low = RLX_MAD64(r, 2.0355273740931033e-17, RLX_MAD64(r, 1.4426950408889634, -g));
    const double h = q_log_count(t) + q_lb_of[i];
    const double w = h + g;
    double y = w + RLX_MAD64(r * r, p, ((h - w) + g) + low);
    if (u - RLX_U64(0x00100000u, 0u) >= RLX_U64(0x7fe00000u, 0u)) { y = d_log2_of_any(x); }
    return y;
}
RLX_FN double d_log10(const double x) {
    const rlx_u64 u = RLX_DBITS(x);
    const rlx_u64 t = q_log_place(u);
    const rlx_u64 i = t >> 48;
    const double r = RLX_MAD64(RLX_DOUBLE(u - q_log_twos(t)), q_lg_c[i], -1.0);
    double p = 0.03409377330452587;  // (log10(1 + r) - r / log(10)) / r^2
    p = RLX_MAD64(p, r, -0.04323227566464755);
    p = RLX_MAD64(p, r, 0.048263338216571035);
    p = RLX_MAD64(p, r, -0.05428740576932741);
    p = RLX_MAD64(p, r, 0.062042067761596646);
    p = RLX_MAD64(p, r, -0.07238241313653533);
    p = RLX_MAD64(p, r, 0.08685889637803983);
    p = RLX_MAD64(p, r, -0.10857362047597738);
    p = RLX_MAD64(p, r, 0.14476482730108467);
    p = RLX_MAD64(p, r, -0.2171472409516259);
    const double g = r * 0.4342944819032518;
    const double low = RLX_MAD64(r, 1.098319650216765e-17, RLX_MAD64(r, 0.4342944819032518, -g));
    const double k = q_log_count(t);
    const double h = RLX_MAD64(k, 0.3010299956640665, q_lg_of[i]);
    const double w = h + g;
    double y = w + RLX_MAD64(k, -8.532344317057107e-14, RLX_MAD64(r * r, p, ((h - w) + g) + low));
    if (u - RLX_U64(0x00100000u, 0u) >= RLX_U64(0x7fe00000u, 0u)) { y = d_log10_any(x); }
    return y;
}
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
RLX_FN double d_tan(const double x) {
    uint n;
    const RLX_D2 r = q_angle64(x, n);
    const RLX_D2 s = d_sin_small(r);
    const RLX_D2 c = d_cos_small(r);
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
"""
