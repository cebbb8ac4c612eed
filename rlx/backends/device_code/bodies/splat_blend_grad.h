// The gradient of splat_blend for each place of a tile's list, in `rows` (pairs, 9), by a workgroup. First each pixel
// walks its list to find where it is finished and what light is left. Then it walks back, from the last splat to the
// first. All sums over pixels have a fixed order. In f32 each warp adds up its own pixels (splat_warps.h) where warps
// exchange registers. Otherwise each pixel leaves two numbers for each of TOGETHER splats in shared memory, the weight
// of the colour and the gradient of log(alpha), of which the workgroup makes nine sums for each splat: over some
// pixels a thread, then over threads.
#include "splat_stage.h"

#ifdef RLX_GLSL
#if defined(T_f32) && defined(RLX_SUBGROUPS)
#define EXCHANGES
#endif
#else
#define EXCHANGES_f32 1
#define EXCHANGES_f64 0
#if RLX_JOIN(EXCHANGES_, T)
#define EXCHANGES
#endif
#endif
#ifdef EXCHANGES
#define BY_WARPS (WARPS && TOGETHER == 8u)  // it is 4 where there is too little shared memory
#else
#define BY_WARPS false
#endif
#define STRIPS 8u
#define LANES (256u / TOGETHER)
#define LARGER(a, b) ((a) > (b) ? (a) : (b))

// By warps: nine sums of each strip for each splat. Otherwise: colours, weights and gradients, then sums.
SHARED REAL given[BY_WARPS ? 1u : 3u * 256u];
SHARED REAL room[BY_WARPS ? STRIPS * STAGED * FIELDS : LARGER(2u * TOGETHER, FIELDS) * 256u];
SHARED uint going;  // 1 + the place of the last stage that an unfinished pixel asked for

#ifdef EXCHANGES
#include "splat_warps.h"
#endif

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
    if (THREAD == 0u) going = 0u;
    uint last = begin, seen = begin, staged = end;  // behind this pixel's last splat, and behind all; what is staged
    for (uint at = begin; at < end; at += STAGED) {
        BARRIER;
        if (light >= STOP) going = at + 1u;
        stage(splats, ids, at, end, n, top);
        staged = at;
        BARRIER;
        if (going != at + 1u) break;
        seen = at + least(end - at, STAGED);
        const uint low = walked(0u, end - at), high = walked(32u, end - at);
        for (uint base = 0u; base < STAGED; base += 32u) {
            for (uint bits = base == 0u ? low : high; bits != 0u && light >= STOP; bits &= bits - 1u) {
                const uint i = base + LOWEST(bits);
                const QUAD a = first_of[i], b = second_of[i];
                light *= 1.0f - limited(cover_at(a, b, px - a.x, py - a.y));
                last = at + i + 1u;
            }
        }
    }
    for (uint e = seen * FIELDS + THREAD; e < end * FIELDS; e += 256u) {
        PTR(T) to = SKIP(T, rows, e / FIELDS, FIELDS);
        STORE(T, to, e % FIELDS, 0.0f);
    }
    behind *= light;
#ifdef EXCHANGES
    if (BY_WARPS) {
        back_by_warps(splats, ids, rows, begin, seen, staged, last, n, top, px, py, light, behind, red, green, blue);
        return;
    }
#endif
    given[THREAD] = red;
    given[256u + THREAD] = green;
    given[512u + THREAD] = blue;
    for (uint parts = (seen - begin + STAGED - 1u) / STAGED; parts > 0u; parts--) {
        const uint at = begin + (parts - 1u) * STAGED, count = least(seen - at, STAGED);
        if (staged != at) {
            stage(splats, ids, at, seen, n, top);
            BARRIER;
        }
        for (uint sets = (count + TOGETHER - 1u) / TOGETHER; sets > 0u; sets--) {
            const uint base = (sets - 1u) * TOGETHER;
            for (uint turn = 0u; turn < TOGETHER; turn++) {
                const uint k = TOGETHER - 1u - turn, i = base + k;
                REAL weight = 0.0f, slope = 0.0f;
                if (i < count && at + i < last) {
                    const QUAD a = first_of[i], b = second_of[i];
                    const REAL whole = cover_at(a, b, px - a.x, py - a.y), alpha = limited(whole);
                    if (alpha > 0.0f) {
                        const REAL back_by = INVERSE(1.0f - alpha);
                        light *= back_by;
                        weight = alpha * light;
                        const REAL shade = FMA_IN(T, red, b.w, FMA_IN(T, green, third_of[i].x, blue * third_of[i].y));
                        if (whole < ALPHA_MAX) slope = alpha * (light * shade - behind * back_by);
                        behind = FMA_IN(T, weight, shade, behind);
                    }
                }
                room[k * 256u + THREAD] = weight;
                room[(TOGETHER + k) * 256u + THREAD] = slope;
            }
            BARRIER;
            const uint own = THREAD / LANES, lane = THREAD % LANES;
            const uint mine = least(base + own, count - 1u);
            const QUAD a = first_of[mine], b = second_of[mine];
            REAL sx = 0.0f, sy = 0.0f, sxx = 0.0f, sxy = 0.0f, syy = 0.0f, s = 0.0f, sr = 0.0f, sg = 0.0f, sb = 0.0f;
            UNROLL for (uint turn = 0u; turn < TOGETHER; turn++) {
                const uint p = turn * LANES + lane;
                const REAL weight = room[own * 256u + p], slope = room[(TOGETHER + own) * 256u + p];
                const REAL dx = REAL(left + p % TILE) + 0.5f - a.x, dy = REAL(top + p / TILE) + 0.5f - a.y;
                const REAL along = slope * dx, down = slope * dy;
                s += slope;
                sx += along;
                sy += down;
                sxx = FMA_IN(T, along, dx, sxx);
                sxy = FMA_IN(T, along, dy, sxy);
                syy = FMA_IN(T, down, dy, syy);
                sr = FMA_IN(T, weight, given[p], sr);
                sg = FMA_IN(T, weight, given[256u + p], sg);
                sb = FMA_IN(T, weight, given[512u + p], sb);
            }
            BARRIER;
            room[THREAD] = FMA_IN(T, a.z, sx, a.w * sy);
            room[256u + THREAD] = FMA_IN(T, a.w, sx, b.x * sy);
            room[512u + THREAD] = -0.5f * sxx;
            room[768u + THREAD] = -sxy;
            room[1024u + THREAD] = -0.5f * syy;
            room[1280u + THREAD] = s == 0.0f ? 0.0f : s * INVERSE(b.y);
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
