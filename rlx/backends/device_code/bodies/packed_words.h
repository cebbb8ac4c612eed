// Small dtypes in words: IN_WORD elements of T in each, VALUE_OF the low ones of a word, BITS_OF a value that T holds.
#define IN_WORD_f16 2u
#define IN_WORD_bf16 2u
#define IN_WORD_i8 4u
#define IN_WORD_u8 4u
#define VALUE_f16(u) p_f16_value((u) & 0xffffu)
#define VALUE_bf16(u) p_bf16_value((u) & 0xffffu)
#define VALUE_i8(u) (float((u) & 0xffu) - (((u) & 0x80u) != 0u ? 256.0f : 0.0f))
#define VALUE_u8(u) float((u) & 0xffu)
#define BITS_f16(x) p_f16_bits(x)
#define BITS_bf16(x) p_bf16_bits(x)
#define BITS_i8(x) (uint(int(x)) & 0xffu)
#define BITS_u8(x) (uint(int(x)) & 0xffu)
#define IN_WORD RLX_JOIN(IN_WORD_, T)
#define VALUE_OF(u) RLX_JOIN(VALUE_, T)(u)
#define BITS_OF(x) RLX_JOIN(BITS_, T)(x)
