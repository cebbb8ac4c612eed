// For every attention kernel: which query sees which key, and where heads are stored. FLAGS: 1 causal, 2 window, 4 soft
// cap, 8 lengths; with 16, 32, 64, 128 the operand q, k, v or the result is (batch, length, heads, size), else (batch,
// heads, length, size); with 256 rows of tokens hold the heads of q, of k and of v, one after the other; with 512 the
// numbers of rows that a gradient reads come from the forward pass. MASK: 0 there is none, 1 a bool that is true where a key is kept, 2 a float that is added to
// the score.
#include "attention_sums.h"
#define CAUSAL ((FLAGS & 1u) != 0u)
#define WINDOWED ((FLAGS & 2u) != 0u)
#define CAPPED ((FLAGS & 4u) != 0u)
#define COUNTED ((FLAGS & 8u) != 0u)
#define BY_TOKEN(flag) ((FLAGS & flag) != 0u)
#define Q_BY_TOKEN BY_TOKEN(16u)
#define K_BY_TOKEN BY_TOKEN(32u)
#define V_BY_TOKEN BY_TOKEN(64u)
#define Y_BY_TOKEN BY_TOKEN(128u)
#define JOINED BY_TOKEN(256u)
#define FROM_FORWARD BY_TOKEN(512u)
// The address of head h of batch b of p, whose rows of d elements lie `row` elements apart; and this distance for an
// operand whose heads are stored one after the other.
#define HEAD(T, p, by_token, b, h, heads, length, row, d) \
    SKIP(T, SKIP(T, p, (by_token) ? (b) * (length) : ((b) * (heads) + (h)) * (length), row), (by_token) ? (h) : 0u, d)
#define ROW_STEP(by_token, heads, d) ((by_token) ? (heads) * (d) : (d))
// The row of the result that belongs to row `row` of the `mine` = share * sq rows that share key head kv.
#define RESULT_ROW(kv, row, sq, heads, share)                                                                    \
    (Y_BY_TOKEN ? ((kv) * (share) / (heads) * (sq) + (row) % (sq)) * (heads) + (kv) * (share) % (heads) + (row) / (sq) \
                : (kv) * (share) * (sq) + (row))
#define LOG2_E 1.4426950408889634f
// SUM_ROWS: the kernel has one more pointer, and stores the logarithm of each row's sum of weights, which is `base` + `log`,
// as two planes whose sum it is: beside a large base one number would lose the weights. To the base e from kernels of
// f32, else to the base 2.
#ifdef SUM_ROWS
#define ROW_SUMS PTR(f32) row_sums,
#define PUT_ROW_SUM(row, base, log)                                                                              \
    if ((row) < sq)                                                                                              \
    put_row_sum(SKIP(f32, row_sums, bh, sq), SKIP(f32, SKIP(f32, row_sums, count, sq), bh, sq), row, base, log)
RLX_FN void put_row_sum(PTR(f32) sums, PTR(f32) rests, const uint row, const float base, const float log) {
    const float sum = base + log, part = sum - base;
    STORE(f32, sums, row, sum);
    STORE(f32, rests, row, log == -INFINITE ? 0.0f : (base - (sum - part)) + (log - part));
}
#else
#define ROW_SUMS
#endif
// ROWS_KNOWN, of a kernel of the queries' gradient: `rows` is given (attention_rows.h) instead of computed in a first pass over the keys.
#ifdef ROWS_KNOWN
#define FIRST_PASS 1u
#else
#define FIRST_PASS 0u
#endif
// The distance of the rows of each operand, whose gradient lies as it does, and of dy, which lies as the result does.
#define ALL_HEADS(own) (JOINED ? heads + 2u * kv_heads : (own))
#define PLACE_ROWS                                                                                            \
    const uint q_row = ROW_STEP(Q_BY_TOKEN, ALL_HEADS(heads), d), d_row = ROW_STEP(Y_BY_TOKEN, heads, d);     \
    const uint k_row = ROW_STEP(K_BY_TOKEN, ALL_HEADS(kv_heads), d);                                          \
    const uint v_row = ROW_STEP(V_BY_TOKEN, ALL_HEADS(kv_heads), d);
#define KEEPS_f32(x) ((x) != 0.0f)
#define KEEPS_bool(x) (x)
#define ADDS_f32(x) (x)
#define ADDS_bool(x) 0.0f
#define KEEPS(M, x) RLX_JOIN(KEEPS_, M)(x)
#define ADDS(M, x) RLX_JOIN(ADDS_, M)(x)

// The number of keys of batch b: that of `lengths`, clipped to 0 … sk.
RLX_FN int key_count(PTR(i32) lengths, const uint i, const uint sk) {
    return COUNTED ? lesser_i(larger_i(LOAD(i32, lengths, i), 0), int(sk)) : int(sk);
}
// The range of keys that any of the queries i0 … i1 - 1 sees: the first, and the end. `shift` = len - sq.
RLX_FN int first_seen(const int i0, const int shift, const int window) {
    return WINDOWED ? larger_i(i0 + shift - window, 0) : 0;
}
RLX_FN int after_seen(const int i1, const int shift, const int window, const int len) {
    int end = len;
    if (WINDOWED) end = lesser_i(end, i1 + shift + window);
    if (CAUSAL) end = lesser_i(end, i1 + shift);
    return end;
}
// Whether query i sees key j by their positions.
RLX_FN bool in_sight(const int i, const int j, const int shift, const int window) {
    const int ahead = j - i - shift;
    return !(CAUSAL && ahead > 0) && !(WINDOWED && (ahead > window || ahead < -window));
}

// The score of query i and key j after the mask.
RLX_FN float masked(PTR(M) mask, const float score, const uint i, const uint j, const uint sq, const int len,
                    const int window, const uint mq, const uint mk) {
    if (i >= sq || int(j) >= len || !in_sight(int(i), int(j), len - int(sq), window)) return -INFINITE;
    if (MASK == 1u) return KEEPS(M, LOAD(M, mask, i * mq + j * mk)) ? score : -INFINITE;
    if (MASK == 2u) return score + ADDS(M, LOAD(M, mask, i * mq + j * mk));
    return score;
}
