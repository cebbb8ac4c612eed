// How attention_decode and attention_stream end: a workgroup's rows r0 … r0 + ROWS - 1 of those that share key head kv
// are the result's, or IN_PARTS a part of it, of which the last workgroup of `splits` to arrive makes the result. Other
// variables of the body: split, mine, share, and its arguments.
#include "attention_parts.h"

SHARED bool last;

// Element c of row `row` among those that share a key head.
#define FINISH_ELEMENT(row, c, top, total, sum)                                                                 \
    if ((row) < mine) {                                                                                         \
        const uint at = RESULT_ROW(kv, row, sq, heads, share);                                                  \
        if (IN_PARTS) {                                                                                         \
            show_part(parts, SKIP(f32, parts, splits * count * sq, 2u), count * sq, at, split, d, c, top, total, sum); \
        } else {                                                                                                \
            STORE(T, SKIP(T, y, at, d), c, (sum) * inverse(total));                                             \
        }                                                                                                       \
    }
#define FINISH_PARTS                                                                                            \
    if (IN_PARTS) {                                                                                             \
        ARRIVE(counters, GROUP / splits, splits, last)                                                          \
        if (!last) return;                                                                                      \
        PTR(f32) sums = SKIP(f32, parts, splits * count * sq, 2u);                                              \
        for (uint f = THREAD; f < ROWS * d; f += 256u) {                                                        \
            const uint row = r0 + f / d, c = f % d;                                                             \
            if (row < mine) {                                                                                   \
                const uint at = RESULT_ROW(kv, row, sq, heads, share);                                          \
                STORE(T, SKIP(T, y, at, d), c, parts_sum(parts, sums, count * sq, at, d, c, splits));           \
            }                                                                                                   \
        }                                                                                                       \
    }
