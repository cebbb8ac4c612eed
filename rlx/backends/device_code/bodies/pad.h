// y = x with its axes padded; bits are copied in units of U. meta: for each of AXES axes, the last first: its size in
// y, two numbers to divide by that size, the pad before it, its size in x, its stride in x, and of the pattern that
// repeats along it the period, a multiple of the period to lift places above 0 with, and where its mirrored half folds
// back. MODE: 0 places outside x hold the value (four words), 1 they hold the end element, 2 the pattern goes on. A
// thread takes four units, 256 apart, and reads them all before it writes: memory is waited for once.
#ifdef RLX_GLSL
#define pad_b1 uint
#define pad_b2 uint
#define pad_b4 uint
#define pad_b8 uvec2
#define pad_b16 uvec4
#define PAD_RAW_b1(v) uint8_t(v)
#define PAD_RAW_b2(v) uint16_t(v)
#else
typedef uint pad_b1;
typedef uint pad_b2;
typedef uint pad_b4;
typedef uvec2 pad_b8;
typedef uvec4 pad_b16;
#define uvec2(a, b) make_uint2(a, b)
#define uvec4(a, b, c, d) make_uint4(a, b, c, d)
#define PAD_RAW_b1(v) ((unsigned char)(v))
#define PAD_RAW_b2(v) ((unsigned short)(v))
#endif
#define PAD_RAW_b4(v) (v)
#define PAD_RAW_b8(v) (v)
#define PAD_RAW_b16(v) (v)
#define PAD_VALUE_b1 v0
#define PAD_VALUE_b2 v0
#define PAD_VALUE_b4 v0
#define PAD_VALUE_b8 uvec2(v0, v1)
#define PAD_VALUE_b16 uvec4(v0, v1, v2, v3)
#define PAD_UNIT RLX_JOIN(pad_, U)
#define PAD_NONE 0xffffffffu

// The unit of x at place `id` of y, PAD_NONE for none. id < 2^31, so that the product's upper half divides exactly
// (Granlund and Montgomery, 1994).
RLX_FN uint pad_source(const uint id, PTR(u32) meta) {
    uint rest = id, at = 0u;
    bool none = false;
    UNROLL for (uint k = 0u; k < AXES; k++) {
        uint c = rest;
        if (k + 1u < AXES) {
            const uint high = RLX_UMULHI(rest, LOAD(u32, meta, 9u * k + 1u));
            rest = high >> LOAD(u32, meta, 9u * k + 2u);
            c -= rest * LOAD(u32, meta, 9u * k);
        }
        c -= LOAD(u32, meta, 9u * k + 3u);  // below 0 it wraps past every size
        const uint n = LOAD(u32, meta, 9u * k + 4u);
        if (c >= n) {
            if (MODE == 0u) {
                none = true;
            } else if (MODE == 1u) {
                c = c < 0x80000000u ? n - 1u : 0u;
            } else {
                c = (c + LOAD(u32, meta, 9u * k + 7u)) % LOAD(u32, meta, 9u * k + 6u);
                c = c < n ? c : LOAD(u32, meta, 9u * k + 8u) - c;
            }
        }
        at += c * LOAD(u32, meta, 9u * k + 5u);
    }
    return none ? PAD_NONE : at;
}

RLX_FN void pad_body(PTR(U) x, PTR(u32) meta, PTR(U) y, const uint total, const uint v0, const uint v1, const uint v2,
                     const uint v3) {
    const uint first = GROUP * 1024u + THREAD;
    PAD_UNIT held[4];
    UNROLL for (uint k = 0u; k < 4u; k++) {
        const uint id = first + 256u * k;
        held[k] = RLX_JOIN(PAD_VALUE_, U);
        if (id < total) {
            const uint at = pad_source(id, meta);
            if (at != PAD_NONE) held[k] = PAD_UNIT(x AT(at));
        }
    }
    UNROLL for (uint k = 0u; k < 4u; k++) {
        const uint id = first + 256u * k;
        if (id < total) y AT(id) = RLX_JOIN(PAD_RAW_, U)(held[k]);
    }
}
