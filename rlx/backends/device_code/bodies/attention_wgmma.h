// out = softmax(q k^T * scale + mask) v as in attention_registers.h, but by matrix instructions of a warpgroup, which
// read queries, keys and values from shared memory and run beside other instructions of its warps (Shah et al.,
// "FlashAttention-3", 2024): the scores of one set of 64 queries become weights while another set is multiplied.
// Constants: see attention_matrix.h; WIDE is 4 or 8, KEYS 64, TERMS 1, and DEEP is the number of sets of 64 queries of
// a workgroup.
#include "attention_panels.h"
#define SIDE (4u * WIDE * KEYS)
PANELS_IN_UNITS(2u * WIDE * TILE_ROWS + 2u * SIDE)

#define WG_SCORES RLX_WG_CALL(rows, 64, MATRIX)
#if WIDE == 8
#define WG_VALUES RLX_WG_CALL(columns, 128, MATRIX)
#else
#define WG_VALUES RLX_WG_CALL(columns, 64, MATRIX)
#endif

RLX_FN void attention_body(PTR(T) q, PTR(T) k, PTR(T) v, PTR(M) mask, PTR(i32) lengths, PTR(O) y, ROW_SUMS
                           const uint count, const uint heads, const uint kv_heads, const uint sq, const uint sk,
                           const uint d, const uint mb, const uint mh, const uint mq, const uint mk, const uint each,
                           const uint window, const uint q_row, const uint k_row, const uint v_row,
                           const float scale, const float cap) {
    PLACE_TILE
    const uint row0 = q0 + WARP * 16u + LANE / 4u;  // the first of this lane's two rows of the first set
    const uint side0 = 2u * WIDE * TILE_ROWS;

    float out_[DEEP][OUTPUTS], top[DEEP][2], total[DEEP][2];
    START_SUMS
    FETCH_PANELS(pq, 0u, TILE_ROWS, q0, sq, q_row)
    if (begin < end) {
        FETCH_PANELS(pk, side0, KEYS, uint(begin), uint(len), k_row)
        FETCH_PANELS(pv, side0 + SIDE / 2u, KEYS, uint(begin), uint(len), v_row)
    }
    // Scores become powers of two: exp2(s * factor - greatest * factor).
    const bool bent = CAPPED || MASK == 2u || !(scale > 0.0f);
    const float factor = bent ? 1.0f : scale * LOG2_E;
    const Sight sight = {pm, sq, mq, mk, len, shift, reach, scale, cap, inverse_cap, bent};
    uint side = side0;
    for (int at = begin; at < end; at += int(KEYS)) {
        const uint k0 = uint(at);
        COPIES_DONE
        COPIES_SEEN
        BARRIER;  // the tile has been loaded, and all warps have read the other one
        float s[DEEP][SCORES];
        WG_READY
        UNROLL for (uint i = 0u; i < DEEP; i++) {
            UNROLL for (uint c = 0u; c < WIDE; c++) {
                const uint panel = c / 4u, unit = c % 4u * 2u;
                WG_SCORES(s[i], WG_MATRIX((panel * TILE_ROWS + i * 64u) * 8u + unit, 1u),
                          WG_MATRIX(side + panel * KEYS * 8u + unit, 1u), c);
            }
            WG_SENT
        }
        if (at + int(KEYS) < end) {
            const uint other = side0 + SIDE - (side - side0);
            FETCH_PANELS(pk, other, KEYS, k0 + KEYS, uint(len), k_row)
            FETCH_PANELS(pv, other + SIDE / 2u, KEYS, k0 + KEYS, uint(len), v_row)
        }
        const Kept kept = kept_keys(sight, k0);
        UNROLL for (uint i = 0u; i < DEEP; i++) {
            WG_WAIT(DEEP - 1u)
            HOLD(s[i], SCORES)
            HOLD(out_[i], OUTPUTS)
            const int i0 = int(q0 + i * 64u);
            if (bent || MASK != 0u || !ALL_SEEN(k0, i0, i0 + 63))
                mask_scores(s[i], sight, kept, row0 + i * 64u, k0);
            weigh(s[i], out_[i], top[i], total[i], factor);
            Matrix weights[KEYS / 16u];
            UNROLL for (uint n = 0u; n < KEYS / 4u; n++)
                weights[n / 4u].r[n % 4u] = two_halves(s[i][n * 2u], s[i][n * 2u + 1u]);
            WG_READY
            UNROLL for (uint j = 0u; j < KEYS / 16u; j++)
                WG_VALUES(out_[i], weights[j].r, WG_MATRIX(side + SIDE / 2u + j * 128u, KEYS * 8u));
            WG_SENT
        }
        WG_WAIT(0)
        UNROLL for (uint i = 0u; i < DEEP; i++) { HOLD(out_[i], OUTPUTS) }
        side = side0 + SIDE - (side - side0);
    }
    COPIES_DONE
    UNROLL for (uint i = 0u; i < DEEP; i++) put_rows(ph, out_[i], total[i], row0 + i * 64u, sq, y_row, d);
#ifdef SUM_ROWS
    PUT_ROW_SUMS(row0, 64u)
#endif
}
