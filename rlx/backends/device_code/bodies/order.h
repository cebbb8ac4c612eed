// Sort keys: the integers by which elements are compared, so that one comparison of unsigned integers serves every
// dtype. Smaller keys come first, and equal keys in the order of their indices: no two pairs (key, index) are equal, so
// every sorting algorithm gives the same result. A kernel defines two macros before it includes this file. KEY_KIND is
// the dtype: 0 unsigned or bool, 1 signed, 2 f16, 3 bf16, 4 f32, 5 f64. KEY_FLIP is the order: 0 ascending with NaN
// last, 1 descending with NaN first, 2 ascending with NaN first. U is the unsigned type of an element's bits. The keys
// of i64 and of f64 are two words. 0.0 and -0.0 have the same key, and all NaN have the same key.
#ifndef RLX_ORDER_H
#define RLX_ORDER_H
#ifdef RLX_GLSL
#define UVEC2(a, b) uvec2(a, b)
#define UVEC4(a, b, c, d) uvec4(a, b, c, d)
#define ATOMIC_ADD(place, value) atomicAdd(place, value)
#else
#define UVEC2(a, b) make_uint2(a, b)
#define UVEC4(a, b, c, d) make_uint4(a, b, c, d)
#define ATOMIC_ADD(place, value) atomicAdd(&(place), value)
#endif

// A pair (key, index), and the unit in which pairs are stored in memory.
#define PAIR_b1 uvec2
#define PAIR_b2 uvec2
#define PAIR_b4 uvec2
#define PAIR_b8 uvec4
#define PAIR_UNIT_b1 b8
#define PAIR_UNIT_b2 b8
#define PAIR_UNIT_b4 b8
#define PAIR_UNIT_b8 b16
#define PAIR RLX_JOIN(PAIR_, U)
#define PU RLX_JOIN(PAIR_UNIT_, U)
#define PAIRS PTR(PU)
#define SKIP_PAIRS(p, count, stride) RLX_JOIN(SKIP_PAIRS_, U)(p, count, stride)
#define SKIP_PAIRS_b1(p, count, stride) SKIP(b8, p, count, stride)
#define SKIP_PAIRS_b2(p, count, stride) SKIP(b8, p, count, stride)
#define SKIP_PAIRS_b4(p, count, stride) SKIP(b8, p, count, stride)
#define SKIP_PAIRS_b8(p, count, stride) SKIP(b16, p, count, stride)
#define BEYOND 0xffffffffu  // the index of a padding element, which sorts after all real elements

#define SIGN_BIT_b1 0x80u
#define SIGN_BIT_b2 0x8000u
#define SIGN_BIT_b4 0x80000000u
#define SIGN_BIT_b8 0x80000000u
#define SIGN_BIT RLX_JOIN(SIGN_BIT_, U)

RLX_FN uint float_key(const uint u, const uint sign, const uint infinity) {
    if ((u & (sign - 1u)) > infinity) return KEY_FLIP == 2u ? 0u : 0xffffffffu;
    if ((u & (sign - 1u)) == 0u) return sign;
    return (u & sign) != 0u ? ~u & (sign | (sign - 1u)) : u | sign;
}

RLX_FN uint key_of(const uint u) {
    uint key = u;
    if (KEY_KIND == 1u) key = u ^ SIGN_BIT;
    if (KEY_KIND == 2u) key = float_key(u, 0x8000u, 0x7c00u);
    if (KEY_KIND == 3u) key = float_key(u, 0x8000u, 0x7f80u);
    if (KEY_KIND == 4u) key = float_key(u, 0x80000000u, 0x7f800000u);
    return KEY_FLIP == 1u ? ~key : key;
}

// The key of an f64 (KEY_KIND 5) as two words, the lower first.
RLX_FN uvec2 double_key(const uvec2 u) {
    const uint size = u.y & 0x7fffffffu;
    const uint none = KEY_FLIP == 2u ? 0u : 0xffffffffu;
    if (size > 0x7ff00000u || (size == 0x7ff00000u && u.x != 0u)) return UVEC2(none, none);
    if ((size | u.x) == 0u) return UVEC2(0u, 0x80000000u);
    if (u.y != size) return UVEC2(~u.x, ~u.y);
    return UVEC2(u.x, u.y | 0x80000000u);
}

RLX_FN uvec2 pair_b1(const uint u, const uint index) { return UVEC2(key_of(u), index); }
RLX_FN uvec2 pair_b2(const uint u, const uint index) { return UVEC2(key_of(u), index); }
RLX_FN uvec2 pair_b4(const uint u, const uint index) { return UVEC2(key_of(u), index); }
RLX_FN uvec4 pair_b8(const uvec2 u, const uint index) {
    const uint flip = KEY_FLIP == 1u ? 0xffffffffu : 0u;
    uvec2 key = UVEC2(u.x, u.y ^ 0x80000000u);
    if (KEY_KIND == 5u) key = double_key(u);
    return UVEC4(key.y ^ flip, key.x ^ flip, index, 0u);
}

// The element at index i, as its bits and as a pair.
#define BITS_b1(p, i) uint((p) AT(i))
#define BITS_b2(p, i) uint((p) AT(i))
#define BITS_b4(p, i) ((p) AT(i))
#define BITS_b8(p, i) ((p) AT(i))
#define PAIR_AT(p, i, index) RLX_JOIN(pair_, U)(RLX_JOIN(BITS_, U)(p, i), index)

RLX_FN uvec2 no_pair_b1() { return UVEC2(0xffffffffu, BEYOND); }
RLX_FN uvec2 no_pair_b2() { return UVEC2(0xffffffffu, BEYOND); }
RLX_FN uvec2 no_pair_b4() { return UVEC2(0xffffffffu, BEYOND); }
RLX_FN uvec4 no_pair_b8() { return UVEC4(0xffffffffu, 0xffffffffu, BEYOND, 0u); }
#define NO_PAIR RLX_JOIN(no_pair_, U)()

RLX_FN bool before(const uvec2 a, const uvec2 b) { return a.x != b.x ? a.x < b.x : a.y < b.y; }
RLX_FN bool before(const uvec4 a, const uvec4 b) {
    return a.x != b.x ? a.x < b.x : a.y != b.y ? a.y < b.y : a.z < b.z;
}
RLX_FN uint index_in(const uvec2 p) { return p.y; }
RLX_FN uint index_in(const uvec4 p) { return p.z; }
#endif
