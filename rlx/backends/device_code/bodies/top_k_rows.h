// The first k pairs, in order, of each row of n floats; a workgroup computes one row, which it reads once into
// registers, VECTORS times sixteen bytes in each thread. U (b2 or b4) is the unit of an element. The workgroup first
// finds a bound that at least k elements reach, and few more do: of each thread its first element in the order, of each
// 32 threads the ROUNDS-th of these (8 ROUNDS >= k), and of these eight values the last. With ROUNDS = 0, where k is 1,
// the bound is the first element of all. The elements that reach the bound are ranked by counting. Where there are too
// many, as in rows of equal elements, the workgroup searches for the next pair k times. GIVES: 1 the elements, 2 their
// indices, 3 both.
#include "order.h"

#define EACH_b2 8u  // elements in sixteen bytes
#define EACH_b4 4u
#define EACH RLX_JOIN(EACH_, U)
#define NAN_FIRST (KEY_FLIP != 0u)
#define SPAN 512u  // the largest number of pairs that are ranked by counting
#ifdef RLX_GLSL
#define VECTOR_AT(p, i) ptr_uvec4(uvec2(p)).at[i]
#define GREATER(a, b) max(a, b)
#else
#define VECTOR_AT(p, i) ((const uvec4*)(p))[i]
#define GREATER(a, b) fmaxf(a, b)
#endif

SHARED PAIR work[SPAN];
SHARED uint held;

RLX_FN uint word_in(const uvec4 w, const uint i) { return i == 0u ? w.x : i == 1u ? w.y : i == 2u ? w.z : w.w; }
RLX_FN uint bits_b2(const uvec4 w, const uint i) {
    return i % 2u == 0u ? word_in(w, i / 2u) & 0xffffu : word_in(w, i / 2u) >> 16;
}
RLX_FN uint bits_b4(const uvec4 w, const uint i) { return word_in(w, i); }

// The sign bits of the elements of a word that are NaN, from the word without its sign bits: adding a constant makes
// every value above infinity carry into its sign bit.
#define SIGNS_b2 0x80008000u
#define SIGNS_b4 0x80000000u
#define SIGNS RLX_JOIN(SIGNS_, U)
RLX_FN uint nan_in(const uint w) {
    const uint room = KEY_KIND == 4u ? 0x007fffffu : KEY_KIND == 3u ? 0x007f007fu : 0x03ff03ffu;
    return (w & ~SIGNS) + room;
}

// Element i of w, negated in ascending order, so that the element that comes first is always the greatest.
RLX_FN float element(const uvec4 w, const uint i) {
    const uint u = RLX_JOIN(bits_, U)(w, i);
    const float v = KEY_KIND == 4u ? RLX_FLOAT(u) : KEY_KIND == 3u ? RLX_FLOAT(u << 16) : p_f16_value(u);
    return KEY_FLIP == 1u ? v : -v;
}
RLX_FN float first_of(const float a, const float b) { return a >= b || IS_NAN(NAN_FIRST ? a : b) ? a : b; }
RLX_FN float last_of(const float a, const float b) { return a <= b || IS_NAN(NAN_FIRST ? b : a) ? a : b; }
LANES_OP(first_of_warp, 32u, first_of)
LANES_OP(first_of_row, 256u, first_of)
LANES_OP(last_of_row, 256u, last_of)

RLX_FN void give(PTR(U) x, PTR(U) y, PTR(b8) index, const uint at, const uint from) {
    if ((GIVES & 1u) != 0u) y AT(at) = x AT(from);
    if ((GIVES & 2u) != 0u) index AT(at) = UVEC2(from, 0u);
}

// Adds the index of an element to the list of those that are ranked.
RLX_FN void rank_too(PTR(U) p, const uint place) {
    const uint at = ATOMIC_ADD(held, 1u);
    if (at < SPAN) work[at] = PAIR_AT(p, place, place);
}

RLX_FN void top_k_rows_body(PTR(U) x, PTR(U) y, PTR(b8) index, const uint lines, const uint n, const uint k) {
    if (GROUP >= lines) return;
    PTR(U) p = SKIP(U, x, GROUP, n);
    PTR(U) q = SKIP(U, y, GROUP, k);
    PTR(b8) r = SKIP(b8, index, GROUP, k);
    if (THREAD == 0u) held = 0u;
    uvec4 w[VECTORS];
    UNROLL for (uint j = 0u; j < VECTORS; j++) {
        const uint at = j * 256u + THREAD;
        w[j] = VECTOR_AT(p, at * EACH < n ? at : 0u);
    }
    float first = -INFINITE;
    uint none = 0u;
    UNROLL for (uint j = 0u; j < VECTORS; j++) {
        if ((j * 256u + THREAD) * EACH < n) {
            UNROLL for (uint i = 0u; i < EACH; i++) first = GREATER(first, element(w[j], i));
            none |= nan_in(w[j].x) | nan_in(w[j].y) | nan_in(w[j].z) | nan_in(w[j].w);
        }
    }
    const bool nan = (none & SIGNS) != 0u;
    if (nan) {  // GREATER may keep or drop a NaN
        first = -INFINITE;
        UNROLL for (uint j = 0u; j < VECTORS; j++) {
            if ((j * 256u + THREAD) * EACH < n) {
                UNROLL for (uint i = 0u; i < EACH; i++) first = first_of(first, element(w[j], i));
            }
        }
    }
    float least = first;
    if (ROUNDS == 0u) {
        least = first_of_row(first);
    } else {
        float mine = first;
        for (uint e = 0u; e < ROUNDS; e++) {
            least = first_of_warp(mine);
            if (mine == least || (IS_NAN(mine) && IS_NAN(least))) mine = -INFINITE;
        }
        least = last_of_row(least);
    }
    const float bound = IS_NAN(least) ? INFINITE : least;
    if (first >= bound || nan) {
        UNROLL for (uint j = 0u; j < VECTORS; j++) {
            const uint place = (j * 256u + THREAD) * EACH;
            if (place < n) {
                UNROLL for (uint i = 0u; i < EACH; i++) {
                    const float v = element(w[j], i);
                    if (v >= bound || (nan && IS_NAN(v))) rank_too(p, place + i);
                }
            }
        }
    }
    BARRIER;
    const uint count = held;
    if (count <= SPAN) {
        for (uint c = THREAD; c < count; c += 256u) {
            const PAIR mine = work[c];
            uint rank = 0u;
            for (uint s = 0u; s < count; s++) rank += before(work[s], mine) ? 1u : 0u;
            if (rank < k) give(p, q, r, rank, index_in(mine));
        }
        return;
    }
    PAIR last = NO_PAIR;
    for (uint e = 0u; e < k; e++) {
        PAIR mine = NO_PAIR;
        for (uint place = THREAD; place < n; place += 256u) {
            const PAIR other = PAIR_AT(p, place, place);
            if ((e == 0u || before(last, other)) && before(other, mine)) mine = other;
        }
        work[THREAD] = mine;
        for (uint half_way = 128u; half_way > 0u; half_way /= 2u) {
            BARRIER;
            if (THREAD < half_way && before(work[THREAD + half_way], work[THREAD])) work[THREAD] = work[THREAD + half_way];
        }
        BARRIER;
        last = work[0];
        if (THREAD == 0u) give(p, q, r, e, index_in(last));
        BARRIER;
    }
}
