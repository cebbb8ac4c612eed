// The gradient of S = alpha S (I - beta k k^T) + beta v k^T, o = S (scale q): a row of LANES neighbouring threads for each
// row of S (one of `values`), each with four of its KEYS columns. A workgroup's rows are of one head; `per` heads share a
// query and a key. Two sweeps: one from the start leaves the state before every STEPS steps in `work`, one from the end
// computes the states of those steps again, and the gradient g of each. What belongs to a row is added over its lanes,
// what belongs to q, k, beta and alpha over the workgroup's rows, each by one thread in a fixed order; these numbers lie
// in two places by turns.
// `work` holds the states (batch, parts of STEPS, heads, values, KEYS), then the workgroups' sums for q and for k, (batch,
// length, heads, blocks, KEYS), for beta and for the logarithm of alpha, (batch, length, heads, blocks).
// given: bit 0 the logarithm of alpha, bit 1 a first state.
#define ROWS (128u / LANES)
#define SLOTS (LANES * 4u)
#define PART(v, k) ((k) == 0u ? (v).x : ((k) == 1u ? (v).y : ((k) == 2u ? (v).z : (v).w)))

SHARED float rows_q[2u * 512u];  // (turn, column, row)
SHARED float rows_k[2u * 512u];
SHARED float rows_b[2u * 128u];  // (turn, row)
SHARED float rows_a[2u * 128u];

RLX_FN float sum_of(const float a, const float b) { return a + b; }
LANES_OP(lanes_sum, LANES, sum_of)

// Four neighbours from `at` on, of columns from `from` on; 0 beyond KEYS.
RLX_FN vec4 four(PTR(f32) p, const uint at, const uint from, const bool there) {
    vec4 v = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
    if (there && from < KEYS) {
        v.x = LOAD(f32, p, at);
        if (from + 1u < KEYS) v.y = LOAD(f32, p, at + 1u);
        if (from + 2u < KEYS) v.z = LOAD(f32, p, at + 2u);
        if (from + 3u < KEYS) v.w = LOAD(f32, p, at + 3u);
    }
    return v;
}
RLX_FN void put_four(PTR(f32) p, const uint at, const uint from, const vec4 v) {
    if (from < KEYS) STORE(f32, p, at, v.x);
    if (from + 1u < KEYS) STORE(f32, p, at + 1u, v.y);
    if (from + 2u < KEYS) STORE(f32, p, at + 2u, v.z);
    if (from + 3u < KEYS) STORE(f32, p, at + 3u, v.w);
}
RLX_FN vec4 scaled(const float s, const vec4 v) { return VEC4(s * v.x, s * v.y, s * v.z, s * v.w); }
RLX_FN float dot4(const vec4 a, const vec4 b) { return FMA(a.w, b.w, FMA(a.z, b.z, FMA(a.y, b.y, a.x * b.x))); }

RLX_FN void delta_rule_grad_body(PTR(f32) d_o, PTR(f32) dlast, PTR(f32) query, PTR(f32) key, PTR(f32) value,
                                 PTR(f32) beta, PTR(f32) gate, PTR(f32) state, PTR(f32) work, PTR(f32) dvalue,
                                 PTR(f32) dstate, const uint items, const uint length, const uint heads,
                                 const uint values, const uint per, const uint blocks, const uint given,
                                 const float scale) {
    if (GROUP >= items) return;
    const bool gated = (given & 1u) != 0u;
    const uint block = GROUP % blocks, head = GROUP / blocks % heads, batch = GROUP / blocks / heads;
    const uint lane = THREAD % LANES, from = lane * 4u, row = block * ROWS + THREAD / LANES;
    const bool live = row < values;
    const uint mine = live ? row : 0u, key_heads = heads / per, batches = items / blocks / heads;
    const uint tiles = (length + STEPS - 1u) / STEPS;
    const uint at_row = (head * values + mine) * KEYS + from;
    PTR(f32) kept = SKIP(f32, work, batch * tiles, heads * values * KEYS);
    PTR(f32) parts_q = SKIP(f32, work, batches * tiles, heads * values * KEYS);
    PTR(f32) parts_k = SKIP(f32, parts_q, batches * length, heads * blocks * KEYS);
    PTR(f32) parts_b = SKIP(f32, parts_k, batches * length, heads * blocks * KEYS);
    PTR(f32) parts_a = SKIP(f32, parts_b, batches * length, heads * blocks);

    vec4 s = four(state, batch * heads * values * KEYS + at_row, from, live && (given & 2u) != 0u);
    vec4 hist[STEPS];
    for (uint sweep = 0u; sweep < tiles; sweep++) {
        if (live) put_four(kept, sweep * heads * values * KEYS + at_row, from, s);
        for (uint t = sweep * STEPS; t < length && t < (sweep + 1u) * STEPS; t++) {
            const uint step = (batch * length + t) * heads + head;
            const vec4 k = four(key, ((batch * length + t) * key_heads + head / per) * KEYS + from, from, true);
            s = gated ? scaled(p_exp_f(LOAD(f32, gate, step)), s) : s;
            const float held = lanes_sum(dot4(s, k));
            const float put = live ? LOAD(f32, beta, step) * (LOAD(f32, value, step * values + mine) - held) : 0.0f;
            FMA_ROW(s, put, k)
        }
    }
    vec4 g = four(dlast, batch * heads * values * KEYS + at_row, from, live);
    for (uint back = 0u; back < tiles; back++) {
        const uint tile = tiles - 1u - back, start = tile * STEPS;
        const uint steps = length - start < STEPS ? length - start : STEPS;
        s = four(kept, tile * heads * values * KEYS + at_row, from, live);
        for (uint i = 0u; i < steps; i++) {
            const uint step = (batch * length + start + i) * heads + head;
            const vec4 k = four(key, ((batch * length + start + i) * key_heads + head / per) * KEYS + from, from, true);
            hist[i] = s;
            s = gated ? scaled(p_exp_f(LOAD(f32, gate, step)), s) : s;
            const float held = lanes_sum(dot4(s, k));
            const float put = live ? LOAD(f32, beta, step) * (LOAD(f32, value, step * values + mine) - held) : 0.0f;
            FMA_ROW(s, put, k)
        }
        for (uint down = 0u; down < steps; down++) {
            const uint i = steps - 1u - down, t = start + i, step = (batch * length + t) * heads + head, turn = t % 2u;
            const uint at = ((batch * length + t) * key_heads + head / per) * KEYS + from;
            const vec4 k = four(key, at, from, true), q = four(query, at, from, true);
            const float alpha = gated ? p_exp_f(LOAD(f32, gate, step)) : 1.0f, b = LOAD(f32, beta, step);
            const float d = live ? scale * LOAD(f32, d_o, step * values + mine) : 0.0f;
            const vec4 decayed = scaled(alpha, hist[i]);
            FMA_ROW(g, d, q)
            const float held = lanes_sum(dot4(decayed, k));
            const float rest = live ? LOAD(f32, value, step * values + mine) - held : 0.0f;
            const float dput = lanes_sum(dot4(g, k)), dheld = -b * dput, put = b * rest;
            UNROLL for (uint c = 0u; c < 4u; c++) {
                const uint slot = turn * 512u + (from + c) * ROWS + THREAD / LANES;
                rows_q[slot] = live ? PART(s, c) * d : 0.0f;
                rows_k[slot] = live ? FMA(put, PART(g, c), dheld * PART(decayed, c)) : 0.0f;
            }
            FMA_ROW(g, dheld, k)
            const float of_a = lanes_sum(dot4(g, decayed));
            if (lane == 0u) {
                rows_b[turn * 128u + THREAD / LANES] = live ? dput * rest : 0.0f;
                rows_a[turn * 128u + THREAD / LANES] = live ? of_a : 0.0f;
                if (live) STORE(f32, dvalue, step * values + mine, b * dput);
            }
            g = scaled(alpha, g);
            s = hist[i];
            BARRIER;
            for (uint o = THREAD; o < 2u * SLOTS + 2u; o += 128u) {
                float total = 0.0f;
                if (o >= 2u * SLOTS) {
                    for (uint r = 0u; r < ROWS; r++) {
                        total += o == 2u * SLOTS ? rows_b[turn * 128u + r] : rows_a[turn * 128u + r];
                    }
                    if (o == 2u * SLOTS) STORE(f32, parts_b, step * blocks + block, total);
                    else STORE(f32, parts_a, step * blocks + block, total);
                } else {
                    const uint n = o % SLOTS;
                    for (uint r = 0u; r < ROWS; r++) {  // each thread from another one on: other banks
                        const uint slot = turn * 512u + n * ROWS + (r + n) % ROWS;
                        total += o < SLOTS ? rows_q[slot] : rows_k[slot];
                    }
                    if (n < KEYS) {
                        if (o < SLOTS) STORE(f32, SKIP(f32, parts_q, step, blocks * KEYS), block * KEYS + n, total);
                        else STORE(f32, SKIP(f32, parts_k, step, blocks * KEYS), block * KEYS + n, total);
                    }
                }
            }
        }
    }
    if (live) put_four(dstate, batch * heads * values * KEYS + at_row, from, g);
}
