// y = whether all n words of `parts` are 0.
#ifdef RLX_GLSL
#define BYTE(x) uint8_t(x)
#else
#define BYTE(x) ((unsigned char)(x))
#endif

SHARED uint some;

RLX_FN void finite_all_body(const PTR(u32) parts, const PTR(bool) y, const uint n) {
    if (GROUP > 0u) return;
    if (THREAD == 0u) some = 0u;
    BARRIER;
    uint mine = 0u;
    for (uint i = THREAD; i < n; i += 256u) mine |= LOAD(u32, parts, i);
    if (mine != 0u) some = 1u;
    BARRIER;
    if (THREAD == 0u) y AT(0u) = BYTE(some == 0u ? 1u : 0u);
}
