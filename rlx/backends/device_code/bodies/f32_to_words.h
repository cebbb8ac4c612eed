// Element i of the elements of dtype T that lie in the words y is x[i], rounded: two of 16 bits or four of 8 in each.
// What the last word holds behind the last element stays.
#include "packed_words.h"

RLX_FN void f32_to_words_body(PTR(f32) x, PTR(u32) y, const uint n) {
    const uint word = GROUP * 256u + THREAD, first = word * IN_WORD;
    if (first >= n) return;
    const uint width = 32u / IN_WORD, count = n - first < IN_WORD ? n - first : IN_WORD;
    uint bits = count < IN_WORD ? y AT(word) >> (count * width) << (count * width) : 0u;
    for (uint k = 0u; k < count; k++) bits |= BITS_OF(LOAD(f32, x, first + k)) << (k * width);
    y AT(word) = bits;
}
