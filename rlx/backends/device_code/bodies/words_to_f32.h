// y[i] = element i of the elements of dtype T that lie in the words x: two of 16 bits or four of 8 in each.
#include "packed_words.h"

RLX_FN void words_to_f32_body(PTR(u32) x, PTR(f32) y, const uint n) {
    const uint word = GROUP * 256u + THREAD, first = word * IN_WORD;
    if (first >= n) return;
    const uint bits = x AT(word);
    for (uint k = 0u; k < IN_WORD && first + k < n; k++) STORE(f32, y, first + k, VALUE_OF(bits >> (k * (32u / IN_WORD))));
}
