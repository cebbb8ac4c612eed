// The gradient of h = exp(dt A) h + dt x B, y = C . h: a row of LANES threads for each channel, each with four of its
// STATES states; channels, heads and groups as in selective_scan.h. Two sweeps: one from the start leaves the state
// before every STEPS steps in `work`, one from the end computes the states of those steps again and the gradient g of
// each. What belongs to a channel is added over its lanes, what belongs to B and C over the channels of the workgroup,
// each by one thread in a fixed order; a step has one barrier since these numbers lie in two places by turns.
// `work` holds the states (batch, parts of STEPS, channels, STATES), then the sums over a workgroup's channels for B and
// for C, (batch, length, groups, blocks, STATES). da is (batch, channels, STATES), or where SCALAR (batch, channels,
// LANES), ddelta of each channel. STATE: there is a first state.
#include "near_exp.h"

#define CHANNELS (128u / LANES)
#define SLOTS (LANES * 4u)
#define PART(v, k) ((k) == 0u ? (v).x : ((k) == 1u ? (v).y : ((k) == 2u ? (v).z : (v).w)))

SHARED float rows_b[2u * 512u];  // (turn, state, channel)
SHARED float rows_c[2u * 512u];
SHARED float sums_b[2u * 128u];  // (turn, lane, channel)
SHARED float sums_a[2u * 128u];

// Four neighbours from `at` on; 0 beyond `n` states of which the first one's number is `from`.
RLX_FN vec4 four(PTR(f32) p, const uint at, const uint from, const bool there) {
    vec4 v = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    if (there && from < STATES) {
        v.x = LOAD(f32, p, at);
        if (from + 1u < STATES) v.y = LOAD(f32, p, at + 1u);
        if (from + 2u < STATES) v.z = LOAD(f32, p, at + 2u);
        if (from + 3u < STATES) v.w = LOAD(f32, p, at + 3u);
    }
    return v;
}

// States beyond STATES stay 0: an infinite input times their zero would be NaN.
RLX_FN vec4 within(const vec4 v, const uint from) {
    if (STATES % 4u == 0u && STATES == SLOTS) return v;
    return VEC4(from < STATES ? v.x : 0.0f, from + 1u < STATES ? v.y : 0.0f, from + 2u < STATES ? v.z : 0.0f,
                from + 3u < STATES ? v.w : 0.0f);
}

RLX_FN vec4 decay_of(const vec4 a, const float dt, const float reach) {
    if (SCALAR) {
        const float e = p_exp_f(dt * a.x);
        return VEC4(e, e, e, e);
    }
    const vec4 x = VEC4(dt * a.x, dt * a.y, dt * a.z, dt * a.w);
    if (p_abs_f(dt) * reach < 87.0f) return VEC4(near_exp(x.x), near_exp(x.y), near_exp(x.z), near_exp(x.w));
    return VEC4(p_exp_f(x.x), p_exp_f(x.y), p_exp_f(x.z), p_exp_f(x.w));
}

RLX_FN vec4 next_state(const vec4 e, const vec4 h, const float dx, const vec4 b, const uint from) {
    return within(VEC4(FMA(e.x, h.x, dx * b.x), FMA(e.y, h.y, dx * b.y), FMA(e.z, h.z, dx * b.z),
                       FMA(e.w, h.w, dx * b.w)),
                  from);
}

RLX_FN float dot4(const vec4 a, const vec4 b) { return FMA(a.w, b.w, FMA(a.z, b.z, FMA(a.y, b.y, a.x * b.x))); }

RLX_FN void selective_scan_grad_body(PTR(f32) dy, PTR(f32) dlast, PTR(f32) x, PTR(f32) delta, PTR(f32) decay,
                                     PTR(f32) gain, PTR(f32) reading, PTR(f32) state, PTR(f32) work, PTR(f32) dx_out,
                                     PTR(f32) ddelta, PTR(f32) da, PTR(f32) dstate, const uint items,
                                     const uint length, const uint channels, const uint width, const uint groups,
                                     const uint blocks) {
    if (GROUP >= items) return;
    const uint block = GROUP % blocks, group = GROUP / blocks % groups, batch = GROUP / blocks / groups;
    const uint each = channels / groups, lane = THREAD / CHANNELS, heads = channels / width;
    const uint first = group * each + block * CHANNELS, end = (group + 1u) * each;
    const uint own = first + THREAD % CHANNELS, from = lane * 4u;
    const bool live = own < end;
    const uint mine = live ? own : first;
    const uint head = mine / width, batches = items / blocks / groups;
    const uint tiles = (length + STEPS - 1u) / STEPS;
    const uint at_state = (batch * channels + mine) * STATES + from;
    PTR(f32) kept = SKIP(f32, work, batch * tiles, channels * STATES);
    PTR(f32) parts_b = SKIP(f32, work, batches * tiles, channels * STATES);
    PTR(f32) parts_c = SKIP(f32, parts_b, batches * length, groups * blocks * STATES);

    vec4 a;
    if (SCALAR) {
        const float one = LOAD(f32, decay, head);
        a = within(VEC4(one, one, one, one), from);
    } else {
        a = four(decay, mine * STATES + from, from, live);
    }
    const float reach = farthest(0.0f, a);
    vec4 h = four(state, at_state, from, live && STATE);
    vec4 hist[STEPS];
    for (uint tile = 0u; tile < tiles; tile++) {
        const uint at = (tile * channels + mine) * STATES + from;
        if (live) {
            if (from < STATES) STORE(f32, kept, at, h.x);
            if (from + 1u < STATES) STORE(f32, kept, at + 1u, h.y);
            if (from + 2u < STATES) STORE(f32, kept, at + 2u, h.z);
            if (from + 3u < STATES) STORE(f32, kept, at + 3u, h.w);
        }
        for (uint t = tile * STEPS; t < length && t < (tile + 1u) * STEPS; t++) {
            const uint row = batch * length + t;
            const float dt = LOAD(f32, delta, row * heads + head);
            const float dx = dt * LOAD(f32, x, row * channels + mine);
            h = next_state(decay_of(a, dt, reach), h, dx, four(gain, (row * groups + group) * STATES + from, from, live), from);
        }
    }
    vec4 g = four(dlast, at_state, from, live), sum_a = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    for (uint back = 0u; back < tiles; back++) {
        const uint tile = tiles - 1u - back, start = tile * STEPS;
        const uint steps = length - start < STEPS ? length - start : STEPS;
        h = four(kept, (tile * channels + mine) * STATES + from, from, live);
        for (uint i = 0u; i < steps; i++) {
            const uint row = batch * length + start + i;
            const float dt = LOAD(f32, delta, row * heads + head);
            const float dx = dt * LOAD(f32, x, row * channels + mine);
            hist[i] = h;
            h = next_state(decay_of(a, dt, reach), h, dx, four(gain, (row * groups + group) * STATES + from, from, live), from);
        }
        for (uint down = 0u; down < steps; down++) {
            const uint i = steps - 1u - down, t = start + i, row = batch * length + t, turn = t % 2u;
            const uint at = (row * groups + group) * STATES + from;
            const float dt = LOAD(f32, delta, row * heads + head);
            const float dx = dt * LOAD(f32, x, row * channels + mine);
            const float d = live ? LOAD(f32, dy, row * channels + mine) : 0.0f;
            const vec4 b = four(gain, at, from, live), c = four(reading, at, from, live), before = hist[i];
            g = within(VEC4(FMA(d, c.x, g.x), FMA(d, c.y, g.y), FMA(d, c.z, g.z), FMA(d, c.w, g.w)), from);
            UNROLL for (uint k = 0u; k < 4u; k++) {
                const uint slot = turn * 512u + (from + k) * CHANNELS + THREAD % CHANNELS;
                rows_b[slot] = live ? PART(g, k) * dx : 0.0f;
                rows_c[slot] = live ? PART(h, k) * d : 0.0f;
            }
            sums_b[turn * 128u + THREAD] = dot4(g, b);
            const vec4 e = decay_of(a, dt, reach);
            g = within(VEC4(e.x * g.x, e.y * g.y, e.z * g.z, e.w * g.w), from);
            const vec4 into = within(VEC4(g.x * before.x, g.y * before.y, g.z * before.z, g.w * before.w), from);
            sums_a[turn * 128u + THREAD] = dot4(into, a);
            FMA_ROW(sum_a, dt, into)
            sum_a = within(sum_a, from);
            h = before;
            BARRIER;
            for (uint o = THREAD; o < 2u * SLOTS + CHANNELS; o += 128u) {
                if (o >= 2u * SLOTS) {
                    const uint c_own = o - 2u * SLOTS, channel = first + c_own;
                    if (channel < end) {
                        float of_x = sums_b[turn * 128u + c_own], of_a = sums_a[turn * 128u + c_own];
                        UNROLL for (uint l = 1u; l < LANES; l++) {
                            of_x += sums_b[turn * 128u + l * CHANNELS + c_own];
                            of_a += sums_a[turn * 128u + l * CHANNELS + c_own];
                        }
                        const float step = LOAD(f32, delta, row * heads + channel / width);
                        STORE(f32, dx_out, row * channels + channel, step * of_x);
                        const float u = LOAD(f32, x, row * channels + channel);
                        STORE(f32, ddelta, row * channels + channel, FMA(u, of_x, of_a));
                    }
                } else {
                    const uint n = o % SLOTS;
                    float total = 0.0f;
                    for (uint c_at = 0u; c_at < CHANNELS; c_at++) {  // each thread from another one on: other banks
                        const uint slot = turn * 512u + n * CHANNELS + (c_at + n) % CHANNELS;
                        total += o < SLOTS ? rows_b[slot] : rows_c[slot];
                    }
                    if (n < STATES) {
                        const uint place = group * blocks * STATES + block * STATES + n;
                        if (o < SLOTS) STORE(f32, SKIP(f32, parts_b, row, groups * blocks * STATES), place, total);
                        else STORE(f32, SKIP(f32, parts_c, row, groups * blocks * STATES), place, total);
                    }
                }
            }
        }
    }
    if (live) {
        if (SCALAR) STORE(f32, da, (batch * channels + own) * LANES + lane, (sum_a.x + sum_a.y) + (sum_a.z + sum_a.w));
        UNROLL for (uint k = 0u; k < 4u; k++) {
            if (from + k < STATES) {
                STORE(f32, dstate, at_state + k, PART(g, k));
                if (!SCALAR) STORE(f32, da, at_state + k, PART(sum_a, k));
            }
        }
    }
}
