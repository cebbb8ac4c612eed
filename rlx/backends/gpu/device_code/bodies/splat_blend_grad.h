// The gradient of splat_blend for each place of a tile's list, in `rows` (pairs, 9), by a workgroup. First each pixel
// walks its list to find where it is finished and what light is left. Then it walks back, from the last splat to the
// first, and leaves for TOGETHER splats at a time what each gets from it: the weight of the colour, and the gradient of
// the exponent. Of these the workgroup sums nine numbers for each splat, over some pixels a thread, then over threads,
// always in the same order.
#include "splat_stage.h"

#define LANES (256u / TOGETHER)

SHARED float given[3u * 256u];  // the gradient of each pixel's colour
SHARED float room[(2u * TOGETHER > FIELDS ? 2u * TOGETHER : FIELDS) * 256u];  // weights and gradients, then sums
SHARED uint going;

RLX_FN void splat_blend_grad_body(PTR(f32) d, PTR(f32) splats, PTR(i32) ids, PTR(i32) ranges, PTR(f32) rows,
                                  const uint width, const uint height, const uint across, const uint tiles,
                                  const uint n, const uint pairs) {
    if (GROUP >= tiles) return;
    const uint begin = bounded(LOAD(i32, ranges, GROUP), pairs), end = bounded(LOAD(i32, ranges, GROUP + 1u), pairs);
    const uint left = GROUP % across * TILE, top = GROUP / across * TILE;
    const uint column = left + THREAD % TILE, row = top + THREAD / TILE;
    const bool inside = column < width && row < height;
    const float px = float(column) + 0.5f, py = float(row) + 0.5f;
    float light = inside ? 1.0f : 0.0f, red = 0.0f, green = 0.0f, blue = 0.0f, behind = 0.0f;
    if (inside) {
        PTR(f32) from = SKIP(f32, d, row * width + column, 4u);
        red = LOAD(f32, from, 0u);
        green = LOAD(f32, from, 1u);
        blue = LOAD(f32, from, 2u);
        behind = LOAD(f32, from, 3u);
    }
    given[THREAD] = red;
    given[256u + THREAD] = green;
    given[512u + THREAD] = blue;
    if (THREAD == 0u) going = 0u;
    uint last = begin, seen = begin, staged = end;  // behind this pixel's last splat, and behind all; what is staged
    for (uint at = begin; at < end; at += STAGED) {
        BARRIER;
        if (light >= STOP) going = at + 1u;
        stage(splats, ids, at, end, n);
        staged = at;
        BARRIER;
        if (going != at + 1u) break;
        const uint count = least(end - at, STAGED);
        seen = at + count;
        for (uint i = 0u; i < count && light >= STOP; i++) {
            const vec4 a = first_of[i], b = second_of[i];
            const float alpha = p_min_f(cover(a, b, px - a.x, py - a.y), ALPHA_MAX);
            light *= 1.0f - alpha;
            last = at + i + 1u;
        }
    }
    for (uint e = seen * FIELDS + THREAD; e < end * FIELDS; e += 256u) {
        PTR(f32) to = SKIP(f32, rows, e / FIELDS, FIELDS);
        STORE(f32, to, e % FIELDS, 0.0f);
    }
    behind *= light;
    for (uint parts = (seen - begin + STAGED - 1u) / STAGED; parts > 0u; parts--) {
        const uint at = begin + (parts - 1u) * STAGED, count = least(seen - at, STAGED);
        if (staged != at) {
            stage(splats, ids, at, seen, n);
            BARRIER;
        }
        for (uint sets = (count + TOGETHER - 1u) / TOGETHER; sets > 0u; sets--) {
            const uint base = (sets - 1u) * TOGETHER;
            for (uint turn = 0u; turn < TOGETHER; turn++) {
                const uint k = TOGETHER - 1u - turn, i = base + k;
                float weight = 0.0f, of_q = 0.0f;
                if (i < count && at + i < last) {
                    const vec4 a = first_of[i], b = second_of[i];
                    const float whole = cover(a, b, px - a.x, py - a.y), alpha = p_min_f(whole, ALPHA_MAX);
                    if (alpha > 0.0f) {
                        const float back_by = 1.0f / (1.0f - alpha);
                        light *= back_by;
                        weight = alpha * light;
                        const float shade = FMA(red, b.w, FMA(green, third_of[i].x, blue * third_of[i].y));
                        const float into = light * shade - behind * back_by;
                        if (whole < ALPHA_MAX) of_q = -0.5f * alpha * into;
                        behind = FMA(weight, shade, behind);
                    }
                }
                room[k * 256u + THREAD] = weight;
                room[(TOGETHER + k) * 256u + THREAD] = of_q;
            }
            BARRIER;
            const uint own = THREAD / LANES, lane = THREAD % LANES;
            const uint mine = least(base + own, count - 1u);
            const vec4 a = first_of[mine], b = second_of[mine];
            float sx = 0.0f, sy = 0.0f, sxx = 0.0f, sxy = 0.0f, syy = 0.0f, s = 0.0f, sr = 0.0f, sg = 0.0f, sb = 0.0f;
            UNROLL for (uint turn = 0u; turn < TOGETHER; turn++) {
                const uint p = turn * LANES + lane;
                const float weight = room[own * 256u + p], of_q = room[(TOGETHER + own) * 256u + p];
                const float dx = float(left + p % TILE) + 0.5f - a.x, dy = float(top + p / TILE) + 0.5f - a.y;
                const float qx = of_q * dx, qy = of_q * dy;
                s += of_q;
                sx += qx;
                sy += qy;
                sxx = FMA(qx, dx, sxx);
                sxy = FMA(qx, dy, sxy);
                syy = FMA(qy, dy, syy);
                sr = FMA(weight, given[p], sr);
                sg = FMA(weight, given[256u + p], sg);
                sb = FMA(weight, given[512u + p], sb);
            }
            BARRIER;
            room[THREAD] = -2.0f * FMA(a.z, sx, a.w * sy);
            room[256u + THREAD] = -2.0f * FMA(a.w, sx, b.x * sy);
            room[512u + THREAD] = sxx;
            room[768u + THREAD] = 2.0f * sxy;
            room[1024u + THREAD] = syy;
            room[1280u + THREAD] = s == 0.0f ? 0.0f : -2.0f * s / b.y;
            room[1536u + THREAD] = sr;
            room[1792u + THREAD] = sg;
            room[2048u + THREAD] = sb;
            BARRIER;
            if (THREAD < TOGETHER * FIELDS && base + THREAD / FIELDS < count) {
                const uint k = THREAD / FIELDS, f = THREAD % FIELDS;
                float total = 0.0f;
                UNROLL for (uint l = 0u; l < LANES; l++) total += room[f * 256u + k * LANES + (l + THREAD) % LANES];
                PTR(f32) to = SKIP(f32, rows, at + base + k, FIELDS);
                STORE(f32, to, f, total);
            }
            BARRIER;
        }
    }
}
