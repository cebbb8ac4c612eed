// The pairs that splat_digits counted, moved to where those of each digit begin, `starts` (16, blocks), in the order
// in which they stand: one pass of a stable radix sort. As there, a thread takes 16 neighbours, and the bins of a
// thread are the halves of words.
#include "splat.h"

SHARED uint bins[2048];
SHARED uint running[512];

RLX_FN void splat_move_body(PTR(b8) source, PTR(u32) total, PTR(u32) starts, PTR(b8) target, const uint pairs,
                            const uint blocks, const uint shift) {
    const uint kept = least(total AT(0), pairs), first = (GROUP * 256u + THREAD) * 16u;
    if (GROUP >= blocks || GROUP * 4096u >= kept) return;
    for (uint b = 0u; b < 8u; b++) bins[b * 256u + THREAD] = 0u;
    for (uint i = first; i < first + 16u && i < kept; i++) {
        const uvec2 pair = source AT(i);
        const uint digit = pair.x >> shift & 15u;
        bins[digit % 8u * 256u + THREAD] += 1u << (digit / 8u * 16u);
    }
    // What stands before each thread's pairs of a digit within the block, and before all of that digit: sums over all
    // words in their order.
    BARRIER;
    uint sum = 0u, from = 0u;
    for (uint t = 0u; t < 8u; t++) sum += bins[THREAD * 8u + t];
    running[THREAD] = sum;
    for (uint step = 1u; step < 256u; step *= 2u) {
        BARRIER;
        const uint before = THREAD >= step ? running[from + THREAD - step] : 0u;
        running[256u - from + THREAD] = running[from + THREAD] + before;
        from = 256u - from;
    }
    BARRIER;
    sum = THREAD > 0u ? running[from + THREAD - 1u] : 0u;
    for (uint t = 0u; t < 8u; t++) {
        const uint own = bins[THREAD * 8u + t];
        bins[THREAD * 8u + t] = sum;
        sum += own;
    }
    // Where a digit's pairs begin, less what stands before all of them within the block.
    BARRIER;
    if (THREAD < 16u) {
        const uint before = bins[THREAD % 8u * 256u] >> (THREAD / 8u * 16u) & 0xffffu;
        running[THREAD] = starts AT(THREAD * blocks + GROUP) - before;
    }
    BARRIER;
    for (uint i = first; i < first + 16u && i < kept; i++) {
        const uvec2 pair = source AT(i);
        const uint digit = pair.x >> shift & 15u, word = digit % 8u * 256u + THREAD, half_at = digit / 8u * 16u;
        const uint rank = bins[word] >> half_at & 0xffffu;
        bins[word] += 1u << half_at;
        const uint to = running[digit] + rank;
        if (to < kept) target AT(to) = pair;  // always, unless the numbers before were wrong
    }
}
