// The parts that packed_attention or paged_attention leaves, added up: a thread for each element of the result.
#define PART_AT(p, i) LOAD(f32, p, i)  // another launch has written it
#include "attention_sums.h"
#include "attention_parts.h"

RLX_FN void cache_parts_body(PTR(f32) parts, PTR(T) y, const uint rows, const uint d, const uint splits) {
    const uint at = GROUP * 256u + THREAD, row = at / d, c = at % d;
    if (row >= rows) return;
    STORE(T, SKIP(T, y, row, d), c, parts_sum(parts, SKIP(f32, parts, splits * rows, 2u), rows, row, d, c, splits));
}
