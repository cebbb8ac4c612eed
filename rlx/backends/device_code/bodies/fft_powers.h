// Transforms of lines of N complex numbers, N a power of two from 16: a whole transform, or one pass of a longer one,
// of N * APART, whose lines take every APART-th element; BEFORE is the product of the lengths of earlier passes. N / 16
// threads share a line and hold 16 of its numbers each, in registers. The first stage has radix FIRST, so that the
// others have radix 16; between two stages the numbers change threads through shared memory (Stockham's algorithm),
// in TURNS turns: real and imaginary parts at once, one after the other in half the memory, or the halves of each in a
// quarter of it. A group takes LINES lines. In shared memory a line takes STRIDE places; some are left empty, so that
// neighbouring threads find different memory banks.
#include "fft_parts.h"

#define LANES (N / 16u)
#define LOG_FIRST (FIRST == 16u ? 4u : FIRST == 8u ? 3u : FIRST == 4u ? 2u : 1u)
#define HALF_TILE int(LINES * STRIDE)
SHARED VAL(T) tile[(TURNS == 1u ? 2u : 1u) * LINES * STRIDE];

// The first stage transforms sets of FIRST numbers: register r holds number r % FIRST of set r / FIRST, and then its
// result of this index in reversed bits. Both run over elements LANES apart.
#define ELEMENT_OF(r) ((r) / FIRST + (r) % FIRST * (16u / FIRST))
#define RESULT_OF(r) ((r) / FIRST * LANES * FIRST + (REVERSED16((r) % FIRST) >> (4u - LOG_FIRST)))

// The place in a line of element p, for numbers that a stage of radix 16 writes `done` apart, `done` being the product
// of the radices before. It is a sum over the bits of p.
RLX_FN int place(const uint p, const uint done) {
    if (done >= 32u) return int(p);
    if (done == 1u) return int(p + (p >> 5));
    return int(p + (p >> (4u + LOG_FIRST) << LOG_FIRST));
}

// The numbers of all threads change places: register r goes to element START + TO, whose bits are distinct, made with
// DONE, and becomes element t + r * LANES; the next stage comes after radices of the product NEXT. ACROSS, INTO:
// neighbouring threads hold neighbouring lines, before and after. With four turns the lower halves of lines go first;
// which half a number is in depends on its lane, but for that of a first stage of a radix below 16.
#define LINE_OF(ACROSS) ((ACROSS) ? THREAD % LINES : THREAD / LANES)
#define LANE_OF(ACROSS) ((ACROSS) ? THREAD / LINES : THREAD % LANES)
#define SPAN (TURNS == 4u ? N / 2u : N)
#define BY_LANE(DONE) ((DONE) != 1u || FIRST == 16u)
#define EXCHANGE(ACROSS, INTO, START, TO, DONE, NEXT)                                             \
    {                                                                                             \
        const bool writes = LINE_OF(ACROSS) < LINES && LANE_OF(ACROSS) < LANES;                   \
        const uint start = START;                                                                 \
        const int to = int(LINE_OF(ACROSS) * STRIDE) + place(start % SPAN, DONE);                 \
        const int from = int((LINE_OF(INTO) < LINES ? LINE_OF(INTO) : 0u) * STRIDE) +             \
                         place(LANE_OF(INTO) < LANES ? LANE_OF(INTO) : 0u, DONE);                 \
        VAL(T) re[16], im[16];                                                                    \
        UNROLL for (uint turn = 0u; turn < 4u; turn++) {                                          \
            const uint span = TURNS == 4u ? turn % 2u : 0u;                                       \
            const bool real = TURNS == 4u ? turn < 2u : turn == 0u;                               \
            if (turn > 0u && turn < TURNS) { BARRIER; }                                           \
            if (turn < TURNS && writes && (!BY_LANE(DONE) || start / SPAN == span)) {             \
                UNROLL for (uint r = 0u; r < 16u; r++) {                                          \
                    if (BY_LANE(DONE) || (TO) / SPAN == span) {                                   \
                        tile[to + place((TO) % SPAN, DONE)] = real ? v[r].x : v[r].y;             \
                        if (TURNS == 1u) tile[to + place(TO, DONE) + HALF_TILE] = v[r].y;         \
                    }                                                                             \
                }                                                                                 \
            }                                                                                     \
            if (turn + 1u == TURNS) READ_ROOTS(NEXT)                                              \
            if (turn < TURNS) { BARRIER; }                                                        \
            UNROLL for (uint r = 0u; r < 16u; r++) {                                              \
                if (turn < TURNS && r * LANES / SPAN == span) {                                   \
                    const int at = from + place(r * LANES % SPAN, DONE);                          \
                    if (real) re[r] = tile[at];                                                   \
                    else im[r] = tile[at];                                                        \
                    if (TURNS == 1u) im[r] = tile[at + HALF_TILE];                                \
                }                                                                                 \
            }                                                                                     \
        }                                                                                         \
        UNROLL for (uint r = 0u; r < 16u; r++) v[r] = COMPLEX(re[r], im[r]);                      \
    }

// Multiplies register i by w_i, where w_i is w of i without its highest digit times b of that digit. Each is used as
// soon as it is there, so that few of them need a register.
#define TIMES_ROOTS(b2, b4, b8)                                                        \
    {                                                                                  \
        const VAL(T) m2 = -b2.y, m4 = -b4.y, m8 = -b8.y;                               \
        BY(8, w8)                                                                      \
        BY(1, w1) BY(9, times_by(w1, b8, m8))                                          \
        BY(2, w2) BY(10, times_by(w2, b8, m8))                                         \
        BY(4, w4) BY(12, times_by(w4, b8, m8))                                         \
        const Z w3 = times_by(w1, b2, m2);                                             \
        BY(3, w3) BY(11, times_by(w3, b8, m8))                                         \
        const Z w5 = times_by(w1, b4, m4);                                             \
        BY(5, w5) BY(13, times_by(w5, b8, m8))                                         \
        const Z w6 = times_by(w2, b4, m4);                                             \
        BY(6, w6) BY(14, times_by(w6, b8, m8))                                         \
        const Z w7 = times_by(w3, b4, m4);                                             \
        BY(7, w7) BY(15, times_by(w7, b8, m8))                                         \
    }
#define BY(i, w) v[i] = times(v[i], w);

// The roots of unity of a stage of radix 16 after stages whose radices have the product DONE: those of the powers of
// two are read, before the barrier in front of the stage, and the others are products of them.
#define READ_ROOTS(DONE)                                                                          \
    {                                                                                             \
        const uint turn = LANE_OF(N == 16u * (DONE) && WRITES_ACROSS) % (DONE) * (LANES / (DONE)); \
        w1 = LOAD_PAIR(table, 1u + turn);                                                         \
        w2 = LOAD_PAIR(table, 1u + 2u * turn);                                                    \
        w4 = LOAD_PAIR(table, 1u + 4u * turn);                                                    \
        w8 = LOAD_PAIR(table, 1u + 8u * turn);                                                    \
    }
#define LATER(DONE)                                                                               \
    if (N > (DONE)) {                                                                             \
        TIMES_ROOTS(w2, w4, w8)                                                                   \
        FORM16(0u)                                                                                \
        if (N > 16u * (DONE)) {                                                                   \
            BARRIER;                                                                              \
            EXCHANGE(false, WRITES_ACROSS && N == 256u * (DONE),                                  \
                     THREAD % LANES / (DONE) * (16u * (DONE)) + THREAD % LANES % (DONE),          \
                     REVERSED16(r) * (DONE), DONE, 16u * (DONE))                                  \
        }                                                                                         \
    }
#define READS_ACROSS ((FORM & 1024u) != 0u || (N == FIRST && (FORM & 2048u) != 0u))
#define WRITES_ACROSS ((FORM & 2048u) != 0u || (N == FIRST && (FORM & 1024u) != 0u))

RLX_FN void fft_body(PTR(PAIR) x, PTR(T) reals, PTR(PAIR) factors, PTR(PAIR) table, PTR(PAIR) y, PTR(T) parts,
                     const uint lines, const uint given, const uint pitch, const uint size, const uint kept,
                     const uint fine) {
    if (GROUP * LINES >= lines) return;
    const VAL(T) scale = SCALE_OF(table);
    Z v[16], w1, w2, w4, w8;
    {
        const uint c = LINE_OF(READS_ACROSS), t = LANE_OF(READS_ACROSS);
        const bool there = c < LINES && t < LANES && GROUP * LINES + c < lines;
        const uint line = there ? GROUP * LINES + c : 0u, j = there ? t : 0u;
        const uint number = line / APART, column = line % APART, turn = column % BEFORE;
        PTR(PAIR) here = PAIRS_AFTER(x, number * pitch + column + j * APART);
        UNROLL for (uint r = 0u; r < 16u; r++) {
            v[r] = input_at(x, reals, factors, here, number, column + j * APART, ELEMENT_OF(r) * (LANES * APART),
                            given, pitch, size);
        }
        if (BEFORE > 1u) {
            const Z b1 = root_of_pass(table, turn * LANES * ELEMENT_OF(1u), fine);
            const Z b2 = root_of_pass(table, turn * LANES * ELEMENT_OF(2u), fine);
            const Z b4 = root_of_pass(table, turn * LANES * ELEMENT_OF(4u), fine);
            const Z b8 = root_of_pass(table, turn * LANES * ELEMENT_OF(8u), fine);
            const Z w0 = root_of_pass(table, turn * j, fine);
            w1 = times(w0, b1);
            w2 = times(w0, b2);
            w4 = times(w0, b4);
            w8 = times(w0, b8);
            BY(0, w0)
            TIMES_ROOTS(b2, b4, b8)
        }
    }
    if (FIRST == 2u) {
        UNROLL for (uint s = 0u; s < 16u; s += 2u) { FORM2(s) }
    }
    if (FIRST == 4u) {
        UNROLL for (uint s = 0u; s < 16u; s += 4u) { FORM4(s) }
    }
    if (FIRST == 8u) {
        FORM8(0u)
        FORM8(8u)
    }
    if (FIRST == 16u) { FORM16(0u) }
    if (N > FIRST) {
        EXCHANGE(READS_ACROSS, WRITES_ACROSS && N == 16u * FIRST, LANE_OF(READS_ACROSS) * FIRST, RESULT_OF(r), 1u,
                 FIRST)
        LATER(FIRST)
        LATER(16u * FIRST)
        LATER(256u * FIRST)
    }
    const uint c = LINE_OF(WRITES_ACROSS), t = LANE_OF(WRITES_ACROSS), line = GROUP * LINES + c;
    if (SPLIT) {
        // The spectrum of 2 N real numbers, from that of pairs of neighbours: elements k and N - k of it follow from
        // the same two, of which a thread has the first, and reads the other.
        const bool there = c < LINES && line < lines;
        const int base = int((c < LINES ? c : 0u) * STRIDE);
        VAL(T) re[8], im[8];
        UNROLL for (uint part = 0u; part < 2u; part++) {
            BARRIER;
            if (c < LINES) {
                UNROLL for (uint r = 1u; r < 16u; r += 2u) {
                    tile[base + place(t + (REVERSED16(r) - 8u) * LANES, 1u)] = part == 0u ? v[r].x : v[r].y;
                }
            }
            BARRIER;
            UNROLL for (uint r = 0u; r < 16u; r += 2u) {
                const uint k = t + REVERSED16(r) * LANES;
                const VAL(T) other = tile[base + place(k == 0u ? 0u : N / 2u - k, 1u)];
                if (part == 0u) re[r / 2u] = k == 0u ? v[0].x : other;
                else im[r / 2u] = k == 0u ? v[0].y : other;
            }
        }
        if (there) {
            PTR(PAIR) here = PAIRS_AFTER(y, line * kept);
            UNROLL for (uint r = 0u; r < 16u; r += 2u) {
                const uint k = t + REVERSED16(r) * LANES;
                const Z a = v[r], b = COMPLEX(re[r / 2u], -im[r / 2u]);
                const Z w = times(LOAD_PAIR(factors, k), difference(a, b));
                put_output(here, parts, factors, scale, line, 0u, k, kept, COMPLEX(a.x + b.x + w.y, a.y + b.y - w.x));
                put_output(here, parts, factors, scale, line, 0u, N - k, kept,
                           COMPLEX(a.x + b.x - w.y, -(a.y + b.y + w.x)));
            }
            if (t == 0u) {
                const Z a = v[1], w = times(LOAD_PAIR(factors, N / 2u), COMPLEX(VAL(T)(0), a.y + a.y));
                put_output(here, parts, factors, scale, line, 0u, N / 2u, kept, COMPLEX(a.x + a.x + w.y, -w.x));
            }
        }
    } else if (c < LINES && t < LANES && line < lines) {
        const uint number = line / APART, column = line % APART, turn = column % BEFORE;
        const uint start = (column - turn) * N + turn + t * BEFORE;
        PTR(PAIR) here = PAIRS_AFTER(y, number * kept + start);
        UNROLL for (uint r = 0u; r < 16u; r++) {
            put_output(here, parts, factors, scale, number, start, REVERSED16(r) * (LANES * BEFORE), kept, v[r]);
        }
    }
}
