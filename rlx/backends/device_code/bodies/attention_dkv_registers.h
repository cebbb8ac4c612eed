// The gradients of keys and values for a tile of keys of one key head, by matrix instructions: attention_dkv.h says
// what is computed, attention_slopes.h how. Scores are products of keys with queries here, so that a lane's weights are
// the left operand of the next product. Shared memory holds the tile's keys and values, and two tiles of queries,
// upstream gradients and the numbers of their rows: one is multiplied while the other is being loaded.
#define OF_QUERY(n) ((n) / 4u * 8u + LANE % 4u * 2u + (n) % 2u)  // the query of a lane's score n
#define SIDE (2u * AREA(KEYS) + KEYS)  // the last KEYS units have the numbers of a query each
AREAS(2u * AREA(TILE_ROWS) + 2u * SIDE)

// Masks the scores of keys `key` and key + 8 with the queries from q0 on; bent scores are scaled to powers of two here.
RLX_FN void mask_columns(float* s, const Sight& sight, const uint key, const uint q0) {
    const float cap = sight.cap, inverse_cap = sight.inverse_cap;
    UNROLL for (uint half = 0u; half < 2u; half++) {
        const uint j = key + half * 8u;
        UNROLL for (uint n = 0u; n < SCORES / 2u; n++) {
            float x = s[ELEMENT(n, half)];
            if (sight.bent) {
                x = x * sight.scale;
                if (CAPPED) x = BEND(x);
            }
            x = masked(sight.mask, x, q0 + COLUMN(n), j, sight.sq, sight.len, sight.reach, sight.mq, sight.mk);
            s[ELEMENT(n, half)] = sight.bent ? x * LOG2_E : x;
        }
    }
}

RLX_FN void attention_dkv_mma_body(PTR(T) dy, PTR(T) q, PTR(T) k, PTR(T) v, PTR(M) mask, PTR(i32) lengths,
                                   PTR(f32) rows, PTR(O) dk, PTR(O) dv, const uint count, const uint heads,
                                   const uint kv_heads, const uint sq, const uint sk, const uint d, const uint mb,
                                   const uint mh, const uint mq, const uint mk, const uint each, const uint window,
                                   const float scale, const float cap) {
    PLACE_KEYS
    const uint row0 = k0 + FIRST_ROW;
    const bool bent = CAPPED || MASK == 2u || !(scale > 0.0f);
    const float factor = bent ? 1.0f : scale * LOG2_E;

    const uint values = AREA(TILE_ROWS), side0 = 2u * AREA(TILE_ROWS);
    float of_k[DEEP][OUTPUTS], of_v[DEEP][OUTPUTS];
    UNROLL for (uint i = 0u; i < DEEP; i++) {
        UNROLL for (uint n = 0u; n < OUTPUTS; n++) {
            of_k[i][n] = 0.0f;
            of_v[i][n] = 0.0f;
        }
    }
    uint4 number = UVEC4(0u, 0u, 0u, 0u);
// Asks for turn `turn`'s queries, upstream gradients and numbers of rows.
#define FETCH_TURN(base, turn)                                                                               \
    {                                                                                                        \
        const uint bh = batch * heads + head0 + (turn) / turns, first = uint(begin) + (turn) % turns * KEYS; \
        PTR(T) pq = HEAD(T, q, Q_BY_TOKEN, batch, bh % heads, heads, sq, q_row, d);                          \
        PTR(T) pd = HEAD(T, dy, Y_BY_TOKEN, batch, bh % heads, heads, sq, d_row, d);                         \
        FETCH_TILE(pq, base, KEYS, first, sq, q_row)                                                         \
        FETCH_TILE(pd, (base) + AREA(KEYS), KEYS, first, sq, d_row)                                          \
        NUMBER_OF(number, first)                                                                             \
    }
    FETCH_TILE(pk, 0u, TILE_ROWS, k0, uint(len), k_row)
    FETCH_TILE(pv, values, TILE_ROWS, k0, uint(len), v_row)
    if (turns > 0u) FETCH_TURN(side0, 0u)
    uint side = side0;
    for (uint turn = 0u; turn < turns * group; turn++) {
        const uint numbers = side + 2u * AREA(KEYS);
        if (THREAD < KEYS) units[numbers + THREAD] = number;
        TILE_LOADED
        BARRIER;  // the tile has been loaded, and all warps have read the other one
        if (turn + 1u < turns * group) FETCH_TURN(side0 + SIDE - (side - side0), turn + 1u)
        float s[DEEP][SCORES], dp[DEEP][SCORES];
        ROWS_BY_ROWS(s, 0u, side)
        ROWS_BY_ROWS(dp, values, side + AREA(KEYS))
        const uint head = head0 + turn / turns, q0 = uint(begin) + turn % turns * KEYS;
        const bool some = bent || MASK != 0u || !SEEN_BY_ALL(q0);
        const Sight sight = {SKIP(M, SKIP(M, mask, batch, mb), head, mh), sq, mq, mk, len, shift, reach, scale, cap,
                             inverse_cap, bent};
        READY(s, SCORES, CAPPED ? 0u : 1u)
        if (CAPPED) {  // before the masks change what the slope is of
            READY(dp, SCORES, 0u)
            UNROLL for (uint i = 0u; i < DEEP; i++) {
                UNROLL for (uint n = 0u; n < SCORES; n++)
                    dp[i][n] = (dp[i][n] - RLX_FLOAT(units[numbers + OF_QUERY(n)].z)) *
                               slope_of(s[i][n], scale, inverse_cap);
            }
        }
        UNROLL for (uint i = 0u; i < DEEP; i++) {
            if (some) mask_columns(s[i], sight, row0 + i * NEXT_ROW, q0);
            UNROLL for (uint n = 0u; n < SCORES; n++) {
                const uint4 of_row = units[numbers + OF_QUERY(n)];
                s[i][n] = EXP2(LESS(s[i][n], factor, RLX_FLOAT(of_row.x))) * RLX_FLOAT(of_row.y);
            }
        }
        ADD_WEIGHTED(of_v, s, side + AREA(KEYS))
        if (!CAPPED) READY(dp, SCORES, DEEP)
        UNROLL for (uint i = 0u; i < DEEP; i++) {
            UNROLL for (uint n = 0u; n < SCORES; n++) {
                if (!CAPPED) dp[i][n] -= RLX_FLOAT(units[numbers + OF_QUERY(n)].z);
                dp[i][n] *= LIFTED ? s[i][n] * (power / LIFT) : s[i][n];
            }
        }
        ADD_WEIGHTED(of_k, dp, side)
        READY(of_v, OUTPUTS, 0u)
        READY(of_k, OUTPUTS, 0u)
        side = side0 + SIDE - (side - side0);
    }
    COPIES_DONE
    const float share_k = LIFTED ? scale * inverse_power(power) : scale;
    const float of_keys[2] = {share_k, share_k}, of_values[2] = {1.0f / LIFT, 1.0f / LIFT};
    UNROLL for (uint i = 0u; i < DEEP; i++) {
        put_sums(to_k, of_k[i], of_keys, row0 + i * NEXT_ROW, sk, k_row, d);
        put_sums(to_v, of_v[i], of_values, row0 + i * NEXT_ROW, sk, v_row, d);
    }
}
