// Tokens' q and k, turned by the angles of their positions, and v: q into y, k and v into rows of caches, all rounded as
// these store them. A thread has four neighbours of a row of a head; of each token first those of q's heads, then of k's
// and of v's. A row outside 0 … length - 1 is left out. SIZE: elements of a head; KV_HEADS key heads, SHARE times as many
// of q. ACROSS: how many heads a row of the matrix has of which q, k and v are columns; 0 where each is by itself.
#include "pair.h"
#include "turned.h"

RLX_FN void rope_update_body(PTR(TA) q, PTR(TA) k, PTR(TA) v, PTR(i32) rows, PTR(i32) position, PTR(f32) cosine,
                             PTR(f32) sine, PTR(TB) y, PTR(TB) keys, PTR(TB) values, const uint total,
                             const uint length, const uint entries) {
    const uint i = GROUP * 256u + THREAD;
    if (i >= total) return;
    const uint queries = KV_HEADS * SHARE, c = i % (SIZE / 4u), line = i / (SIZE / 4u);
    const uint h = line % (queries + 2u * KV_HEADS), t = line / (queries + 2u * KV_HEADS);
    const int place = LOAD(i32, position, t);
    const uint entry = (place < 0 ? 0u : uint(place) < entries ? uint(place) : entries - 1u) * TURNED;
    if (h < queries) {
        PTR(TA) x = SKIP(TA, q, t * (ACROSS > 0u ? ACROSS : queries) + h, SIZE);
        STORE4(TB, SKIP(TB, y, t * queries + h, SIZE), c, turned(x, cosine, sine, entry, 4u * c));
        return;
    }
    const int row = LOAD(i32, rows, t);
    if (row < 0 || uint(row) >= length) return;
    const bool value = h >= queries + KV_HEADS;
    const uint kv = h - queries - (value ? KV_HEADS : 0u);
    PTR(TA) x = SKIP(TA, ONE_OF(value, v, k), t * (ACROSS > 0u ? ACROSS : KV_HEADS) + kv, SIZE);
    PTR(TB) cache = SKIP(TB, ONE_OF(value, values, keys), uint(row) * KV_HEADS + kv, SIZE);
    if (value) {
        STORE4(TB, cache, c, near4(LOAD4(TA, x, c)));
    } else {
        STORE4(TB, cache, c, turned(x, cosine, sine, entry, 4u * c));
    }
}
