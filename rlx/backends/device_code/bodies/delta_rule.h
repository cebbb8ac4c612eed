// S = alpha S (I - beta k k^T) + beta v k^T and o = S (scale q), along the sequence: a row of LANES neighbouring threads
// for each row of S (one of `values`), each with HELD quads of its KEYS columns in registers. A workgroup's rows are of
// one head; `per` heads share a query and a key.
// STEPS steps at a time: their inputs, loaded while the steps before were computed, go through shared memory, and so do
// the lanes' parts of o, which are added in the order of the lanes.
// GIVEN: bit 0 the logarithm of alpha, bit 1 state. ALIGNED: states are read and written four at a time.
#define ROWS (128u / LANES)
#define QUADS ((KEYS + 3u) / 4u)
#define HELD ((QUADS + LANES - 1u) / LANES)
#define PITCH (128u + 1u)
#define OF_K (STEPS * QUADS * 4u)
#define OF_V (STEPS * ROWS)
#define FETCH_K ((OF_K + 127u) / 128u)
#define FETCH_V ((OF_V + 127u) / 128u)

SHARED vec4 rows_k[STEPS * QUADS];
SHARED vec4 rows_q[STEPS * QUADS];
SHARED float rows_v[OF_V];
SHARED float alphas[STEPS];
SHARED float betas[STEPS];
SHARED float parts[STEPS * PITCH];

RLX_FN float sum_of(const float a, const float b) { return a + b; }
LANES_OP(lanes_sum, LANES, sum_of)

// Columns beyond KEYS stay 0: an infinite value times their zero would be NaN.
#define COLUMN(e, c) \
    if (KEYS % 4u == 0u || quad * 4u + c < KEYS) s[q].e = FMA(k.e, put, s[q].e);

RLX_FN void delta_rule_body(PTR(T) query, PTR(T) key, PTR(T) value, PTR(f32) beta, PTR(f32) gate, PTR(f32) state,
                            PTR(T) o, PTR(f32) last, const uint items, const uint length, const uint heads,
                            const uint values, const uint per, const uint blocks, const float scale) {
    if (GROUP >= items) return;
    const uint head = GROUP / blocks % heads, batch = GROUP / blocks / heads, lane = THREAD % LANES;
    const uint first = GROUP % blocks * ROWS, row = first + THREAD / LANES;
    const bool live = row < values;
    const uint at_row = ((batch * heads + head) * values + row) * KEYS;

    vec4 s[HELD];
    UNROLL for (uint q = 0u; q < HELD; q++) {
        const uint quad = q * LANES + lane, at = at_row + quad * 4u;
        s[q] = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
        if (live && quad < QUADS && (GIVEN & 2u) != 0u) {
            if (ALIGNED) {
                s[q] = LOAD4(f32, state, at / 4u);
            } else {
                s[q].x = LOAD(f32, state, at);
                if (quad * 4u + 1u < KEYS) s[q].y = LOAD(f32, state, at + 1u);
                if (quad * 4u + 2u < KEYS) s[q].z = LOAD(f32, state, at + 2u);
                if (quad * 4u + 3u < KEYS) s[q].w = LOAD(f32, state, at + 3u);
            }
        }
    }
    float next_k[FETCH_K], next_q[FETCH_K], next_v[FETCH_V], next_alpha = 1.0f, next_beta = 0.0f;
    for (uint start = 0u; start < length + STEPS; start += STEPS) {
        if (start > 0u) {  // the steps before `start`, which the threads have loaded
            UNROLL for (uint i = 0u; i < FETCH_K; i++) {
                const uint f = i * 128u + THREAD;
                if (f < OF_K) {
                    ELEMENT(rows_k, f) = next_k[i];
                    ELEMENT(rows_q, f) = next_q[i] * scale;
                }
            }
            UNROLL for (uint i = 0u; i < FETCH_V; i++) {
                const uint f = i * 128u + THREAD;
                if (f < OF_V) rows_v[f] = next_v[i];
            }
            if (THREAD < STEPS) {
                alphas[THREAD] = next_alpha;
                betas[THREAD] = next_beta;
            }
            BARRIER;
        }
        UNROLL for (uint i = 0u; i < FETCH_K; i++) {
            const uint f = i * 128u + THREAD, t = start + f / (QUADS * 4u), n = f % (QUADS * 4u);
            const uint at = ((batch * length + t) * (heads / per) + head / per) * KEYS + n;
            const bool there = f < OF_K && t < length && n < KEYS;
            next_k[i] = there ? LOAD(T, key, at) : 0.0f;
            next_q[i] = there ? LOAD(T, query, at) : 0.0f;
        }
        UNROLL for (uint i = 0u; i < FETCH_V; i++) {
            const uint f = i * 128u + THREAD, t = start + f / ROWS, r = first + f % ROWS;
            const bool there = f < OF_V && t < length && r < values;
            next_v[i] = there ? LOAD(T, value, ((batch * length + t) * heads + head) * values + r) : 0.0f;
        }
        if (THREAD < STEPS && start + THREAD < length) {
            const uint at = (batch * length + start + THREAD) * heads + head;
            next_beta = LOAD(f32, beta, at);
            if ((GIVEN & 1u) != 0u) next_alpha = p_exp_f(LOAD(f32, gate, at));
        }
        if (start > 0u) {
            const uint done = start - STEPS;
            const uint rest = length - done;
            const uint steps = rest < STEPS ? rest : STEPS;
            for (uint t = 0u; t < steps; t++) {
                vec4 held = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
                const float alpha = alphas[t];
                UNROLL for (uint q = 0u; q < HELD; q++) {
                    const uint quad = q * LANES + lane;
                    if ((GIVEN & 1u) != 0u) {
                        s[q] = VEC4(alpha * s[q].x, alpha * s[q].y, alpha * s[q].z, alpha * s[q].w);
                    }
                    if (QUADS % LANES == 0u || quad < QUADS) {
                        const vec4 k = rows_k[t * QUADS + quad];
                        held.x = FMA(s[q].x, k.x, held.x);
                        held.y = FMA(s[q].y, k.y, held.y);
                        held.z = FMA(s[q].z, k.z, held.z);
                        held.w = FMA(s[q].w, k.w, held.w);
                    }
                }
                const float before = lanes_sum((held.x + held.y) + (held.z + held.w));
                const float put = betas[t] * (rows_v[t * ROWS + THREAD / LANES] - before);
                vec4 total = VEC4(0.0f, 0.0f, 0.0f, 0.0f);
                UNROLL for (uint q = 0u; q < HELD; q++) {
                    const uint quad = q * LANES + lane;
                    if (QUADS % LANES == 0u || quad < QUADS) {
                        const vec4 k = rows_k[t * QUADS + quad], r = rows_q[t * QUADS + quad];
                        COLUMN(x, 0u)
                        COLUMN(y, 1u)
                        COLUMN(z, 2u)
                        COLUMN(w, 3u)
                        total.x = FMA(s[q].x, r.x, total.x);
                        total.y = FMA(s[q].y, r.y, total.y);
                        total.z = FMA(s[q].z, r.z, total.z);
                        total.w = FMA(s[q].w, r.w, total.w);
                    }
                }
                parts[t * PITCH + THREAD] = (total.x + total.y) + (total.z + total.w);
            }
            BARRIER;
            for (uint f = THREAD; f < steps * ROWS; f += 128u) {
                const uint t = f / ROWS, r = first + f % ROWS;
                if (r < values) {
                    float total = parts[t * PITCH + f % ROWS * LANES];
                    UNROLL for (uint l = 1u; l < LANES; l++) total += parts[t * PITCH + f % ROWS * LANES + l];
                    STORE(T, o, ((batch * length + done + t) * heads + head) * values + r, total);
                }
            }
        }
    }
    UNROLL for (uint q = 0u; q < HELD; q++) {
        const uint quad = q * LANES + lane, at = at_row + quad * 4u;
        if (ALIGNED) {
            if (live && quad < QUADS) STORE4(f32, last, at / 4u, s[q]);
        } else {
            UNROLL for (uint c = 0u; c < 4u; c++) {
                if (live && quad * 4u + c < KEYS) STORE(f32, last, at + c, ELEMENT(s, q * 4u + c));
            }
        }
    }
}
