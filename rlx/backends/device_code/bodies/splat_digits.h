// How many of the first total[0] pairs (key, ·), at most `pairs`, have each digit, the four bits of the key from
// `shift` on: counts (16, blocks), a block of 4,096 pairs by each workgroup, 16 neighbours by a thread. Bins b and b +
// 8 of a thread are the halves of one word.
#include "splat.h"

SHARED uint bins[2048];
SHARED uint parts[256];

RLX_FN void splat_digits_body(PTR(b8) source, PTR(u32) total, PTR(u32) counts, const uint pairs, const uint blocks,
                              const uint shift) {
    if (GROUP >= blocks) return;
    const uint kept = least(total AT(0), pairs), first = (GROUP * 256u + THREAD) * 16u;
    for (uint b = 0u; b < 8u; b++) bins[b * 256u + THREAD] = 0u;
    for (uint i = first; i < first + 16u && i < kept; i++) {
        const uvec2 pair = source AT(i);
        const uint digit = pair.x >> shift & 15u;
        bins[digit % 8u * 256u + THREAD] += 1u << (digit / 8u * 16u);
    }
    BARRIER;
    uint sum = 0u;  // of 8 threads' words of one bin: 32 parts of each of 8 bins
    for (uint t = 0u; t < 8u; t++) sum += bins[THREAD * 8u + (t + THREAD) % 8u];
    parts[THREAD] = sum;
    BARRIER;
    if (THREAD >= 8u) return;
    sum = 0u;
    for (uint t = 0u; t < 32u; t++) sum += parts[THREAD * 32u + (t + THREAD) % 32u];
    counts AT(THREAD * blocks + GROUP) = sum & 0xffffu;
    counts AT((THREAD + 8u) * blocks + GROUP) = sum >> 16;
}
