// y[o, p, i] = the running sum, or with PRODUCT product, of x (outer, n, inner) along n, in parts of `chunk`, each
// begun with offsets (outer, splits, inner) where BEGUN. FLAGS bit 0: of the elements before each; bit 1: from the end.
// ACROSS threads lie along inner, ALONG along n, the rest of the 256 along (o, part). A thread takes four neighbours at
// a time, a tree joins the ALONG threads, and what came before is added last: the order never changes. IO names the
// storage of x and y.
// PARTS: x and y hold Parts (see extended.h), as offsets always do.
#define IN_f32_f32 f32
#define IN_f16_f16 f16
#define IN_bf16_bf16 bf16
#define IN_f64_f64 f64
#define IN_i32_i32 i32
#define IN_i64_i64 i64
#define OUT_f32_f32 f32
#define OUT_f16_f16 f16
#define OUT_bf16_bf16 bf16
#define OUT_f64_f64 f64
#define OUT_i32_i32 i32
#define OUT_i64_i64 i64
#define PART_f32_f32 f32
#define PART_f16_f16 f32
#define PART_bf16_bf16 f32
#define PART_f64_f64 f64
#define PART_i32_i32 i32
#define PART_i64_i64 i64
#define TI RLX_JOIN(IN_, IO)
#define TO RLX_JOIN(OUT_, IO)
#define TP RLX_JOIN(PART_, IO)
#define N TP
#define EXCLUSIVE ((FLAGS & 1u) != 0u)
#define REVERSE ((FLAGS & 2u) != 0u)
#include "extended.h"

SHARED Part lines[256];

RLX_FN void scan_body(PTR(TI) x, PTR(TP) offsets, PTR(TO) y, const uint outer, const uint n, const uint inner,
                      const uint chunk, const uint splits) {
    const uint across = THREAD % ACROSS, along = THREAD / ACROSS % ALONG;
    const uint items = 256u / (ACROSS * ALONG);
    const uint blocks = (inner + ACROSS - 1u) / ACROSS;
    const uint item = GROUP / blocks * items + THREAD / (ACROSS * ALONG);  // over (o, part)
    const uint i = GROUP % blocks * ACROSS + across;
    const bool live = item < outer * splits && i < inner;
    const uint o = live ? item / splits : 0u, s = live ? item % splits : 0u;
    PTR(TI) p = SKIP(TI, SKIP(TI, x, o, n * inner), s * chunk, inner);
    PTR(TO) q = SKIP(TO, SKIP(TO, y, o, n * inner), s * chunk, inner);
    const uint rest = n - s * chunk;
    const uint most = rest < chunk ? rest : chunk;
    const uint len = live ? most : 0u;
    const Part neutral = lifted(PRODUCT ? NUM(1) : NUM(0));
    const uint plane = outer * n * inner;
    Part before = neutral;
    if (BEGUN && live) before = load_part(offsets, item * inner + i, outer * splits * inner);
    for (uint start = 0u; start < chunk; start += ALONG * 4u) {  // as often in every thread: there are barriers
        const uint at = start + along * 4u;
        Part v[4];
        UNROLL for (uint c = 0u; c < 4u; c++) {
            const uint j = REVERSE ? len - 1u - (at + c) : at + c;
            v[c] = neutral;
            if (at + c < len) {
                if (PARTS) v[c] = load_part(AS(N, p), j * inner + i, plane);
                else v[c] = lifted(NUM(LOAD(TI, p, j * inner + i)));
            }
        }
        Part sum[4];
        sum[0] = v[0];
        UNROLL for (uint c = 1u; c < 4u; c++) sum[c] = joined(sum[c - 1u], v[c]);
        BARRIER;
        lines[THREAD] = sum[3];
        for (uint step = 1u; step < ALONG; step *= 2u) {
            BARRIER;
            Part left = neutral;
            if (along >= step) left = lines[THREAD - step * ACROSS];
            BARRIER;
            lines[THREAD] = joined(left, lines[THREAD]);
        }
        BARRIER;
        Part left = before;
        if (along > 0u) left = joined(before, lines[THREAD - ACROSS]);
        UNROLL for (uint c = 0u; c < 4u; c++) {
            if (at + c < len) {
                const uint j = REVERSE ? len - 1u - (at + c) : at + c;
                Part mine = left;
                if (!EXCLUSIVE) mine = joined(left, sum[c]);
                if (EXCLUSIVE && c > 0u) mine = joined(left, sum[c > 0u ? c - 1u : 0u]);
                if (PARTS) store_part(AS(N, q), j * inner + i, plane, mine);
                else STORE(TO, q, j * inner + i, whole(mine));
            }
        }
        before = joined(before, lines[THREAD + (ALONG - 1u - along) * ACROSS]);
    }
}
