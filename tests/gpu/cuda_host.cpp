// Runs the threads of a launch on the host, one group after the other: threads are coroutines that take turns at
// barriers, and within a warp at shuffles. `backwards` runs them in the opposite order: results that depend on it show a
// missing barrier.
#include "cuda_host.h"

#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>

enum { RLX_STACK = 1 << 16 };
uint3 threadIdx, blockIdx, gridDim;
static void (*rlx_run)();
static bool rlx_backwards;
static char* rlx_stacks;
static jmp_buf rlx_main, rlx_threads[RLX_THREADS];
static bool rlx_started[RLX_THREADS], rlx_done[RLX_THREADS];
static int rlx_meeting[RLX_THREADS];  // where each thread waits: a barrier's line, less than -1 for a shuffle
static float rlx_shuffled[RLX_THREADS];

// Goes on where `to` was left. Jumps between stacks cost no system call, unlike swapcontext.
__attribute__((noinline)) static void rlx_switch(jmp_buf& from, jmp_buf& to) {
    if (_setjmp(from) == 0) _longjmp(to, 1);
}

// Hands over to the other threads until all have come to the same place.
void rlx_meet(int place) {
    rlx_meeting[threadIdx.x] = place;
    rlx_switch(rlx_threads[threadIdx.x], rlx_main);
}

// The barrier that threads do not wait at: a file's name and a line of it, 0 for none.
static char rlx_left_out[256];
static int rlx_left_out_line;
extern "C" void rlx_leave_out(const char* file, int line) {
    std::strncpy(rlx_left_out, file, sizeof(rlx_left_out) - 1);
    rlx_left_out_line = line;
}

void rlx_barrier(const char* file, int line) {
    if (line == rlx_left_out_line) {
        const char* slash = std::strrchr(file, '/');
        if (std::strcmp(slash != nullptr ? slash + 1 : file, rlx_left_out) == 0) return;
    }
    rlx_meet(line);
}

static float rlx_shuffled_from(float v, uint thread) {
    rlx_shuffled[threadIdx.x] = v;
    rlx_meet(-2);
    const float got = rlx_shuffled[thread];
    rlx_meet(-3);
    return got;
}
float rlx_shuffle(float v, uint lane) { return rlx_shuffled_from(v, threadIdx.x ^ lane); }
float rlx_shuffle_from(float v, uint lane) { return rlx_shuffled_from(v, threadIdx.x / 32u * 32u + lane); }

uint rlx_ballot(bool yes) {
    rlx_shuffled[threadIdx.x] = yes ? 1.0f : 0.0f;
    rlx_meet(-2);
    uint word = 0;
    for (uint i = 0; i < 32; i++) word |= (rlx_shuffled[threadIdx.x / 32u * 32u + i] != 0.0f ? 1u : 0u) << i;
    rlx_meet(-3);
    return word;
}

// What a thread's stack holds: the body, once for each group.
static void rlx_thread() {
    for (;;) {
        rlx_run();
        rlx_meet(0);
    }
}

// Runs a thread up to where it waits next, or to its end.
__attribute__((noinline)) static void rlx_resume(int t) {
    threadIdx = uint3{uint(t), 0, 0};
    rlx_meeting[t] = 0;
    if (rlx_started[t]) return rlx_switch(rlx_main, rlx_threads[t]);
    rlx_started[t] = true;
    static ucontext_t entry;
    getcontext(&entry);
    entry.uc_stack.ss_sp = rlx_stacks + size_t(t) * RLX_STACK;
    entry.uc_stack.ss_size = RLX_STACK;
    makecontext(&entry, rlx_thread, 0);
    if (_setjmp(rlx_main) == 0) setcontext(&entry);
}

// Runs a warp up to its next barrier, shuffles among its own threads on the way. Returns the barrier's line, 0 when the
// threads are done, -1 where they part.
static int rlx_warp(int warp, int& left) {
    for (;;) {
        int met = 0, ended = 0;
        for (int i = 0; i < 32; i++) {
            const int t = warp * 32 + (rlx_backwards ? 31 - i : i);
            if (rlx_done[t]) {
                ended++;
                continue;
            }
            rlx_resume(t);
            if (rlx_meeting[t] == 0) {
                rlx_done[t] = true;
                left--;
                ended++;
                continue;
            }
            if (met != 0 && met != rlx_meeting[t]) return -1;
            met = rlx_meeting[t];
        }
        if (met != 0 && ended != 0) return -1;
        if (met >= 0) return met;
    }
}

int rlx_grid(void (*body)(), bool backwards, int threads, uint x, uint y, uint z) {
    rlx_run = body;
    rlx_backwards = backwards;
    if (rlx_stacks == nullptr) rlx_stacks = static_cast<char*>(std::malloc(size_t(RLX_THREADS) * RLX_STACK));
    gridDim = uint3{x, y, z};
    for (uint g = 0; g < x * y * z; g++) {
        blockIdx = uint3{g % x, g / x % y, g / x / y};
        for (int t = 0; t < threads; t++) rlx_done[t] = false;
        for (int left = threads; left > 0;) {
            int met = 0;
            bool parted = false;
            for (int w = 0; w < threads / 32 && !parted; w++) {
                const int here = rlx_warp(backwards ? threads / 32 - 1 - w : w, left);
                parted = here == -1 || (here != 0 && met != 0 && met != here);
                met = here != 0 ? here : met;
            }
            if (parted || (met != 0 && left < threads)) {
                for (int t = 0; t < threads; t++) rlx_started[t] = false;  // their stacks are left as they are
                return 1;
            }
        }
    }
    return 0;
}
