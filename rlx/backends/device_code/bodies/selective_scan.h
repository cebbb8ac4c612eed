// h = exp(dt A) h + dt x B and y = C . h + D x, times silu(z), along the sequence: a row of LANES threads for each
// channel, each with HELD quads of its STATES states in registers. Channel c belongs to head c / width, to which delta
// and A belong, and a group of heads shares B and C; a workgroup's channels are of one group.
// STEPS steps at a time: their inputs, loaded while the steps before were computed, go through shared memory, and so do
// the lanes' parts of y, which are added in the order of the lanes.
// GIVEN: bit 0 D, 1 z, 2 state, 3 bias; bit 4: delta goes through log(1 + exp). SCALAR: A is one number a head.
// ALIGNED: A and the states are read and written four at a time.
#include "near_exp.h"
#include "silu.h"

#define CHANNELS (128u / LANES)
#define QUADS ((STATES + 3u) / 4u)
#define HELD ((QUADS + LANES - 1u) / LANES)
#define PITCH (128u + (CHANNELS < 32u ? CHANNELS : 0u))
#define OF_X (STEPS * CHANNELS)
#define OF_B (STEPS * QUADS * 4u)
#define FETCH_X ((OF_X + 127u) / 128u)
#define FETCH_B ((OF_B + 127u) / 128u)

SHARED float decays[OF_X];  // exp(dt A) where SCALAR, else dt
SHARED float added[OF_X];   // dt x
SHARED vec4 rows_b[STEPS * QUADS];
SHARED vec4 rows_c[STEPS * QUADS];
SHARED float parts[STEPS * PITCH];

// A quad of a row of STATES numbers; 0 beyond its end.
RLX_FN vec4 states_at(PTR(f32) p, const uint row, const uint quad) {
    const uint at = row * STATES + quad * 4u;
    if (ALIGNED) return LOAD4(f32, p, at / 4u);
    vec4 v = VEC4(LOAD(f32, p, at), 0.0f, 0.0f, 0.0f);
    if (quad * 4u + 1u < STATES) v.y = LOAD(f32, p, at + 1u);
    if (quad * 4u + 2u < STATES) v.z = LOAD(f32, p, at + 2u);
    if (quad * 4u + 3u < STATES) v.w = LOAD(f32, p, at + 3u);
    return v;
}

// log(1 + exp x) without overflow.
RLX_FN float softplus(const float x) { return p_max_f(x, 0.0f) + p_log1p_f(p_exp_f(-p_abs_f(x))); }

// One state of a quad; beyond STATES nothing is computed, as infinities times zeros would be NaN.
#define NEXT(e, k, DECAY)                                              \
    if (STATES % 4u == 0u || n + k < STATES) {                         \
        h[q].e = FMA(DECAY(step * a[q].e), h[q].e, dx * b.e);          \
        total = FMA(c.e, h[q].e, total);                               \
    }
#define NEXT_STATES(DECAY)                                                                 \
    UNROLL for (uint q = 0u; q < HELD; q++) {                                              \
        const uint quad = lane * HELD + q, n = quad * 4u;                                  \
        if (QUADS % LANES == 0u || quad < QUADS) {                                         \
            const vec4 b = rows_b[t * QUADS + quad], c = rows_c[t * QUADS + quad];         \
            NEXT(x, 0u, DECAY)                                                             \
            NEXT(y, 1u, DECAY)                                                             \
            NEXT(z, 2u, DECAY)                                                             \
            NEXT(w, 3u, DECAY)                                                             \
        }                                                                                  \
    }
#define AS_GIVEN(x) (x)

RLX_FN void selective_scan_body(PTR(T) x, PTR(T) delta, PTR(f32) decay, PTR(T) gain, PTR(T) reading, PTR(f32) skip,
                                PTR(T) gate, PTR(f32) state, PTR(f32) bias, PTR(T) y, PTR(f32) last, const uint items,
                                const uint length, const uint channels, const uint width, const uint groups,
                                const uint blocks) {
    if (GROUP >= items) return;
    const uint group = GROUP / blocks % groups, batch = GROUP / blocks / groups;
    const uint each = channels / groups, lane = THREAD / CHANNELS;
    const uint first = group * each + GROUP % blocks * CHANNELS, end = (group + 1u) * each;
    const uint own = first + THREAD % CHANNELS, heads = channels / width;
    const bool live = own < end;

    vec4 h[HELD], a[HELD];
    float reach = 0.0f;
    UNROLL for (uint q = 0u; q < HELD; q++) {
        const uint quad = lane * HELD + q;
        const bool held = live && quad < QUADS;
        h[q] = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
        a[q] = SCALAR ? VEC4(1.0f, 1.0f, 1.0f, 1.0f) : h[q];
        if (held && (GIVEN & 4u) != 0u) h[q] = states_at(state, batch * channels + own, quad);
        if (held && !SCALAR) a[q] = states_at(decay, own, quad);
        reach = farthest(reach, a[q]);
    }
    float next_x[FETCH_X], next_dt[FETCH_X], next_b[FETCH_B], next_c[FETCH_B];
    for (uint start = 0u; start < length + STEPS; start += STEPS) {
        if (start > 0u) {  // the steps before `start`, which the threads have loaded
            UNROLL for (uint i = 0u; i < FETCH_X; i++) {
                const uint f = i * 128u + THREAD, c = first + f % CHANNELS;
                if (f < OF_X && c < end) {
                    const uint head = c / width;
                    float dt = next_dt[i];
                    if ((GIVEN & 8u) != 0u) dt = dt + LOAD(f32, bias, head);
                    if ((GIVEN & 16u) != 0u) dt = softplus(dt);
                    added[f] = dt * next_x[i];
                    decays[f] = SCALAR ? p_exp_f(dt * LOAD(f32, decay, head)) : dt;
                }
            }
            UNROLL for (uint i = 0u; i < FETCH_B; i++) {
                const uint f = i * 128u + THREAD;
                if (f < OF_B) {
                    ELEMENT(rows_b, f) = next_b[i];
                    ELEMENT(rows_c, f) = next_c[i];
                }
            }
            BARRIER;
        }
        UNROLL for (uint i = 0u; i < FETCH_X; i++) {
            const uint f = i * 128u + THREAD, t = start + f / CHANNELS, c = first + f % CHANNELS;
            const bool there = f < OF_X && t < length && c < end;
            next_x[i] = there ? LOAD(T, x, (batch * length + t) * channels + c) : 0.0f;
            next_dt[i] = there ? LOAD(T, delta, (batch * length + t) * heads + c / width) : 0.0f;
        }
        UNROLL for (uint i = 0u; i < FETCH_B; i++) {
            const uint f = i * 128u + THREAD, t = start + f / (QUADS * 4u), n = f % (QUADS * 4u);
            const uint at = ((batch * length + t) * groups + group) * STATES + n;
            const bool there = f < OF_B && t < length && n < STATES;
            next_b[i] = there ? LOAD(T, gain, at) : 0.0f;
            next_c[i] = there ? LOAD(T, reading, at) : 0.0f;
        }
        if (start > 0u) {
            const uint done = start - STEPS;
            const uint rest = length - done;
            const uint steps = rest < STEPS ? rest : STEPS;
            if (live) {
                for (uint t = 0u; t < steps; t++) {
                    const float step = decays[t * CHANNELS + THREAD % CHANNELS];
                    const float dx = added[t * CHANNELS + THREAD % CHANNELS];
                    float total = 0.0f;
                    if (SCALAR) {  // `step` is the decay, and a is 1
                        NEXT_STATES(AS_GIVEN)
                    } else if (p_abs_f(step) * reach < 87.0f) {
                        NEXT_STATES(near_exp)
                    } else {
                        NEXT_STATES(p_exp_f)
                    }
                    parts[t * PITCH + THREAD] = total;
                }
            }
            BARRIER;
            for (uint f = THREAD; f < steps * CHANNELS; f += 128u) {
                const uint t = f / CHANNELS, c = first + f % CHANNELS;
                if (c < end) {
                    const uint at = (batch * length + done + t) * channels + c;
                    float total = parts[t * PITCH + f % CHANNELS];
                    UNROLL for (uint l = 1u; l < LANES; l++) total += parts[t * PITCH + l * CHANNELS + f % CHANNELS];
                    if ((GIVEN & 1u) != 0u) total = FMA(LOAD(f32, skip, c), LOAD(T, x, at), total);
                    if ((GIVEN & 2u) != 0u) total = total * silu(LOAD(T, gate, at));
                    STORE(T, y, at, total);
                }
            }
        }
    }
    UNROLL for (uint q = 0u; q < HELD; q++) {
        const uint quad = lane * HELD + q, at = (batch * channels + own) * STATES + quad * 4u;
        if (ALIGNED) {
            if (live && quad < QUADS) STORE4(f32, last, at / 4u, h[q]);
        } else {
            UNROLL for (uint k = 0u; k < 4u; k++) {
                if (live && quad * 4u + k < STATES) STORE(f32, last, at + k, ELEMENT(h, q * 4u + k));
            }
        }
    }
}
