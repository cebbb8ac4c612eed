// Pairs of x (outer, seq, inner, d) turned by the angle of their place: (a, b) -> (a cos - b sin, b cos + a sin).
// `half` pairs a row; pair k has elements (2k, 2k + 1) where PAIRS, else k / per * 2 per + k % per and that + per. What
// lies beyond 2 half is copied. ALIGNED: four neighbours at a time. POSITIONS: the table's row is offset + s plus
// nothing (0), position[0] (1); or offset plus position[s] (2), position[o / members, s] (3); always brought into
// 0..rows-1. BACK: turned back.

// Far positions are brought near first: the sum must not wrap.
RLX_FN int bounded(const int p) { return p < -0x40000000 ? -0x40000000 : (p > 0x40000000 ? 0x40000000 : p); }
RLX_FN vec4 turned(const vec4 a, const vec4 b, const vec4 c, const vec4 s) {
    return VEC4(a.x * c.x + b.x * s.x, a.y * c.y + b.y * s.y, a.z * c.z + b.z * s.z, a.w * c.w + b.w * s.w);
}
RLX_FN vec4 negated(const vec4 v) { return VEC4(-v.x, -v.y, -v.z, -v.w); }

RLX_FN void rope_body(PTR(T) x, PTR(f32) cosine, PTR(f32) sine, PTR(i32) position, PTR(T) y, const uint total,
                      const uint seq, const uint inner, const uint d, const uint pairs, const uint per, const uint rows,
                      const uint offset, const uint members) {
    const uint t = GROUP * 256u + THREAD;
    if (t >= total) return;
    const uint rest = d - 2u * pairs;
    const uint turns = ALIGNED ? (PAIRS ? pairs / 2u : pairs / 4u) : pairs;
    const uint units = turns + (ALIGNED ? rest / 4u : rest);
    const uint row = t / units, u = t % units;
    const uint at = row * d;
    if (u >= turns) {
        if (ALIGNED) {
            const uint e = (at + 2u * pairs) / 4u + (u - turns);
            STORE4(T, y, e, LOAD4(T, x, e));
        } else {
            const uint e = at + 2u * pairs + (u - turns);
            STORE(T, y, e, LOAD(T, x, e));
        }
        return;
    }
    const uint s = row / inner % seq, o = row / (inner * seq);
    int place = int(offset);
    if (POSITIONS < 2u) place += int(s);
    if (POSITIONS == 1u) place += bounded(LOAD(i32, position, 0u));
    if (POSITIONS == 2u) place += bounded(LOAD(i32, position, s));
    if (POSITIONS == 3u) place += bounded(LOAD(i32, position, o / members * seq + s));
    const uint entry = (place < 0 ? 0u : (uint(place) < rows ? uint(place) : rows - 1u)) * pairs;
    if (ALIGNED && PAIRS) {
        const vec4 v = LOAD4(T, x, at / 4u + u);
        const float c0 = LOAD(f32, cosine, entry + 2u * u), c1 = LOAD(f32, cosine, entry + 2u * u + 1u);
        float s0 = LOAD(f32, sine, entry + 2u * u), s1 = LOAD(f32, sine, entry + 2u * u + 1u);
        if (BACK) {
            s0 = -s0;
            s1 = -s1;
        }
        STORE4(T, y, at / 4u + u,
               VEC4(v.x * c0 - v.y * s0, v.y * c0 + v.x * s0, v.z * c1 - v.w * s1, v.w * c1 + v.z * s1));
    } else if (ALIGNED) {
        const uint k = 4u * u;
        const uint first = (at + k / per * 2u * per + k % per) / 4u, second = first + per / 4u;
        const vec4 a = LOAD4(T, x, first), b = LOAD4(T, x, second);
        const vec4 c = LOAD4(f32, cosine, (entry + k) / 4u);
        vec4 w = LOAD4(f32, sine, (entry + k) / 4u);
        if (BACK) w = negated(w);
        STORE4(T, y, first, turned(a, b, c, negated(w)));
        STORE4(T, y, second, turned(b, a, c, w));
    } else {
        const uint first = PAIRS ? at + 2u * u : at + u / per * 2u * per + u % per;
        const uint second = first + (PAIRS ? 1u : per);
        const float a = LOAD(T, x, first), b = LOAD(T, x, second);
        const float c = LOAD(f32, cosine, entry + u);
        float w = LOAD(f32, sine, entry + u);
        if (BACK) w = -w;
        STORE(T, y, first, a * c - b * w);
        STORE(T, y, second, b * c + a * w);
    }
}
