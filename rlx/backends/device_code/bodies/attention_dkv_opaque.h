// The gradients of keys and values for a tile of 64 keys of one key head, by matrix instructions: attention_dkv.h says
// what is computed, attention_slopes_opaque.h how. Scores are products of keys with queries here, so that weights are
// the left operand of the next product.
#include "attention_slopes_opaque.h"
// The keys first, then the values; then a tile of queries, one of upstream gradients, scores, and the queries' numbers.
#define AFTER (2u * TILE + TILE_ROWS * PITCH + KEYS)
UNITS(AFTER > TILE_ROWS * ROW ? AFTER : TILE_ROWS * ROW)

RLX_FN void attention_dkv_mma_body(PTR(T) dy, PTR(T) q, PTR(T) k, PTR(T) v, PTR(M) mask, PTR(i32) lengths,
                                   PTR(f32) rows, PTR(O) dk, PTR(O) dv, const uint count, const uint heads,
                                   const uint kv_heads, const uint sq, const uint sk, const uint d, const uint mb,
                                   const uint mh, const uint mq, const uint mk, const uint each, const uint window,
                                   const float scale, const float cap) {
    PLACE_KEYS
    const uint work = 2u * TILE + WARP * 16u * PITCH, side = LANE / 16u, mine = work + LANE % 16u * PITCH;
    const uint numbers = 2u * TILE + TILE_ROWS * PITCH, key = k0 + WARP * 16u + LANE % 16u;
    MATRIX_A keys[WIDE], values[WIDE];
    LOAD_ROWS(keys, pk, k0, uint(len), k_row)
    LOAD_ROWS(values, pv, k0, uint(len), v_row)
    SUMS of_k[WIDE], of_v[WIDE];
    UNROLL for (uint c = 0u; c < WIDE; c++) {
        SUMS_ZERO(of_k[c])
        SUMS_ZERO(of_v[c])
    }
    uvec4 next_q[HELD], next_d[HELD];
    uvec4 number = UVEC4(0u, 0u, 0u, 0u);
// Asks for turn `turn`'s queries, upstream gradients and numbers of rows.
#define FETCH_TURN(turn)                                                                                     \
    {                                                                                                        \
        const uint bh = batch * heads + head0 + (turn) / turns, first = uint(begin) + (turn) % turns * KEYS; \
        PTR(T) pq = HEAD(T, q, Q_BY_TOKEN, batch, bh % heads, heads, sq, q_row, d);                          \
        PTR(T) pd = HEAD(T, dy, Y_BY_TOKEN, batch, bh % heads, heads, sq, d_row, d);                         \
        FETCH_HELD(next_q, pq, first, sq, q_row)                                                             \
        FETCH_HELD(next_d, pd, first, sq, d_row)                                                             \
        NUMBER_OF(number, first)                                                                             \
    }
    if (turns > 0u) FETCH_TURN(0u)
    for (uint turn = 0u; turn < turns * group; turn++) {
        PLACE_HELD(next_q, 0u)
        PLACE_HELD(next_d, TILE)
        if (THREAD < KEYS) units[numbers + THREAD] = number;
        BARRIER;
        if (turn + 1u < turns * group) FETCH_TURN(turn + 1u)
        const uint head = head0 + turn / turns, q0 = uint(begin) + turn % turns * KEYS;
        PTR(M) pm = SKIP(M, SKIP(M, mask, batch, mb), head, mh);
        const bool some = MASK != 0u || !SEEN_BY_ALL(q0);
        UNROLL for (uint j = 0u; j < KEYS / 16u; j++) {
            STORE_SCORES(keys, values, j)
            float x[8], dp[8];
            LOAD_EIGHT(x, mine + side * 2u)
            LOAD_EIGHT(dp, mine + 4u + side * 2u)
            WARP_MEET;  // all lanes have read their scores, which weights overwrite
            UNROLL for (uint n = 0u; n < 8u; n++) {
                const uint i = j * 16u + side * 8u + n;
                const uvec4 of_row = units[numbers + i];
                float slope = (dp[n] - RLX_FLOAT(of_row.z)) * (LIFTED ? power / LIFT : 1.0f);
                if (CAPPED) slope *= slope_of(x[n], scale, inverse_cap);
                float z = x[n] * scale;
                if (CAPPED) z = BEND(z);
                if (some) z = masked(pm, z, q0 + i, key, sq, len, reach, mq, mk);
                x[n] = EXP2(LESS(z, LOG2_E, RLX_FLOAT(of_row.x))) * RLX_FLOAT(of_row.y);
                dp[n] = x[n] * slope;
            }
            STORE_EIGHT(mine + side, x)
            STORE_EIGHT(mine + 2u + side, dp)
            WARP_MEET;
            ADD_WEIGHTED(of_v, work, TILE, j)
            ADD_WEIGHTED(of_k, work + 2u, 0u, j)
            WARP_MEET;
        }
        BARRIER;  // all warps have read the tile
    }
    PUT_SUMS(to_k, of_k, scale * inverse_power(power), key, sk, k_row)
    PUT_SUMS(to_v, of_v, 1.0f / LIFT, key, sk, v_row)
}
