// Where each of `blocks` workgroups of splat_count begins, by one workgroup; and the total. Sums stay at 2^31 - 1.
#include "splat.h"

SHARED uint running[512];  // the sums of a step of the scan, and those of the step before

RLX_FN void splat_scan_body(PTR(u32) sums, PTR(u32) starts, PTR(u32) total, const uint blocks) {
    if (GROUP > 0u) return;
    uint carry = 0u;
    for (uint first = 0u; first < blocks; first += 256u) {
        const uint at = first + THREAD;
        uint from = 0u;
        BARRIER;
        running[THREAD] = at < blocks ? sums AT(at) : 0u;
        for (uint step = 1u; step < 256u; step *= 2u) {
            BARRIER;
            const uint before = THREAD >= step ? running[from + THREAD - step] : 0u;
            running[256u - from + THREAD] = plus(running[from + THREAD], before);
            from = 256u - from;
        }
        BARRIER;
        if (at < blocks) starts AT(at) = plus(carry, THREAD > 0u ? running[from + THREAD - 1u] : 0u);
        carry = plus(carry, running[from + 255u]);
    }
    if (THREAD == 0u) total AT(0) = carry;
}
