// y[row, i] = element i of a packed row: see packed.h. Y_QUADS: y may be written four at a time.
#define TABLED
#include "packed.h"
#include "packed_elements.h"

RLX_FN void put_four(PTR(T) y, const uint at, const vec4 v) {
    if (Y_QUADS) {
        STORE4(T, y, at / 4u, v);
    } else {
        STORE(T, y, at, v.x);
        STORE(T, y, at + 1u, v.y);
        STORE(T, y, at + 2u, v.z);
        STORE(T, y, at + 3u, v.w);
    }
}

RLX_FN void dequantize_body(PTR(u32) q, PTR(u32) book, PTR(T) y, const uint rows, const uint blocks, const uint pitch) {
    const uint each = blocks * UNITS, unit = GROUP * 256u + THREAD, row = unit / each;
    if (IS_TABLE) {
        fill_table();
        BARRIER;
    }
    if (row >= rows) return;
    const uint b = unit % each / UNITS, u = unit % UNITS;
    Row from = row_of(q, row, pitch);
    const Planes at = planes_of(blocks);
    PTR(T) to = SKIP(T, y, row, blocks * BLOCK);
    if (IN_CHUNKS) {
        const Chunk c = chunk_of(from, at, b, u);
        for (uint run = 0u; run < RUNS; run++) {
            const Scale scale = scale_of(from, at, b, u, run);
            for (uint w = 0u; w < 4u; w++) {
                const vec4 v = values_of(quad_of(c, u, run, w), scale.zero);
                put_four(to, element_of(b, u, run) + 4u * w,
                         VEC4(weight_of(scale, v.x), weight_of(scale, v.y), weight_of(scale, v.z), weight_of(scale, v.w)));
            }
        }
    } else {
        const uint e = u * 8u;
        for (uint k = 0u; k < 8u; k += 4u) {
            put_four(to, b * BLOCK + e + k,
                     VEC4(element(from, at, book, b, e + k), element(from, at, book, b, e + k + 1u),
                          element(from, at, book, b, e + k + 2u), element(from, at, book, b, e + k + 3u)));
        }
    }
}
