// y[o, i0, i1, i2, t] = the sum over the neighbours that the tables name along three axes of weight * x[o, …, t]: one
// neighbour along an axis that stays (TAPS0, TAPS1, TAPS2 = 1), two for linear, four for cubic. IO names the storage of
// x and y. meta: input sizes (3), output sizes (3), where each axis's table begins (3), length of t. Both tables hold
// TAPS0 (TAPS1, TAPS2) entries for each output element of the axis.
#define IN_f32_f32 f32
#define IN_f64_f64 f64
#define IN_f16_f16 f16
#define IN_bf16_bf16 bf16
#define IN_f16_f32 f16
#define IN_bf16_f32 bf16
#define IN_f32_f16 f32
#define IN_f32_bf16 f32
#define OUT_f32_f32 f32
#define OUT_f64_f64 f64
#define OUT_f16_f16 f16
#define OUT_bf16_bf16 bf16
#define OUT_f16_f32 f32
#define OUT_bf16_f32 f32
#define OUT_f32_f16 f16
#define OUT_f32_bf16 bf16
#define TI RLX_JOIN(IN_, IO)
#define TO RLX_JOIN(OUT_, IO)
// The weights are f32, beside f64 f64.
#define WEIGHT_f32 f32
#define WEIGHT_f16 f32
#define WEIGHT_bf16 f32
#define WEIGHT_f64 f64
#define TW RLX_JOIN(WEIGHT_, TO)
#define ACC VAL(TW)
#define META(i) LOAD(u32, meta, i)

RLX_FN void resize_body(PTR(TI) x, PTR(u32) index, PTR(TW) weight, PTR(u32) meta, PTR(TO) y, const uint total) {
    const uint id = GROUP * 256u + THREAD;
    if (id >= total) return;
    const uint n0 = META(3u), n1 = META(4u), n2 = META(5u), tail = META(9u);
    const uint t = id % tail, i2 = id / tail % n2, i1 = id / tail / n2 % n1, i0 = id / tail / n2 / n1 % n0;
    PTR(TI) p = SKIP(TI, x, id / tail / n2 / n1 / n0, META(0u) * META(1u) * META(2u) * tail);
    const uint at0 = META(6u) + i0 * TAPS0, at1 = META(7u) + i1 * TAPS1, at2 = META(8u) + i2 * TAPS2;
    ACC sum0 = ACC(0);
    UNROLL for (uint k0 = 0u; k0 < TAPS0; k0++) {
        ACC sum1 = ACC(0);
        UNROLL for (uint k1 = 0u; k1 < TAPS1; k1++) {
            const uint line = (LOAD(u32, index, at0 + k0) * META(1u) + LOAD(u32, index, at1 + k1)) * META(2u);
            ACC sum2 = ACC(0);
            UNROLL for (uint k2 = 0u; k2 < TAPS2; k2++) {
                const ACC v = LOAD(TI, p, (line + LOAD(u32, index, at2 + k2)) * tail + t);
                sum2 = TAPS2 == 1u ? v : FMA_IN(TW, LOAD(TW, weight, at2 + k2), v, sum2);
            }
            sum1 = TAPS1 == 1u ? sum2 : FMA_IN(TW, LOAD(TW, weight, at1 + k1), sum2, sum1);
        }
        sum0 = TAPS0 == 1u ? sum1 : FMA_IN(TW, LOAD(TW, weight, at0 + k0), sum1, sum0);
    }
    STORE(TO, y, id, sum0);
}
