// The way back of splat_blend_grad by warps: over the splats that may touch a warp's strip of pixels, whose nine sums
// over its threads the warp makes right away, where some pixel takes anything of a splat. The strips of a tile are
// added up for 64 splats at a time.

// Nine sums over 32 threads take twelve exchanges, since each of the first steps halves the numbers that a thread has:
// `folded` adds up two numbers over a pair of threads `step` apart, `low` in the thread without this bit, `high` in the
// other. In the end thread 4 f has the sum of number f, and thread 2 that of the ninth. `slope` is the gradient of
// log(alpha); what an exponent's part in it is multiplied by is left to the end.
RLX_FN REAL folded(const REAL low, const REAL high, const uint step) {
    const bool upper = (THREAD & step) != 0u;
    return (upper ? high : low) + WARP_SHUFFLE(upper ? low : high, step);
}
RLX_FN REAL joined(const REAL v, const uint step) { return v + WARP_SHUFFLE(v, step); }

RLX_FN void back_by_warps(PTR(T) splats, PTR(i32) ids, PTR(T) rows, const uint begin, const uint seen,
                          const uint staged, const uint last, const uint n, const uint top, const REAL px,
                          const REAL py, REAL light, REAL behind, const REAL red, const REAL green, const REAL blue) {
    const uint lane = THREAD % 32u, strip = THREAD / 32u;
    for (uint parts = (seen - begin + STAGED - 1u) / STAGED; parts > 0u; parts--) {
        const uint at = begin + (parts - 1u) * STAGED, count = least(seen - at, STAGED);
        if (staged != at) stage(splats, ids, at, seen, n, top);
        BARRIER;
        for (uint base = STAGED; base > 0u; base -= 32u) {
            uint bits = walked(base - 32u, count);
            while (bits != 0u) {
                const uint bit = HIGHEST(bits), i = base - 32u + bit;
                bits ^= 1u << bit;
                const QUAD a = first_of[i], b = second_of[i];
                const REAL dx = px - a.x, dy = py - a.y;
                const REAL u = FMA_IN(T, a.z, dx, a.w * dy), v = FMA_IN(T, a.w, dx, b.x * dy);
                const REAL whole = at + i < last ? cover(b, FMA_IN(T, u, dx, v * dy)) : 0.0f;
                REAL sum = 0.0f;
                if (WARP_BALLOT(whole > 0.0f) != 0u) {
                    REAL weight = 0.0f, slope = 0.0f;
                    if (whole > 0.0f) {
                        const REAL alpha = limited(whole), back_by = INVERSE(1.0f - alpha);
                        light *= back_by;
                        weight = alpha * light;
                        const REAL shade = FMA_IN(T, red, b.w, FMA_IN(T, green, third_of[i].x, blue * third_of[i].y));
                        if (whole < ALPHA_MAX) slope = alpha * (light * shade - behind * back_by);
                        behind = FMA_IN(T, weight, shade, behind);
                    }
                    const REAL along = slope * dx, down = slope * dy;
                    const REAL s0 = folded(slope * u, down * dy, 16u), s1 = folded(slope * v, slope, 16u),
                               s2 = folded(along * dx, weight * red, 16u), s3 = folded(along * dy, weight * green, 16u);
                    const REAL ninth = joined(joined(joined(weight * blue, 16u), 8u), 4u);
                    sum = folded(folded(s0, s2, 8u), folded(s1, s3, 8u), 4u);
                    sum = joined(folded(sum, ninth, 2u), 1u);
                }
                if (lane % 4u == 0u) room[(strip * STAGED + i) * FIELDS + lane / 4u] = sum;
                if (lane == 2u) room[(strip * STAGED + i) * FIELDS + 8u] = sum;
            }
        }
        BARRIER;
        for (uint e = THREAD; e < count * FIELDS; e += 256u) {
            const uint f = e % FIELDS, touched = strips_of[e / FIELDS];
            REAL total = 0.0f;
            UNROLL for (uint k = 0u; k < STRIPS; k++) {
                if ((touched >> k & 1u) != 0u) total += room[k * STAGED * FIELDS + e];
            }
            if (f == 2u || f == 4u) total *= -0.5f;
            if (f == 3u) total = -total;
            if (f == 5u && total != 0.0f) total *= INVERSE(second_of[e / FIELDS].y);
            PTR(T) to = SKIP(T, rows, at, FIELDS);
            STORE(T, to, e, total);
        }
        BARRIER;
    }
}
