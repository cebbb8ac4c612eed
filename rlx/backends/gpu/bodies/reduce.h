// y[o, s, i] = the reduction of x[o, s*chunk : (s+1)*chunk, i], x being (outer, n, inner); then divided by `divisor`
// (floats). IO names the storage of x and y; the arithmetic is in the type of y's dtype.
// ACROSS threads lie along inner, ALONG along n, the rest of the 256 along (o, s); KIND: 0 sum, 1 prod, 2 max, 3 min.
// Each thread sums every ALONG-th element in four parts, then a tree joins the ALONG threads: the order never changes.
// READS = 1: an element stands for eight neighbours along n (inner == 1), read at once; x, n and chunk are aligned to
// them. READS = 2, of the 16-bit dtypes: a thread has two neighbours along inner, read at once; x and inner are aligned
// to them.
#include "eights.h"
#define IN_f32_f32 f32
#define IN_f32_f16 f32
#define IN_f32_bf16 f32
#define IN_f16_f32 f16
#define IN_f16_f16 f16
#define IN_bf16_f32 bf16
#define IN_bf16_bf16 bf16
#define IN_f64_f64 f64
#define IN_i32_i32 i32
#define IN_i64_i64 i64
#define OUT_f32_f32 f32
#define OUT_f32_f16 f16
#define OUT_f32_bf16 bf16
#define OUT_f16_f32 f32
#define OUT_f16_f16 f16
#define OUT_bf16_f32 f32
#define OUT_bf16_bf16 bf16
#define OUT_f64_f64 f64
#define OUT_i32_i32 i32
#define OUT_i64_i64 i64
#define TI RLX_JOIN(IN_, IO)
#define TO RLX_JOIN(OUT_, IO)

#define EIGHTS (READS == 1u)
#define PAIRS (READS == 2u)
#define LOWEST_f32 (-INFINITE)
#define LOWEST_f16 (-INFINITE)
#define LOWEST_bf16 (-INFINITE)
#define LOWEST_f64 (-INFINITE64)
#define LOWEST_i32 (-2147483647 - 1)
#define LOWEST_i64 (-HIGHEST_i64 - rlx_i64(1))
#define HIGHEST_f32 INFINITE
#define HIGHEST_f16 INFINITE
#define HIGHEST_bf16 INFINITE
#define HIGHEST_f64 INFINITE64
#define HIGHEST_i32 2147483647
#define HIGHEST_i64 ((rlx_i64(2147483647) << 32) | rlx_i64(0xffffffffu))
#define ACC VAL(TO)

SHARED ACC partial[256];
SHARED ACC beside[256];  // of the second of two neighbours

#define NAN_f32(x) IS_NAN(x)
#define NAN_f16(x) IS_NAN(x)
#define NAN_bf16(x) IS_NAN(x)
#define NAN_f64(x) IS_NAN64(x)
#define NAN_i32(x) false
#define NAN_i64(x) false
#define DIVIDE_f32(x, d) p_div_f(x, d)
#define DIVIDE_f16(x, d) p_div_f(x, d)
#define DIVIDE_bf16(x, d) p_div_f(x, d)
#define DIVIDE_f64(x, d) (x)  // a mean is written as a sum and a product
#define DIVIDE_i32(x, d) (x)
#define DIVIDE_i64(x, d) (x)

RLX_FN ACC combine(const ACC a, const ACC b) {
    if (KIND == 0u) return a + b;
    if (KIND == 1u) return a * b;
    if (RLX_JOIN(NAN_, TO)(a)) return a;
    if (RLX_JOIN(NAN_, TO)(b)) return b;
    if (KIND == 2u) return a > b ? a : b;
    return a < b ? a : b;
}

RLX_FN ACC four(const vec4 v) { return combine(combine(ACC(v.x), ACC(v.y)), combine(ACC(v.z), ACC(v.w))); }

// Element `at` of p (the reduction of eight of them, where EIGHTS), and its neighbour where PAIRS.
#define FETCH_f32                                                             \
    RLX_FN ACC fetch(PTR(TI) p, const uint at, RLX_OUT(ACC) next) {           \
        next = ACC(0);                                                        \
        return ACC(LOAD(TI, p, at));                                          \
    }
#define FETCH_f64 FETCH_f32
#define FETCH_i32 FETCH_f32
#define FETCH_i64 FETCH_f32
#define FETCH_f16                                                             \
    RLX_FN ACC fetch(PTR(TI) p, const uint at, RLX_OUT(ACC) next) {           \
        next = ACC(0);                                                        \
        if (EIGHTS) {                                                         \
            vec4 a, b;                                                        \
            LOAD8(TI, p, at, a, b);                                           \
            return combine(four(a), four(b));                                 \
        }                                                                     \
        if (!PAIRS) return LOAD(TI, p, at);                                   \
        const uint w = WORDS1(p, at / 2u);                                    \
        next = RLX_JOIN(HIGH_, TI)(w);                                        \
        return RLX_JOIN(LOW_, TI)(w);                                         \
    }
#define FETCH_bf16 FETCH_f16
#define FETCH_OF_(T) FETCH_##T
#define FETCH_OF(T) FETCH_OF_(T)  // not RLX_JOIN, which its own text calls
FETCH_OF(TI)

RLX_FN void reduce_body(const PTR(TI) x, const PTR(TO) y, const uint outer, const uint n, const uint inner,
                        const uint chunk, const uint splits, const float divisor) {
    const uint across = THREAD % ACROSS, along = THREAD / ACROSS % ALONG;
    const uint items = 256u / (ACROSS * ALONG);
    const uint width = PAIRS ? 2u : 1u;
    const uint blocks = (inner + width * ACROSS - 1u) / (width * ACROSS);
    const uint item = GROUP / blocks * items + THREAD / (ACROSS * ALONG);  // over (o, s)
    const uint i = (GROUP % blocks * ACROSS + across) * width;
    const bool live = item < outer * splits && i < inner;
    const uint o = item / splits, s = item % splits;
    const ACC neutral = KIND == 0u   ? ACC(0)
                        : KIND == 1u ? ACC(1)
                        : KIND == 2u ? ACC(RLX_JOIN(LOWEST_, TO))
                                     : ACC(RLX_JOIN(HIGHEST_, TO));
    ACC a0 = neutral, a1 = neutral, a2 = neutral, a3 = neutral;
    ACC b0 = neutral, b1 = neutral, b2 = neutral, b3 = neutral;
    if (live) {
        PTR(TI) p = SKIP(TI, SKIP(TI, x, o, n * inner), s * chunk, inner);
        const uint rest = n - s * chunk;
        const uint len = rest < chunk ? rest : chunk;
        const uint terms = EIGHTS ? len / 8u : len;
        ACC w0, w1, w2, w3;
        uint j = along;
        for (; j + 3u * ALONG < terms; j += 4u * ALONG) {
            const ACC v0 = fetch(p, j * inner + i, w0);
            const ACC v1 = fetch(p, (j + ALONG) * inner + i, w1);
            const ACC v2 = fetch(p, (j + 2u * ALONG) * inner + i, w2);
            const ACC v3 = fetch(p, (j + 3u * ALONG) * inner + i, w3);
            a0 = combine(a0, v0);
            a1 = combine(a1, v1);
            a2 = combine(a2, v2);
            a3 = combine(a3, v3);
            if (PAIRS) {
                b0 = combine(b0, w0);
                b1 = combine(b1, w1);
                b2 = combine(b2, w2);
                b3 = combine(b3, w3);
            }
        }
        for (; j < terms; j += ALONG) {
            a0 = combine(a0, fetch(p, j * inner + i, w0));
            if (PAIRS) b0 = combine(b0, w0);
        }
    }
    partial[THREAD] = combine(combine(a0, a1), combine(a2, a3));
    if (PAIRS) beside[THREAD] = combine(combine(b0, b1), combine(b2, b3));
    for (uint half_way = ALONG / 2u; half_way > 0u; half_way /= 2u) {
        BARRIER;
        if (along < half_way) partial[THREAD] = combine(partial[THREAD], partial[THREAD + half_way * ACROSS]);
        if (PAIRS && along < half_way) beside[THREAD] = combine(beside[THREAD], beside[THREAD + half_way * ACROSS]);
    }
    if (live && along == 0u) {
        STORE(TO, y, item * inner + i, RLX_JOIN(DIVIDE_, TO)(partial[THREAD], divisor));
        if (PAIRS) STORE(TO, y, item * inner + i + 1u, RLX_JOIN(DIVIDE_, TO)(beside[THREAD], divisor));
    }
}
