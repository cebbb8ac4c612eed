// What the gradient of attention needs of each query row, from what attention left: `rows` gets three planes of `count`
// numbers, head by head. Weights are exp2(score - the first) times the second, for kernels of f32 exp(score - the first)
// times the second: the logarithm of the row's sum, and the power that the rest of it is, or 0 where a query sees no
// key. The third is the product of the upstream gradient and the result, which is the sum over keys of P dP (Dao,
// "FlashAttention-2", 2023). LANES threads share a row. BY_TOKEN: dy and y are (batch, length, heads, size), else
// (batch, heads, length, size). ALIGNED: heads may be read eight elements at a time.
#include "units.h"
#include "stream.h"
#define LANES 8u
#define IN_E (PER == 4u)  // f32
#define PER RLX_JOIN(PER_, T)
#define LOWER RLX_JOIN(LOWER_, T)
#define UPPER RLX_JOIN(UPPER_, T)

RLX_FN float plus(const float a, const float b) { return a + b; }
LANES_OP(lanes_sum, LANES, plus)

RLX_FN float dot4(const vec4 a, const vec4 b, const float sum) {
    return FMA(a.w, b.w, FMA(a.z, b.z, FMA(a.y, b.y, FMA(a.x, b.x, sum))));
}

RLX_FN void attention_rows_body(PTR(T) dy, PTR(T) y, PTR(f32) sums, PTR(f32) rows, const uint count, const uint heads,
                                const uint sq, const uint d) {
    const uint row = GROUP * (256u / LANES) + THREAD / LANES, lane = THREAD % LANES;
    const bool there = row < count;
    const uint from = there ? row : 0u, bh = from / sq;
    const uint at = BY_TOKEN ? (bh / heads * sq + from % sq) * heads + bh % heads : from;
    PTR(T) pd = SKIP(T, dy, at, d);
    PTR(T) py = SKIP(T, y, at, d);
    float product = 0.0f;
    if (ALIGNED) {
        for (uint u = lane; u < d / PER; u += LANES) {
            const uvec4 a = LOAD_ONCE(pd, u), b = LOAD_ONCE(py, u);
            product = dot4(LOWER(a), LOWER(b), product);
            if (PER == 8u) product = dot4(UPPER(a), UPPER(b), product);
        }
    } else {
        for (uint c = lane; c < d; c += LANES) product = FMA(LOAD(T, pd, c), LOAD(T, py, c), product);
    }
    product = lanes_sum(product);
    if (!there || lane != 0u) return;
    const float sum = LOAD(f32, sums, row), rest = LOAD(f32, SKIP(f32, sums, 1u, count), row);
    const bool none = sum == -INFINITE;
    STORE(f32, rows, row, none ? 0.0f : sum);
    STORE(f32, SKIP(f32, rows, 1u, count), row, none ? 0.0f : (IN_E ? p_exp_f(-rest) : p_exp2_f(-rest)));
    STORE(f32, SKIP(f32, rows, 2u, count), row, product);
}
