// y[t] = the sum of w[j] x[t - WIDTH + 1 + j] and bias, channel by channel along the sequence: a thread for RUN steps of
// a channel, whose inputs it holds in registers, and one more for the inputs that are left to the next part. Inputs
// before the first are `state`, or zeros. GIVEN: bit 0 bias, 1 state, 2 silu of the result.
#include "silu.h"

#define BEFORE (WIDTH - 1u)

// Input t of the state and x one after the other.
RLX_FN float input_at(PTR(T) x, PTR(T) state, const uint batch, const uint t, const uint length, const uint channels,
                      const uint c) {
    if (t >= BEFORE) return t - BEFORE < length ? LOAD(T, x, (batch * length + t - BEFORE) * channels + c) : 0.0f;
    return (GIVEN & 2u) != 0u ? LOAD(T, state, (batch * BEFORE + t) * channels + c) : 0.0f;
}

RLX_FN void causal_conv_body(PTR(T) x, PTR(T) w, PTR(T) bias, PTR(T) state, PTR(T) y, PTR(T) last, const uint total,
                             const uint length, const uint channels, const uint runs) {
    const uint item = GROUP * 256u + THREAD;
    if (item >= total) return;
    const uint c = item % channels, run = item / channels % (runs + 1u), batch = item / channels / (runs + 1u);
    if (run == runs) {
        for (uint j = 0u; j < BEFORE; j++) {
            const float left = input_at(x, state, batch, length + j, length, channels, c);
            STORE(T, last, (batch * BEFORE + j) * channels + c, left);
        }
        return;
    }
    float weight[WIDTH], held[WIDTH + RUN];
    UNROLL for (uint j = 0u; j < WIDTH; j++) weight[j] = LOAD(T, w, c * WIDTH + j);
    const float start = (GIVEN & 1u) != 0u ? LOAD(T, bias, c) : 0.0f;
    UNROLL for (uint j = 0u; j < WIDTH - 1u + RUN; j++) {
        held[j] = input_at(x, state, batch, run * RUN + j, length, channels, c);
    }
    UNROLL for (uint i = 0u; i < RUN; i++) {
        const uint t = run * RUN + i;
        float sum = start;
        UNROLL for (uint j = 0u; j < WIDTH; j++) sum = FMA(weight[j], held[i + j], sum);
        if (t < length) STORE(T, y, (batch * length + t) * channels + c, (GIVEN & 4u) != 0u ? silu(sum) : sum);
    }
}
