// The transforms of lines of N complex numbers: a whole transform, or one pass of a longer one, of N * APART, whose lines
// take every APART-th element. A group takes LINES lines through stages of the radices that RADICES lists, four bits each,
// the first one lowest (15: radix 16): a stage reads its inputs N / radix apart, multiplies them by roots of unity, and
// writes its results so that the last stage leaves them in order (Stockham's algorithm). Passes are stages of the same
// kind, of radix N, in memory; BEFORE is the product of the lengths of earlier passes. Lines lie in shared memory between
// stages, real parts in front of imaginary ones; one of 32 places is empty, and a line takes STRIDE places, so that
// neighbouring threads find different memory banks.
//
// Transforms of the other direction are those of the conjugates. FORM: bits 0-1 the input (0 pairs, 1 real numbers, 2
// half a spectrum, 3 that of twice as many real numbers), 3 only real parts are written, 4 the input is conjugated, 5 then multiplied by `factors`; 6 the output
// is conjugated, 7 then multiplied by `factors`, 8 by the scale, 9 conjugated; 10 neighbouring threads read neighbouring
// lines, 11 and write those; 12 the output is half the spectrum of twice as many real numbers, 13 every input is there, 14
// every output is kept. Twice as many real numbers are pairs of neighbours; of these `factors` has the roots of unity.
// table: the scale, the N-th roots of unity, and those of order N * BEFORE: 2^fine neighbours, and every 2^fine-th.
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

SHARED VAL(T) tile[2u * LINES * STRIDE];

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
RLX_FN Z times(const Z a, const Z b) {
    return COMPLEX(FMA_IN(T, a.x, b.x, -(a.y * b.y)), FMA_IN(T, a.x, b.y, a.y * b.x));
}

// The place in a line of its element at + more. Where N is a power of two, no bit is set in both, and the place of `more`
// may be known when a pipeline is made.
RLX_FN int place(const uint at, const uint more) {
    if ((N & (N - 1u)) == 0u) return int(at + (at >> 5)) + int(more + (more >> 5));
    return int(at + more + ((at + more) >> 5));
}

// A root of unity of order N * BEFORE.
RLX_FN Z root_of_pass(PTR(PAIR) table, const uint angle, const uint fine) {
    const Z near = LOAD_PAIR(table, 1u + N + (angle & ((1u << fine) - 1u)));
    return times(near, LOAD_PAIR(table, 1u + N + (1u << fine) + (angle >> fine)));
}

// Element start + more of a line of `size`, 0 beyond it. A line in memory takes `pitch` elements, of which `given` count. No load
// waits for a branch: what is not there is read at the start of the line, and not used. Element `start` is at `here`, from
// where the others lie at constant distances.
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
RLX_FN void put_output(PTR(PAIR) here, PTR(T) parts, PTR(PAIR) factors, PTR(PAIR) table, const uint number,
                       const uint start, const uint more, const uint kept, const Z found) {
    const uint at = start + more;
    Z z = found;
    if ((FORM & 64u) != 0u) z = conjugate(z);
    if ((FORM & 128u) != 0u) z = times(z, LOAD_PAIR(factors, N * APART + (at < kept ? at : 0u)));
    if ((FORM & 256u) != 0u) {
        const VAL(T) scale = LOAD_PAIR(table, 0u).x;
        z = COMPLEX(z.x * scale, z.y * scale);
    }
    if ((FORM & 512u) != 0u) z = conjugate(z);
    if ((FORM & 16384u) != 0u || at < kept) {
        if ((FORM & 8u) != 0u) STORE(T, parts, number * kept + at, z.x);
        else STORE_PAIR(here, more, z);
    }
}

// Transforms in place of a few elements of v, from element o; powers of two leave element k where its bits reversed say.
#define PAIR_OF(a, b)                          \
    {                                          \
        const Z d = difference(v[a], v[b]);    \
        v[a] = sum(v[a], v[b]);                \
        v[b] = d;                              \
    }
#define TURN(a) v[a] = COMPLEX(v[a].y, -v[a].x);
#define TIMES(a, re, im) v[a] = times(v[a], COMPLEX(re, im));
#define FORM1(o)
#define FORM2(o) PAIR_OF((o), (o) + 1u)
#define FORM4(o)                                      \
    PAIR_OF((o), (o) + 2u) PAIR_OF((o) + 1u, (o) + 3u) \
    TURN((o) + 3u) FORM2((o)) FORM2((o) + 2u)
#define FORM8(o)                                                                                          \
    PAIR_OF((o), (o) + 4u) PAIR_OF((o) + 1u, (o) + 5u) PAIR_OF((o) + 2u, (o) + 6u) PAIR_OF((o) + 3u, (o) + 7u) \
    TIMES((o) + 5u, ROOT_HALF, -ROOT_HALF) TURN((o) + 6u) TIMES((o) + 7u, -ROOT_HALF, -ROOT_HALF)         \
    FORM4((o)) FORM4((o) + 4u)
#define FORM16(o)                                                                                         \
    PAIR_OF(0u, 8u) PAIR_OF(1u, 9u) PAIR_OF(2u, 10u) PAIR_OF(3u, 11u)                                     \
    PAIR_OF(4u, 12u) PAIR_OF(5u, 13u) PAIR_OF(6u, 14u) PAIR_OF(7u, 15u)                                   \
    TIMES(9u, COS_EIGHTH, -SIN_EIGHTH) TIMES(10u, ROOT_HALF, -ROOT_HALF) TIMES(11u, SIN_EIGHTH, -COS_EIGHTH) \
    TURN(12u) TIMES(13u, -SIN_EIGHTH, -COS_EIGHTH) TIMES(14u, -ROOT_HALF, -ROOT_HALF)                     \
    TIMES(15u, -COS_EIGHTH, -SIN_EIGHTH) FORM8(0u) FORM8(8u)
// An odd prime R: sums and differences of mirror images, times cosines and sines.
#define FORM_ODD(R, o)                                                                    \
    {                                                                                     \
        Z root[(R - 1u) / 2u], made[R];                                                   \
        UNROLL for (uint j = 1u; j <= (R - 1u) / 2u; j++) {                               \
            root[j - 1u] = LOAD_PAIR(table, 1u + j * (N / R));                            \
            PAIR_OF((o) + j, (o) + R - j)                                                 \
        }                                                                                 \
        made[0] = v[o];                                                                   \
        UNROLL for (uint k = 1u; k <= (R - 1u) / 2u; k++) {                               \
            Z even = v[o], odd = COMPLEX(VAL(T)(0), VAL(T)(0));                           \
            made[0] = sum(made[0], v[(o) + k]);                                           \
            UNROLL for (uint j = 1u; j <= (R - 1u) / 2u; j++) {                           \
                const uint turn = j * k % R;                                              \
                const bool back = turn > (R - 1u) / 2u;                                   \
                const Z w = root[(back ? R - turn : turn) - 1u];                          \
                const VAL(T) sine = back ? -w.y : w.y;                                    \
                const Z t = v[(o) + j], u = v[(o) + R - j];                               \
                even = COMPLEX(FMA_IN(T, t.x, w.x, even.x), FMA_IN(T, t.y, w.x, even.y)); \
                odd = COMPLEX(FMA_IN(T, u.x, sine, odd.x), FMA_IN(T, u.y, sine, odd.y));  \
            }                                                                             \
            made[k] = COMPLEX(even.x - odd.y, even.y + odd.x);                            \
            made[R - k] = COMPLEX(even.x + odd.y, even.y - odd.x);                        \
        }                                                                                 \
        UNROLL for (uint k = 0u; k < R; k++) v[(o) + k] = made[k];                        \
    }
#define FORM3(o) FORM_ODD(3u, o)
#define FORM5(o) FORM_ODD(5u, o)
#define FORM7(o) FORM_ODD(7u, o)
#define FORM11(o) FORM_ODD(11u, o)
#define FORM13(o) FORM_ODD(13u, o)
#define AS_IT_IS(i) (i)
#define REVERSED4(i) (((i) & 1u) << 1 | ((i) >> 1))
#define REVERSED8(i) (((i) & 1u) << 2 | ((i) & 2u) | ((i) >> 2))
#define REVERSED16(i) (((i) & 1u) << 3 | ((i) & 2u) << 1 | ((i) & 4u) >> 1 | ((i) >> 3))

// One stage of radix R: a thread transforms SETS sets of R elements, EACH at most. `done` is the product of earlier radices. Of the
// roots of unity those of the powers of two are read, the others are products of them.
#define SPLIT ((FORM & 4096u) != 0u)
#define SETS(R) ((LINES * (N / R) + 255u) / 256u)
#ifdef POWERS
#define STAGES 3u
#define MOST(R, EACH) EACH
#else
#define STAGES 8u
#define MOST(R, EACH) SETS(R)
#endif
#define DIGIT(i) ((i) >= 8u ? 3u : (i) >= 4u ? 2u : (i) >= 2u ? 1u : 0u)
#define HIGH(i) (1u << DIGIT(i))
#define STAGE(NAME, R, EACH, FORMED, AT_BIT)                                                                   \
    RLX_FN void NAME(PTR(PAIR) x, PTR(T) reals, PTR(PAIR) factors, PTR(PAIR) table, PTR(PAIR) y, PTR(T) parts, \
                     const uint lines, const uint given, const uint pitch, const uint size, const uint kept,   \
                     const uint fine, const uint done, const bool last) {                                      \
        Z v[16], w[16];                                                                                        \
        const bool first = done == 1u;                                                                         \
        const bool across = (first && (FORM & 1024u) != 0u) || (last && (FORM & 2048u) != 0u);                 \
        UNROLL for (uint b = 0u; b < MOST(R, EACH); b++) {                                                     \
            const uint set = THREAD + b * 256u;                                                                \
            const uint c = across ? set % LINES : set / (N / R), j = across ? set / LINES : set % (N / R);     \
            const uint line = GROUP * LINES + c;                                                               \
            if (!first && b < SETS(R) && set < LINES * (N / R)) {                                              \
                const uint turn = j % done * (N / R / done);                                                   \
                UNROLL for (uint i = 0u; i < R; i++) {                                                         \
                    const int at = int(c * STRIDE) + place(j, i * (N / R));                                    \
                    v[b * R + i] = COMPLEX(tile[at], tile[at + int(LINES * STRIDE)]);                          \
                    if (i == HIGH(i)) w[i] = LOAD_PAIR(table, 1u + turn * i);                                  \
                    else if (i != 0u) w[i] = times(w[i - HIGH(i)], w[HIGH(i)]);                                \
                    if (i != 0u) v[b * R + i] = times(v[b * R + i], w[i]);                                     \
                }                                                                                              \
                FORMED(b * R)                                                                                  \
            }                                                                                                  \
            if (first && b < SETS(R) && set < LINES * (N / R) && line < lines) {                               \
                const uint number = line / APART, column = line % APART, turn = column % BEFORE;               \
                PTR(PAIR) here = PAIRS_AFTER(x, number * pitch + column + j * APART);                          \
                UNROLL for (uint i = 0u; i < R; i++) {                                                         \
                    v[b * R + i] = input_at(x, reals, factors, here, number, column + j * APART,               \
                                            i * (N / R * APART), given, pitch, size);                          \
                }                                                                                              \
                if (BEFORE > 1u) {                                                                             \
                    Z step[4];                                                                                 \
                    UNROLL for (uint k = 0u; k < 4u; k++) {                                                    \
                        if (1u << k < R) step[k] = root_of_pass(table, turn * (N / R) << k, fine);             \
                    }                                                                                          \
                    w[0] = root_of_pass(table, turn * j, fine);                                                \
                    UNROLL for (uint i = 0u; i < R; i++) {                                                     \
                        if (i != 0u) w[i] = times(w[i - HIGH(i)], step[DIGIT(i)]);                             \
                        v[b * R + i] = times(v[b * R + i], w[i]);                                              \
                    }                                                                                          \
                }                                                                                              \
                FORMED(b * R)                                                                                  \
            }                                                                                                  \
        }                                                                                                      \
        if (!first && (!last || SPLIT)) { BARRIER; }                                                           \
        UNROLL for (uint b = 0u; b < MOST(R, EACH); b++) {                                                     \
            const uint set = THREAD + b * 256u;                                                                \
            const uint c = across ? set % LINES : set / (N / R), j = across ? set / LINES : set % (N / R);     \
            const uint line = GROUP * LINES + c;                                                               \
            if ((!last || SPLIT) && b < SETS(R) && set < LINES * (N / R)) {                                    \
                const uint start = j / done * done * R + j % done;                                             \
                UNROLL for (uint i = 0u; i < R; i++) {                                                         \
                    const int at = int(c * STRIDE) + place(start, i * done);                                   \
                    tile[at] = v[b * R + AT_BIT(i)].x;                                                         \
                    tile[at + int(LINES * STRIDE)] = v[b * R + AT_BIT(i)].y;                                   \
                }                                                                                              \
            }                                                                                                  \
            if (last && !SPLIT && b < SETS(R) && set < LINES * (N / R) && line < lines) {                      \
                const uint number = line / APART, column = line % APART, turn = column % BEFORE;               \
                const uint start = (column - turn) * N + turn + j * BEFORE;                                    \
                PTR(PAIR) here = PAIRS_AFTER(y, number * kept + start);                                        \
                UNROLL for (uint i = 0u; i < R; i++) {                                                         \
                    put_output(here, parts, factors, table, number, start, i * (N / R * BEFORE), kept,         \
                               v[b * R + AT_BIT(i)]);                                                          \
                }                                                                                              \
            }                                                                                                  \
        }                                                                                                      \
        if (!last || SPLIT) { BARRIER; }                                                                       \
    }
STAGE(stage2, 2u, 8u, FORM2, AS_IT_IS)
STAGE(stage4, 4u, 4u, FORM4, REVERSED4)
STAGE(stage8, 8u, 2u, FORM8, REVERSED8)
STAGE(stage16, 16u, 1u, FORM16, REVERSED16)
#ifndef POWERS
STAGE(stage1, 1u, 16u, FORM1, AS_IT_IS)
STAGE(stage3, 3u, 5u, FORM3, AS_IT_IS)
STAGE(stage5, 5u, 3u, FORM5, AS_IT_IS)
STAGE(stage7, 7u, 2u, FORM7, AS_IT_IS)
STAGE(stage11, 11u, 1u, FORM11, AS_IT_IS)
STAGE(stage13, 13u, 1u, FORM13, AS_IT_IS)
#endif

// The spectrum of 2 N real numbers, from that of pairs of neighbours: elements k and N - k of it follow from the same two.
RLX_FN void split(PTR(PAIR) factors, PTR(PAIR) table, PTR(PAIR) y, PTR(T) parts, const uint lines, const uint kept) {
    for (uint item = THREAD; item < LINES * (N / 2u + 1u); item += 256u) {
        const uint c = item / (N / 2u + 1u), k = item % (N / 2u + 1u), mirror = k == 0u ? 0u : N - k;
        const uint line = GROUP * LINES + c;
        if (line < lines) {
            const int at = int(c * STRIDE) + place(k, 0u), other = int(c * STRIDE) + place(mirror, 0u);
            const Z a = COMPLEX(tile[at], tile[at + int(LINES * STRIDE)]);
            const Z b = COMPLEX(tile[other], -tile[other + int(LINES * STRIDE)]);
            const Z t = times(LOAD_PAIR(factors, k), difference(a, b));
            PTR(PAIR) here = PAIRS_AFTER(y, line * kept);
            put_output(here, parts, factors, table, line, 0u, k, kept, COMPLEX(a.x + b.x + t.y, a.y + b.y - t.x));
            put_output(here, parts, factors, table, line, 0u, N - k, kept, COMPLEX(a.x + b.x - t.y, -(a.y + b.y + t.x)));
        }
    }
}

// USED has a bit for each radix: what is not among RADICES is left out when a pipeline is made.
#define IF_RADIX(CODE, NAME)                                                                                   \
    if ((USED >> CODE & 1u) != 0u && radix == CODE) {                                                          \
        NAME(x, reals, factors, table, y, parts, lines, given, pitch, size, kept, fine, done, last);           \
    }

RLX_FN void fft_body(PTR(PAIR) x, PTR(T) reals, PTR(PAIR) factors, PTR(PAIR) table, PTR(PAIR) y, PTR(T) parts,
                     const uint lines, const uint given, const uint pitch, const uint size, const uint kept,
                     const uint fine) {
    if (GROUP * LINES >= lines) return;
    uint done = 1u;
    UNROLL for (uint s = 0u; s < STAGES; s++) {
        const uint radix = RADICES >> (4u * s) & 15u;
        const bool last = s == STAGES - 1u || RADICES >> (4u * s) <= 15u;
        IF_RADIX(2u, stage2)
        IF_RADIX(4u, stage4)
        IF_RADIX(8u, stage8)
        IF_RADIX(15u, stage16)
#ifndef POWERS
        IF_RADIX(1u, stage1)
        IF_RADIX(3u, stage3)
        IF_RADIX(5u, stage5)
        IF_RADIX(7u, stage7)
        IF_RADIX(11u, stage11)
        IF_RADIX(13u, stage13)
#endif
        done *= radix == 15u ? 16u : radix == 0u ? 1u : radix;
    }
    if (SPLIT) split(factors, table, y, parts, lines, kept);
}
