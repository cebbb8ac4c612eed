// parts[g] = 1 where the elements that group g reads hold an infinity or a NaN, else 0. `table` has the addresses of the
// tensors, `sizes` five numbers of each: its first group, its whole words of 32 bits, whether half a word follows them,
// and the bits of the exponents in the low and in the high half of a word (the same where an element is a word).
#include "eights.h"
#ifdef RLX_GLSL
#define PLACE(words) ptr_u32(words)
#define HALF_WORD(p, i) uint(ptr_b2(uvec2(p)).at[i])
#else
#define PLACE(words) ((ptr_u32)((unsigned long long)(words).y << 32 | (words).x))
#define HALF_WORD(p, i) ((uint)((const unsigned short*)(p))[i])
#endif
#define EACH 4096u  // units of sixteen bytes of a group

SHARED uint some_bad;

RLX_FN bool wild(const uint word, const uint low, const uint high) {
    return (word & low) == low || (word & high) == high;
}
RLX_FN bool wild_unit(const uvec4 u, const uint low, const uint high) {
    return wild(u.x, low, high) || wild(u.y, low, high) || wild(u.z, low, high) || wild(u.w, low, high);
}

RLX_FN void finite_parts_body(const PTR(b8) table, const PTR(u32) sizes, const PTR(u32) parts, const uint groups,
                              const uint tensors) {
    if (GROUP >= groups) return;
    uint tensor = 0u;
    for (uint end = tensors; end - tensor > 1u;) {
        const uint middle = (tensor + end) / 2u;
        if (LOAD(u32, sizes, middle * 5u) <= GROUP) tensor = middle;
        else end = middle;
    }
    const uint begin = (GROUP - LOAD(u32, sizes, tensor * 5u)) * EACH, words = LOAD(u32, sizes, tensor * 5u + 1u);
    const uint low = LOAD(u32, sizes, tensor * 5u + 3u), high = LOAD(u32, sizes, tensor * 5u + 4u);
    PTR(u32) p = PLACE(table AT(tensor));
    const uint units = words / 4u, stop = units - begin < EACH ? units : begin + EACH;
    if (THREAD == 0u) some_bad = 0u;
    BARRIER;
    bool bad = false;
    uint i = begin + THREAD;
    for (; i + 768u < stop; i += 1024u) {
        const uvec4 a = WORDS4(p, i), b = WORDS4(p, i + 256u), c = WORDS4(p, i + 512u), d = WORDS4(p, i + 768u);
        bad = bad || wild_unit(a, low, high) || wild_unit(b, low, high) || wild_unit(c, low, high) ||
              wild_unit(d, low, high);
    }
    for (; i < stop; i += 256u) bad = bad || wild_unit(WORDS4(p, i), low, high);
    if (stop == units) {  // the tensor's last group
        const uint rest = units * 4u + THREAD;
        if (rest < words) bad = bad || wild(WORDS1(p, rest), low, high);
        if (rest == words && LOAD(u32, sizes, tensor * 5u + 2u) != 0u) {
            bad = bad || (HALF_WORD(p, 2u * words) & low) == low;
        }
    }
    if (bad) some_bad = 1u;
    BARRIER;
    if (THREAD == 0u) parts AT(GROUP) = some_bad;
}
