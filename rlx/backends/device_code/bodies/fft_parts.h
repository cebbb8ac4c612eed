// What transforms of all lengths share: pairs in memory, the first input and the last output of a line, butterflies.
//
// Transforms of the other direction are those of the conjugates. FORM: bits 0-1 the input (0 pairs, 1 real numbers, 2
// half a spectrum, 3 that of twice as many real numbers), 3 only real parts are written, 4 the input is conjugated, 5
// then multiplied by `factors`; 6 the output is conjugated, 7 then multiplied by `factors`, 8 by the scale, 9
// conjugated; 10 neighbouring threads read neighbouring lines, 11 and write those; 12 the output is half the spectrum
// of twice as many real numbers, 13 every input is there, 14 every output is kept. Twice as many real numbers are pairs
// of neighbours; of these `factors` has the roots of unity. table: the scale, the N-th roots of unity, and those of
// order N * BEFORE: 2^fine neighbours, and every 2^fine-th.
#define PAIR_f32 b8
#define PAIR_f64 f64
#define PAIR RLX_JOIN(PAIR_, T)
#define Z_f32 RLX_F2
#define Z_f64 RLX_D2
#define Z RLX_JOIN(Z_, T)
#define MAKE_f32(a, b) RLX_MAKE_F2(a, b)
#define MAKE_f64(a, b) RLX_MAKE_D2(a, b)
#define COMPLEX(a, b) RLX_JOIN(MAKE_, T)(a, b)
#define ROOT_HALF_f32 0.70710678118654752f
#define COS_EIGHTH_f32 0.92387953251128674f
#define SIN_EIGHTH_f32 0.38268343236508977f
#define ROOT_HALF_f64 RLX_D64(0x3fe6a09eu, 0x667f3bcdu)
#define COS_EIGHTH_f64 RLX_D64(0x3fed906bu, 0xcf328d46u)
#define SIN_EIGHTH_f64 RLX_D64(0x3fd87de2u, 0xa6aea963u)
#define ROOT_HALF RLX_JOIN(ROOT_HALF_, T)
#define COS_EIGHTH RLX_JOIN(COS_EIGHTH_, T)
#define SIN_EIGHTH RLX_JOIN(SIN_EIGHTH_, T)
#ifdef RLX_GLSL
#define UVEC2(a, b) uvec2(a, b)
#else
#define UVEC2(a, b) make_uint2(a, b)
#endif

// Indices are signed where a constant is added to them: unsigned sums may wrap, and would be computed one by one.
RLX_FN RLX_F2 load_pair_f32(PTR(b8) p, const int i) {
    const uvec2 u = p AT(i);
    return RLX_MAKE_F2(RLX_FLOAT(u.x), RLX_FLOAT(u.y));
}
RLX_FN void store_pair_f32(PTR(b8) p, const int i, const RLX_F2 z) { p AT(i) = UVEC2(RLX_BITS(z.x), RLX_BITS(z.y)); }
RLX_FN RLX_D2 load_pair_f64(PTR(f64) p, const int i) {
    return RLX_MAKE_D2(LOAD(f64, p, 2u * uint(i)), LOAD(f64, p, 2u * uint(i) + 1u));
}
RLX_FN void store_pair_f64(PTR(f64) p, const int i, const RLX_D2 z) {
    STORE(f64, p, 2u * uint(i), z.x);
    STORE(f64, p, 2u * uint(i) + 1u, z.y);
}
#define PAIRS_AFTER_f32(p, n) SKIP(b8, p, n, 1u)
#define PAIRS_AFTER_f64(p, n) SKIP(f64, p, n, 2u)
#define PAIRS_AFTER(p, n) RLX_JOIN(PAIRS_AFTER_, T)(p, n)
#define LOAD_PAIR(p, i) RLX_JOIN(load_pair_, T)(p, int(i))
#define STORE_PAIR(p, i, z) RLX_JOIN(store_pair_, T)(p, int(i), z)

RLX_FN Z conjugate(const Z a) { return COMPLEX(a.x, -a.y); }
RLX_FN Z sum(const Z a, const Z b) { return COMPLEX(a.x + b.x, a.y + b.y); }
RLX_FN Z difference(const Z a, const Z b) { return COMPLEX(a.x - b.x, a.y - b.y); }
// a times b, whose imaginary part is -minus.
RLX_FN Z times_by(const Z a, const Z b, const VAL(T) minus) {
    return COMPLEX(FMA_IN(T, a.x, b.x, a.y * minus), FMA_IN(T, a.x, b.y, a.y * b.x));
}
RLX_FN Z times(const Z a, const Z b) { return times_by(a, b, -b.y); }

// A root of unity of order N * BEFORE.
RLX_FN Z root_of_pass(PTR(PAIR) table, const uint angle, const uint fine) {
    const Z near = LOAD_PAIR(table, 1u + N + (angle & ((1u << fine) - 1u)));
    return times(near, LOAD_PAIR(table, 1u + N + (1u << fine) + (angle >> fine)));
}

// Element start + more of a line of `size`, 0 beyond it. A line in memory takes `pitch` elements, of which `given`
// count. No load waits for a branch: what is not there is read at the start of the line, and not used. Element `start`
// is at `here`, from where the others lie at constant distances.
RLX_FN Z input_at(PTR(PAIR) x, PTR(T) reals, PTR(PAIR) factors, PTR(PAIR) here, const uint number, const uint start,
                  const uint more, const uint given, const uint pitch, const uint size) {
    const uint at = start + more;
    if ((FORM & 3u) == 3u) {
        Z a = LOAD_PAIR(x, number * pitch + at), b = LOAD_PAIR(x, number * pitch + N - at);
        if (at == 0u) {
            a = COMPLEX(a.x, VAL(T)(0));
            b = COMPLEX(b.x, VAL(T)(0));
        }
        if ((FORM & 16u) != 0u) a = conjugate(a);
        if ((FORM & 16u) == 0u) b = conjugate(b);
        const Z t = times(conjugate(LOAD_PAIR(factors, at)), difference(a, b));
        return COMPLEX(a.x + b.x - t.y, -(a.y + b.y + t.x));
    }
    const bool mirrored = (FORM & 3u) == 2u && at > size / 2u;
    const uint from = mirrored ? size - at : at;
    const bool there = (FORM & 8192u) != 0u || (at < size && from < given);
    const uint place = number * pitch + (there ? from : 0u);
    Z z;
    if ((FORM & 3u) == 1u) z = COMPLEX(LOAD(T, reals, place), VAL(T)(0));
    else if ((FORM & 8195u) == 8192u) z = LOAD_PAIR(here, more);
    else z = LOAD_PAIR(x, place);
    if ((FORM & 3u) == 2u && (from == 0u || 2u * from == size)) z = COMPLEX(z.x, VAL(T)(0));
    if ((FORM & 16u) != 0u) z = conjugate(z);
    if ((FORM & 3u) == 2u) z = COMPLEX(z.x, mirrored ? -z.y : z.y);
    if ((FORM & 32u) != 0u) z = times(z, LOAD_PAIR(factors, there ? at : 0u));
    return COMPLEX(there ? z.x : VAL(T)(0), there ? z.y : VAL(T)(0));
}

// Writes element start + more, unless it is none of the first `kept`. Its factor comes after those of a whole line.
RLX_FN void put_output(PTR(PAIR) here, PTR(T) parts, PTR(PAIR) factors, const VAL(T) scale, const uint number,
                       const uint start, const uint more, const uint kept, const Z found) {
    const uint at = start + more;
    Z z = found;
    if ((FORM & 64u) != 0u) z = conjugate(z);
    if ((FORM & 128u) != 0u) z = times(z, LOAD_PAIR(factors, N * APART + (at < kept ? at : 0u)));
    if ((FORM & 256u) != 0u) z = COMPLEX(z.x * scale, z.y * scale);
    if ((FORM & 512u) != 0u) z = conjugate(z);
    if ((FORM & 16384u) != 0u || at < kept) {
        if ((FORM & 8u) != 0u) STORE(T, parts, number * kept + at, z.x);
        else STORE_PAIR(here, more, z);
    }
}

// Transforms in place of a few elements of v, from element o; powers of two leave element k where its bits reversed
// say. TURNED_OF is PAIR_OF after a multiplication of v[b] by -i. No result is negated: where negative numbers are no
// part of an instruction, that would be one more.
#define PAIR_OF(a, b)                          \
    {                                          \
        const Z d = difference(v[a], v[b]);    \
        v[a] = sum(v[a], v[b]);                \
        v[b] = d;                              \
    }
#define TURNED_OF(a, b)                                               \
    {                                                                 \
        const Z d = COMPLEX(v[a].x - v[b].y, v[a].y + v[b].x);        \
        v[a] = COMPLEX(v[a].x + v[b].y, v[a].y - v[b].x);             \
        v[b] = d;                                                     \
    }
#define TIMES(a, re, im) v[a] = times_by(v[a], COMPLEX(re, im), -(im));
#define FORM1(o)
#define FORM2(o) PAIR_OF((o), (o) + 1u)
#define FOUR(o, FIRST_OF) FIRST_OF((o), (o) + 2u) PAIR_OF((o) + 1u, (o) + 3u) FORM2((o)) TURNED_OF((o) + 2u, (o) + 3u)
#define FORM4(o) FOUR(o, PAIR_OF)
#define EIGHT(o, FIRST_OF)                                                                                       \
    FIRST_OF((o), (o) + 4u) PAIR_OF((o) + 1u, (o) + 5u) PAIR_OF((o) + 2u, (o) + 6u) PAIR_OF((o) + 3u, (o) + 7u) \
    TIMES((o) + 5u, ROOT_HALF, -ROOT_HALF) TIMES((o) + 7u, -ROOT_HALF, -ROOT_HALF)                               \
    FOUR((o), PAIR_OF) FOUR((o) + 4u, TURNED_OF)
#define FORM8(o) EIGHT(o, PAIR_OF)
#define FORM16(o)                                                                                                \
    PAIR_OF(0u, 8u) PAIR_OF(1u, 9u) PAIR_OF(2u, 10u) PAIR_OF(3u, 11u)                                            \
    PAIR_OF(4u, 12u) PAIR_OF(5u, 13u) PAIR_OF(6u, 14u) PAIR_OF(7u, 15u)                                          \
    TIMES(9u, COS_EIGHTH, -SIN_EIGHTH) TIMES(10u, ROOT_HALF, -ROOT_HALF) TIMES(11u, SIN_EIGHTH, -COS_EIGHTH)     \
    TIMES(13u, -SIN_EIGHTH, -COS_EIGHTH) TIMES(14u, -ROOT_HALF, -ROOT_HALF) TIMES(15u, -COS_EIGHTH, -SIN_EIGHTH) \
    EIGHT(0u, PAIR_OF) EIGHT(8u, TURNED_OF)
#define AS_IT_IS(i) (i)
#define REVERSED4(i) (((i) & 1u) << 1 | ((i) >> 1))
#define REVERSED8(i) (((i) & 1u) << 2 | ((i) & 2u) | ((i) >> 2))
#define REVERSED16(i) (((i) & 1u) << 3 | ((i) & 2u) << 1 | ((i) & 4u) >> 1 | ((i) >> 3))

// The factor of all outputs. It is read once, in front of all writes, which might change it for all that a compiler
// knows.
#define SCALE_OF(table) ((FORM & 256u) != 0u ? LOAD_PAIR(table, 0u).x : VAL(T)(0))
#define SPLIT ((FORM & 4096u) != 0u)
#define DIGIT(i) ((i) >= 8u ? 3u : (i) >= 4u ? 2u : (i) >= 2u ? 1u : 0u)
#define HIGH(i) (1u << DIGIT(i))
