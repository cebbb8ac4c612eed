// y[o, s, i] = the reduction of x[o, s*chunk : (s+1)*chunk, i], where x is (outer, n, inner); floats are then divided
// by `divisor`. IO names the storage dtypes of x and y; the arithmetic is in the arithmetic type of y's dtype. Of the
// 256 threads of a workgroup, ACROSS lie along inner, ALONG along n, and the rest along (o, s). KIND: 0 sum, 1 product,
// 2 max, 3 min. Each thread reduces every ALONG-th element in four partial results; a tree then joins the ALONG
// threads, so that the order of additions never changes.
// READS = 1: a thread reads eight neighbours along n at once (inner == 1; x, n and chunk are multiples of eight). READS
// = 2, for 16-bit dtypes: a thread reads two neighbours along inner at once (x and inner are multiples of two). PARTS,
// for sums and products: bit 0 says that x holds the Parts (extended.h) of an earlier stage, bit 1 that y will. A
// workgroup in which a sum overflows adds its terms up once more, scaled as the second sum of a Part is. All other
// workgroups read x once and add once. SQUARES: the terms are the squared distances of x from `centers`, one for each
// place of inner.
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
#define PARTS_IN ((PARTS & 1u) != 0u)
#define PARTS_OUT ((PARTS & 2u) != 0u)
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
#define WORK_f32 f32
#define WORK_f16 f32
#define WORK_bf16 f32
#define WORK_f64 f64
#define WORK_i32 i32
#define WORK_i64 i64
#define N RLX_JOIN(WORK_, TO)
#define PRODUCT (KIND == 1u)
#include "extended.h"

SHARED Part partial[256];
SHARED Part beside[256];  // the Parts of the second of two neighbours
SHARED uint overflowed;   // 1 where a sum of the workgroup is not finite

#define NAN_f32(x) IS_NAN(x)
#define NAN_f16(x) IS_NAN(x)
#define NAN_bf16(x) IS_NAN(x)
#define NAN_f64(x) IS_NAN64(x)
#define NAN_i32(x) false
#define NAN_i64(x) false
// The mean: the sum over the divisor, or the scaled sum where the plain one has overflowed.
#define MEAN_f32(a, d) (m_abs_bits(a.high) < 0x7f800000u ? p_div_f(a.high, d) : p_div_f(a.low, d) * RLX_FLOAT(0x5f800000u))
#define MEAN_f16(a, d) MEAN_f32(a, d)
#define MEAN_bf16(a, d) MEAN_f32(a, d)
#define MEAN_f64(a, d) whole(a)  // f64 has no mean here: it is decomposed into a sum and a product
#define MEAN_i32(a, d) whole(a)
#define MEAN_i64(a, d) whole(a)

// Whether a sum has overflowed, and the factor of the terms in the second pass.
#define LEFT_f32(x) (m_abs_bits(x) >= 0x7f800000u)
#define LEFT_f16(x) LEFT_f32(x)
#define LEFT_bf16(x) LEFT_f32(x)
#define LEFT_f64(x) (d_abs_bits(x) >= D_INF_BITS)
#define LEFT_i32(x) false
#define LEFT_i64(x) false
#define DOWN_f32 RLX_FLOAT(0x1f800000u)
#define DOWN_f16 DOWN_f32
#define DOWN_bf16 DOWN_f32
#define DOWN_f64 d_pow2(-256)
#define DOWN_i32 1
#define DOWN_i64 rlx_i64(1)

#ifdef SQUARES
#define CENTERS PTR(f32) centers,
#define CENTER(i) LOAD(f32, centers, i)
RLX_FN NUM term(const NUM v, const NUM center) {
    const NUM far = v - center;
    return far * far;
}
#else
#define CENTERS
#define CENTER(i) NUM(0)
#define term(v, center) (v)
#endif
// The Part of one term. Of a sum only `high` is used until the end; in the second pass it is scaled.
RLX_FN Part lift(const NUM v, const bool scaled) {
    if (KIND == 1u) return lifted(v);
    return part_of(KIND == 0u && scaled ? v * RLX_JOIN(DOWN_, TO) : v, NUM(0), 0);
}
RLX_FN Part combine(const Part a, const Part b) {
    if (KIND == 0u) return part_of(a.high + b.high, NUM(0), 0);
    if (KIND == 1u) return joined(a, b);
    if (RLX_JOIN(NAN_, TO)(a.high)) return a;
    if (RLX_JOIN(NAN_, TO)(b.high)) return b;
    const bool first = KIND == 2u ? a.high > b.high : a.high < b.high;
    return part_of(first ? a.high : b.high, NUM(0), 0);
}
RLX_FN NUM result(const Part a, const float divisor) {
    if (KIND == 0u) return RLX_JOIN(MEAN_, TO)(a, divisor);
    if (KIND == 1u) return whole(a);
    return a.high;
}

RLX_FN Part four(const vec4 v, const bool scaled) {
    return combine(combine(lift(NUM(v.x), scaled), lift(NUM(v.y), scaled)),
                   combine(lift(NUM(v.z), scaled), lift(NUM(v.w), scaled)));
}

// Element `at` of p; with EIGHTS the reduction of eight elements, with PAIRS also the next element.
#define FETCH_f32                                                                                              \
    RLX_FN Part fetch(PTR(TI) p, const uint at, const uint plane, const bool scaled, const NUM center,         \
                      const NUM beyond, RLX_OUT(Part) next) {                                                  \
        next = part_of(NUM(0), NUM(0), 0);                                                                     \
        if (PARTS_IN) {                                                                                        \
            const Part a = load_part(AS(N, p), at, plane);                                                     \
            if (KIND == 0u) return part_of(scaled ? a.low : a.high, NUM(0), 0);                                \
            return a;                                                                                          \
        }                                                                                                      \
        return lift(term(NUM(LOAD(TI, p, at)), center), scaled);                                               \
    }
#define FETCH_f64 FETCH_f32
#define FETCH_i32 FETCH_f32
#define FETCH_i64 FETCH_f32
#define FETCH_f16                                                                                              \
    RLX_FN Part fetch(PTR(TI) p, const uint at, const uint plane, const bool scaled, const NUM center,         \
                      const NUM beyond, RLX_OUT(Part) next) {                                                  \
        next = part_of(NUM(0), NUM(0), 0);                                                                     \
        if (EIGHTS) {                                                                                          \
            vec4 a, b;                                                                                         \
            LOAD8(TI, p, at, a, b);                                                                            \
            return combine(four(a, scaled), four(b, scaled));                                                  \
        }                                                                                                      \
        if (!PAIRS) return lift(term(LOAD(TI, p, at), center), scaled);                                        \
        const uint w = WORDS1(p, at / 2u);                                                                     \
        next = lift(term(RLX_JOIN(HIGH_, TI)(w), beyond), scaled);                                             \
        return lift(term(RLX_JOIN(LOW_, TI)(w), center), scaled);                                              \
    }
#define FETCH_bf16 FETCH_f16
#define FETCH_OF_(T) FETCH_##T
#define FETCH_OF(T) FETCH_OF_(T)  // not RLX_JOIN, which cannot expand inside itself
FETCH_OF(TI)

// Reduces `terms` terms of a line. The first of the ALONG threads of a line stores the result in its entry of
// `partial`, and that of the neighbouring line in `beside`. Every thread of the workgroup calls it; `live`: this one
// has a line.
RLX_FN void sweep(PTR(TI) p, const uint terms, const uint inner, const uint i, const uint plane, const bool live,
                  const bool scaled, const NUM center, const NUM beyond) {
    const uint along = THREAD / ACROSS % ALONG;
    const Part neutral = lift(KIND == 0u   ? NUM(0)
                              : KIND == 1u ? NUM(1)
                              : KIND == 2u ? NUM(RLX_JOIN(LOWEST_, TO))
                                           : NUM(RLX_JOIN(HIGHEST_, TO)), false);
    Part a0 = neutral, a1 = neutral, a2 = neutral, a3 = neutral;
    Part b0 = neutral, b1 = neutral, b2 = neutral, b3 = neutral;
    if (live) {
        Part w0, w1, w2, w3;
        uint j = along;
        for (; j + 3u * ALONG < terms; j += 4u * ALONG) {
            const Part v0 = fetch(p, j * inner + i, plane, scaled, center, beyond, w0);
            const Part v1 = fetch(p, (j + ALONG) * inner + i, plane, scaled, center, beyond, w1);
            const Part v2 = fetch(p, (j + 2u * ALONG) * inner + i, plane, scaled, center, beyond, w2);
            const Part v3 = fetch(p, (j + 3u * ALONG) * inner + i, plane, scaled, center, beyond, w3);
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
            a0 = combine(a0, fetch(p, j * inner + i, plane, scaled, center, beyond, w0));
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
}

RLX_FN void reduce_body(const PTR(TI) x, CENTERS const PTR(TO) y, const uint outer, const uint n, const uint inner,
                        const uint chunk, const uint splits, const float divisor) {
    const uint across = THREAD % ACROSS;
    const uint items = 256u / (ACROSS * ALONG);
    const uint width = PAIRS ? 2u : 1u;
    const uint blocks = (inner + width * ACROSS - 1u) / (width * ACROSS);
    const uint item = GROUP / blocks * items + THREAD / (ACROSS * ALONG);  // over (o, s)
    const uint i = (GROUP % blocks * ACROSS + across) * width;
    const bool live = item < outer * splits && i < inner;
    const bool gives = live && THREAD / ACROSS % ALONG == 0u;
    const uint o = item / splits, s = item % splits;
    const uint plane = outer * n * inner;
    PTR(TI) p = SKIP(TI, SKIP(TI, x, live ? o : 0u, n * inner), live ? s * chunk : 0u, inner);
    const uint rest = live ? n - s * chunk : 0u;
    const uint len = rest < chunk ? rest : chunk;
    const uint terms = EIGHTS ? len / 8u : len;
    if (THREAD == 0u) overflowed = 0u;
    const NUM center = CENTER(live ? i : 0u), beyond = CENTER(live && PAIRS ? i + 1u : 0u);
    sweep(p, terms, inner, i, plane, live, false, center, beyond);
    Part mine = partial[THREAD], next = mine;
    if (PAIRS) next = beside[THREAD];
    if (KIND == 0u) {
        BARRIER;
        if (gives && (RLX_JOIN(LEFT_, TO)(mine.high) || (PAIRS && RLX_JOIN(LEFT_, TO)(next.high)))) overflowed = 1u;
        BARRIER;
        mine.low = mine.high * RLX_JOIN(DOWN_, TO);
        next.low = next.high * RLX_JOIN(DOWN_, TO);
        if (overflowed != 0u) {
            sweep(p, terms, inner, i, plane, live, true, center, beyond);
            mine.low = partial[THREAD].high;
            if (PAIRS) next.low = beside[THREAD].high;
        }
    }
    if (gives) {
        if (PARTS_OUT) {
            store_part(AS(N, y), item * inner + i, outer * splits * inner, mine);
            if (PAIRS) store_part(AS(N, y), item * inner + i + 1u, outer * splits * inner, next);
        } else {
            STORE(TO, y, item * inner + i, result(mine, divisor));
            if (PAIRS) STORE(TO, y, item * inner + i + 1u, result(next, divisor));
        }
    }
}
