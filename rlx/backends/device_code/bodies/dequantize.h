// y[row, i] = element i of a packed row: see packed.h. Of formats with chunks, a thread takes what makes 16 bytes of y in
// each run of a chunk, so that its scales are unpacked once and threads write whole sectors side by side; of others, 16
// bytes of y. It makes PIECES of these, and asks for all that it reads before it decodes anything. WIDE: y begins at a
// multiple of 16 bytes.
#define TABLED
#include "eights.h"
#include "packed.h"
#include "packed_elements.h"
#define PIECES 2u  // that a thread makes, which hides what reading takes
#define QUADS_f32 1u
#define QUADS_f16 2u
#define QUADS_bf16 2u
#define QUADS RLX_JOIN(QUADS_, T)  // fours of elements in 16 bytes of y
#define EACH (4u * QUADS)
#define SHARES (4u / QUADS)  // threads of a chunk
#define BLOCK_PIECES (IN_CHUNKS ? UNITS * SHARES : BLOCK / EACH)

#ifdef RLX_GLSL
#define EIGHT_BYTES(p, i) ptr_uvec2(uvec2(p)).at[i]
#else
#define EIGHT_BYTES(p, i) ((const uint2*)(p))[i]
#endif

// Two words of a chunk's quants, as many of their higher bits, and the words of its scales.
struct Piece {
    uvec2 q, h;
    uvec4 words;
};

// Words `first` and `second` from byte `at` of the row on; where QUADS are two, these are neighbours but of int4.
RLX_FN uvec2 two_words(const Row row, const uint at, const uint first, const uint second) {
    uvec2 two;
    if (ALIGN == 16u && QUADS == 2u && !IS_INT4) {
        two = EIGHT_BYTES(row.words, (at / 4u + first) / 2u);
    } else {
        two.x = bytes_at(row, at + 4u * first, 4u);
        two.y = second == first ? two.x : bytes_at(row, at + 4u * second, 4u);
    }
    return two;
}

// What a thread needs of chunk u of block b for the fours from w on.
RLX_FN Piece piece_of(const Row row, const Planes at, const uint b, const uint u, const uint w) {
    Piece made;
    made.q = two_words(row, b * SIZE0 + u * 16u, word_of(0u, w), IS_INT4 ? word_of(1u, w) : w + QUADS - 1u);
    made.h = made.q;
    if (HIGH_WORD) made.h.x = bytes_at(row, high_at(at, b, u), 4u);
    if (HIGH_WORDS) made.h = two_words(row, high_at(at, b, u), w, w + QUADS - 1u);
    made.words = scale_words(row, at, b, u);
    return made;
}

RLX_FN vec4 four_of(const Piece piece, const Scale s, const uint u, const uint run, const uint w, const uint j) {
    const bool second = IS_INT4 ? run > 0u : j > 0u;
    const uint q = second ? piece.q.y : piece.q.x, h = HIGH_WORDS && j > 0u ? piece.h.y : piece.h.x;
    const vec4 v = values_of(bytes_of(q, h, u, run, w + j), s.zero);
    if (!HAS_LOW) return VEC4(s.s * v.x, s.s * v.y, s.s * v.z, s.s * v.w);
    // The products are exact.
    return VEC4(RLX_MAD(s.s, v.x, s.m), RLX_MAD(s.s, v.y, s.m), RLX_MAD(s.s, v.z, s.m), RLX_MAD(s.s, v.w, s.m));
}

// Writes fours QUADS i and so on; with one four, b is nothing.
RLX_FN void put_piece(PTR(T) y, const uint i, const vec4 a, const vec4 b) {
    if (WIDE) {
        if (QUADS == 2u) {
            STORE8(T, y, i, a, b);
        } else {
            STORE4(T, y, i, a);
        }
        return;
    }
    UNROLL for (uint j = 0u; j < QUADS; j++) {
        const vec4 v = j == 0u ? a : b;
        const uint at = i * EACH + 4u * j;
        STORE(T, y, at, v.x);
        STORE(T, y, at + 1u, v.y);
        STORE(T, y, at + 2u, v.z);
        STORE(T, y, at + 3u, v.w);
    }
}

RLX_FN void dequantize_body(PTR(u32) q, PTR(u32) book, PTR(T) y, const uint rows, const uint blocks, const uint pitch) {
    const uint each = blocks * BLOCK_PIECES, first = GROUP * 256u * PIECES + THREAD;
    const Planes at = planes_of(blocks);
    if (IS_TABLE) {
        fill_table();
        BARRIER;
    }
    if (IN_CHUNKS) {
        Piece held[PIECES];
        UNROLL for (uint p = 0u; p < PIECES; p++) {
            const uint i = first + 256u * p, row = i / each, in_row = i % each;
            const uint u = in_row % BLOCK_PIECES / SHARES, w = in_row % SHARES * QUADS;
            held[p] = piece_of(row_of(q, row < rows ? row : rows - 1u, pitch), at, in_row / BLOCK_PIECES, u, w);
        }
        UNROLL for (uint p = 0u; p < PIECES; p++) {
            const uint i = first + 256u * p, row = i / each, in_row = i % each;
            const uint u = in_row % BLOCK_PIECES / SHARES, w = in_row % SHARES * QUADS;
            if (row >= rows) return;
            UNROLL for (uint run = 0u; run < RUNS; run++) {
                const Scale s = scale_from(held[p].words, u, run);
                vec4 first_four, v;
                UNROLL for (uint j = 0u; j < QUADS; j++) {
                    v = four_of(held[p], s, u, run, w, j);
                    if (j == 0u) first_four = v;
                }
                put_piece(y, (element_of(row * blocks + in_row / BLOCK_PIECES, u, run) + 4u * w) / EACH, first_four, v);
            }
        }
    } else {
        for (uint p = 0u; p < PIECES; p++) {
            const uint i = first + 256u * p, row = i / each, in_row = i % each;
            if (row >= rows) return;
            Row from = row_of(q, row, pitch);
            const uint b = in_row / BLOCK_PIECES;
            vec4 first_four, v;
            UNROLL for (uint j = 0u; j < QUADS; j++) {
                const uint e = in_row % BLOCK_PIECES * EACH + 4u * j;
                v = VEC4(element(from, at, book, b, e), element(from, at, book, b, e + 1u),
                         element(from, at, book, b, e + 2u), element(from, at, book, b, e + 3u));
                if (j == 0u) first_four = v;
            }
            put_piece(y, i, first_four, v);
        }
    }
}
