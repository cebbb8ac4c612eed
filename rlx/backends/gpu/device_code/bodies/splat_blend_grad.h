// The gradient of splat_blend for each place of a tile's list, in `rows` (pairs, 9), by a workgroup. First each pixel
// walks its list to find where it is finished and what light is left. Then it walks back, from the last splat to the
// first, and leaves for TOGETHER splats at a time what each gets from it: the weight of the colour, and the gradient of
// the exponent. Of these the workgroup sums nine numbers for each splat, over some pixels a thread, then over threads,
// always in the same order.
#include "splat_stage.h"

#define LANES (256u / TOGETHER)

SHARED REAL given[3u * 256u];  // the gradient of each pixel's colour
SHARED REAL room[(2u * TOGETHER > FIELDS ? 2u * TOGETHER : FIELDS) * 256u];  // weights and gradients, then sums
SHARED uint going;

RLX_FN void splat_blend_grad_body(PTR(T) d, PTR(T) splats, PTR(i32) ids, PTR(i32) ranges, PTR(T) rows,
                                  const uint width, const uint height, const uint across, const uint tiles,
                                  const uint n, const uint pairs) {
    if (GROUP >= tiles) return;
    const uint begin = bounded(LOAD(i32, ranges, GROUP), pairs), end = bounded(LOAD(i32, ranges, GROUP + 1u), pairs);
    const uint left = GROUP % across * TILE, top = GROUP / across * TILE;
    const uint column = left + THREAD % TILE, row = top + THREAD / TILE;
    const bool inside = column < width && row < height;
    const REAL px = REAL(column) + 0.5f, py = REAL(row) + 0.5f;
    REAL light = inside ? 1.0f : 0.0f, red = 0.0f, green = 0.0f, blue = 0.0f, behind = 0.0f;
    if (inside) {
        PTR(T) from = SKIP(T, d, row * width + column, 4u);
        red = LOAD(T, from, 0u);
        green = LOAD(T, from, 1u);
        blue = LOAD(T, from, 2u);
        behind = LOAD(T, from, 3u);
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
            const QUAD a = first_of[i], b = second_of[i];
            const REAL alpha = limited(cover(a, b, px - a.x, py - a.y));
            light *= 1.0f - alpha;
            last = at + i + 1u;
        }
    }
    for (uint e = seen * FIELDS + THREAD; e < end * FIELDS; e += 256u) {
        PTR(T) to = SKIP(T, rows, e / FIELDS, FIELDS);
        STORE(T, to, e % FIELDS, 0.0f);
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
                REAL weight = 0.0f, of_q = 0.0f;
                if (i < count && at + i < last) {
                    const QUAD a = first_of[i], b = second_of[i];
                    const REAL whole = cover(a, b, px - a.x, py - a.y), alpha = limited(whole);
                    if (alpha > 0.0f) {
                        const REAL back_by = INVERSE(1.0f - alpha);
                        light *= back_by;
                        weight = alpha * light;
                        const REAL shade = FMA_IN(T, red, b.w, FMA_IN(T, green, third_of[i].x, blue * third_of[i].y));
                        const REAL into = light * shade - behind * back_by;
                        if (whole < ALPHA_MAX) of_q = -0.5f * alpha * into;
                        behind = FMA_IN(T, weight, shade, behind);
                    }
                }
                room[k * 256u + THREAD] = weight;
                room[(TOGETHER + k) * 256u + THREAD] = of_q;
            }
            BARRIER;
            const uint own = THREAD / LANES, lane = THREAD % LANES;
            const uint mine = least(base + own, count - 1u);
            const QUAD a = first_of[mine], b = second_of[mine];
            REAL sx = 0.0f, sy = 0.0f, sxx = 0.0f, sxy = 0.0f, syy = 0.0f, s = 0.0f, sr = 0.0f, sg = 0.0f, sb = 0.0f;
            UNROLL for (uint turn = 0u; turn < TOGETHER; turn++) {
                const uint p = turn * LANES + lane;
                const REAL weight = room[own * 256u + p], of_q = room[(TOGETHER + own) * 256u + p];
                const REAL dx = REAL(left + p % TILE) + 0.5f - a.x, dy = REAL(top + p / TILE) + 0.5f - a.y;
                const REAL qx = of_q * dx, qy = of_q * dy;
                s += of_q;
                sx += qx;
                sy += qy;
                sxx = FMA_IN(T, qx, dx, sxx);
                sxy = FMA_IN(T, qx, dy, sxy);
                syy = FMA_IN(T, qy, dy, syy);
                sr = FMA_IN(T, weight, given[p], sr);
                sg = FMA_IN(T, weight, given[256u + p], sg);
                sb = FMA_IN(T, weight, given[512u + p], sb);
            }
            BARRIER;
            room[THREAD] = -2.0f * FMA_IN(T, a.z, sx, a.w * sy);
            room[256u + THREAD] = -2.0f * FMA_IN(T, a.w, sx, b.x * sy);
            room[512u + THREAD] = sxx;
            room[768u + THREAD] = 2.0f * sxy;
            room[1024u + THREAD] = syy;
            room[1280u + THREAD] = s == 0.0f ? 0.0f : -2.0f * s * INVERSE(b.y);
            room[1536u + THREAD] = sr;
            room[1792u + THREAD] = sg;
            room[2048u + THREAD] = sb;
            BARRIER;
            if (THREAD < TOGETHER * FIELDS && base + THREAD / FIELDS < count) {
                const uint k = THREAD / FIELDS, f = THREAD % FIELDS;
                REAL total = 0.0f;
                UNROLL for (uint l = 0u; l < LANES; l++) total += room[f * 256u + k * LANES + (l + THREAD) % LANES];
                PTR(T) to = SKIP(T, rows, at + base + k, FIELDS);
                STORE(T, to, f, total);
            }
            BARRIER;
        }
    }
}
