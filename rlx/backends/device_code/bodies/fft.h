// The transforms of lines of N complex numbers: a whole transform, or one pass of a longer one, of N * APART, whose
// lines take every APART-th element. A group takes LINES lines through stages of the radices that RADICES lists, four
// bits each, the first one lowest (15: radix 16): a stage reads its inputs N / radix apart, multiplies them by roots of
// unity, and writes its results so that the last stage leaves them in order (Stockham's algorithm). Passes are stages
// of the same kind, of radix N, in memory; BEFORE is the product of the lengths of earlier passes. Lines lie in shared
// memory between stages, real parts in front of imaginary ones; one of 32 places is empty, and a line takes STRIDE
// places, so that neighbouring threads find different memory banks.
#include "fft_parts.h"

SHARED VAL(T) tile[2u * LINES * STRIDE];

// The place in a line of its element at + more.
RLX_FN int place(const uint at, const uint more) { return int(at + more + ((at + more) >> 5)); }

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
// One stage of radix R: a thread transforms SETS sets of R elements. `done` is the product of earlier radices. Of the
// roots of unity those of the powers of two are read, the others are products of them.
#define SETS(R) ((LINES * (N / R) + 255u) / 256u)
#define STAGES 8u
#define STAGE(NAME, R, FORMED, AT_BIT)                                                                         \
    RLX_FN void NAME(PTR(PAIR) x, PTR(T) reals, PTR(PAIR) factors, PTR(PAIR) table, PTR(PAIR) y, PTR(T) parts, \
                     const uint lines, const uint given, const uint pitch, const uint size, const uint kept,   \
                     const uint fine, const uint done, const bool last) {                                      \
        Z v[16], w[16];                                                                                        \
        const bool first = done == 1u;                                                                         \
        const VAL(T) scale = SCALE_OF(table);                                                                  \
        const bool across = (first && (FORM & 1024u) != 0u) || (last && (FORM & 2048u) != 0u);                 \
        UNROLL for (uint b = 0u; b < SETS(R); b++) {                                                           \
            const uint set = THREAD + b * 256u;                                                                \
            const uint c = across ? set % LINES : set / (N / R), j = across ? set / LINES : set % (N / R);     \
            const uint line = GROUP * LINES + c;                                                               \
            if (!first && set < LINES * (N / R)) {                                              \
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
            if (first && set < LINES * (N / R) && line < lines) {                               \
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
        UNROLL for (uint b = 0u; b < SETS(R); b++) {                                                           \
            const uint set = THREAD + b * 256u;                                                                \
            const uint c = across ? set % LINES : set / (N / R), j = across ? set / LINES : set % (N / R);     \
            const uint line = GROUP * LINES + c;                                                               \
            if ((!last || SPLIT) && set < LINES * (N / R)) {                                    \
                const uint start = j / done * done * R + j % done;                                             \
                UNROLL for (uint i = 0u; i < R; i++) {                                                         \
                    const int at = int(c * STRIDE) + place(start, i * done);                                   \
                    tile[at] = v[b * R + AT_BIT(i)].x;                                                         \
                    tile[at + int(LINES * STRIDE)] = v[b * R + AT_BIT(i)].y;                                   \
                }                                                                                              \
            }                                                                                                  \
            if (last && !SPLIT && set < LINES * (N / R) && line < lines) {                      \
                const uint number = line / APART, column = line % APART, turn = column % BEFORE;               \
                const uint start = (column - turn) * N + turn + j * BEFORE;                                    \
                PTR(PAIR) here = PAIRS_AFTER(y, number * kept + start);                                        \
                UNROLL for (uint i = 0u; i < R; i++) {                                                         \
                    put_output(here, parts, factors, scale, number, start, i * (N / R * BEFORE), kept,         \
                               v[b * R + AT_BIT(i)]);                                                          \
                }                                                                                              \
            }                                                                                                  \
        }                                                                                                      \
        if (!last || SPLIT) { BARRIER; }                                                                       \
    }
STAGE(stage2, 2u, FORM2, AS_IT_IS)
STAGE(stage4, 4u, FORM4, REVERSED4)
STAGE(stage8, 8u, FORM8, REVERSED8)
STAGE(stage16, 16u, FORM16, REVERSED16)
STAGE(stage1, 1u, FORM1, AS_IT_IS)
STAGE(stage3, 3u, FORM3, AS_IT_IS)
STAGE(stage5, 5u, FORM5, AS_IT_IS)
STAGE(stage7, 7u, FORM7, AS_IT_IS)
STAGE(stage11, 11u, FORM11, AS_IT_IS)
STAGE(stage13, 13u, FORM13, AS_IT_IS)

// The spectrum of 2 N real numbers, from that of pairs of neighbours: elements k and N - k of it follow from the same
// two.
RLX_FN void split(PTR(PAIR) factors, PTR(PAIR) table, PTR(PAIR) y, PTR(T) parts, const uint lines, const uint kept) {
    const VAL(T) scale = SCALE_OF(table);
    for (uint item = THREAD; item < LINES * (N / 2u + 1u); item += 256u) {
        const uint c = item / (N / 2u + 1u), k = item % (N / 2u + 1u), mirror = k == 0u ? 0u : N - k;
        const uint line = GROUP * LINES + c;
        if (line < lines) {
            const int at = int(c * STRIDE) + place(k, 0u), other = int(c * STRIDE) + place(mirror, 0u);
            const Z a = COMPLEX(tile[at], tile[at + int(LINES * STRIDE)]);
            const Z b = COMPLEX(tile[other], -tile[other + int(LINES * STRIDE)]);
            const Z t = times(LOAD_PAIR(factors, k), difference(a, b));
            PTR(PAIR) here = PAIRS_AFTER(y, line * kept);
            put_output(here, parts, factors, scale, line, 0u, k, kept, COMPLEX(a.x + b.x + t.y, a.y + b.y - t.x));
            put_output(here, parts, factors, scale, line, 0u, N - k, kept,
                       COMPLEX(a.x + b.x - t.y, -(a.y + b.y + t.x)));
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
        IF_RADIX(1u, stage1)
        IF_RADIX(3u, stage3)
        IF_RADIX(5u, stage5)
        IF_RADIX(7u, stage7)
        IF_RADIX(11u, stage11)
        IF_RADIX(13u, stage13)
        done *= radix == 15u ? 16u : radix == 0u ? 1u : radix;
    }
    if (SPLIT) split(factors, table, y, parts, lines, kept);
}
