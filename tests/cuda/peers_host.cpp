// Runs the kernel of small sums on the CPU: a rank is THREADS · BLOCKS threads, which wait for each other between kernels
// as kernels of a stream do, and for no thread of another rank but by what comes into their inbox. The kernels of the
// ranks, each in a namespace of its own, stand in KERNELS, which also defines `kernel(rank, …)`.
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>
#define RLX_ON_HOST
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(x)
struct Index { unsigned x; };
static thread_local Index blockIdx, threadIdx, gridDim;
static thread_local std::barrier<>* of_block;
static thread_local bool arrived;
#define __syncthreads() (arrived = true, of_block->arrive_and_wait())
typedef unsigned int word;
typedef unsigned long long pair;
static void sometimes(int n) {
    if (rand() % n == 0) std::this_thread::yield();
}
// The halves go one after the other, in either order, and others run in between.
static void send(pair* at, pair low, pair high) {
    const bool first = rand() % 2;
    __atomic_store_n(at + first, first ? high : low, __ATOMIC_RELAXED);
    sometimes(7);
    __atomic_store_n(at + !first, first ? low : high, __ATOMIC_RELAXED);
}
static void look(const pair* at, pair& low, pair& high) {
    low = __atomic_load_n(at, __ATOMIC_RELAXED);
    high = __atomic_load_n(at + 1, __ATOMIC_RELAXED);
    if (low >> 32 != high >> 32) std::this_thread::yield();
    sometimes(16);
}
static word read(const word* at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
static void write(word* at, word value) { __atomic_store_n(at, value, __ATOMIC_RELAXED); }
static pair nanoseconds() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
static float as_float(word bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static word as_word(float value) {
    word bits;
    memcpy(&bits, &value, 4);
    return bits;
}
static float from_half(word) { return 0; }
static word to_half(float) { return 0; }

KERNELS

static pair* inboxes[RANKS_OF_TEST];
static word* states[RANKS_OF_TEST];
static word told[RANKS_OF_TEST];
static std::atomic<long> wrong{0};

static float brought(int rank, int sum, int i) { return (float)(sum * 31 % 100 + i * 7 + rank * 50); }

int main(int argc, char** argv) {
    const int sums = atoi(argv[1]), apart = argc > 2;  // with `apart` the last rank does not come to the last sum
    const int n = RANKS_OF_TEST, threads = THREADS_OF_TEST, blocks = BLOCKS_OF_TEST, each = EACH_OF_TEST;
    const int most = threads * blocks * each * 2;
    std::vector<std::vector<float>> x(n), y(n), rest(n), z(n);
    std::vector<std::barrier<>*> of_rank, of_blocks;
    for (int r = 0; r < n; r++) {
        inboxes[r] = (pair*)calloc(4 * blocks * n * each * threads, sizeof(pair));
        states[r] = (word*)calloc(blocks + 1, sizeof(word));
        for (int b = 0; b < blocks; b++) states[r][b] = 0xfffffff0u;  // the marks begin anew on the way
        x[r].resize(most);
        y[r].resize(most);
        rest[r].resize(most);
        z[r].resize(most);
        of_rank.push_back(new std::barrier<>(threads * blocks));
        for (int b = 0; b < blocks; b++) of_blocks.push_back(new std::barrier<>(threads));
    }
    std::vector<std::thread> all;
    for (int r = 0; r < n; r++) for (int b = 0; b < blocks; b++) for (int t = 0; t < threads; t++) all.emplace_back([=, &x, &y, &rest, &z] {
        of_block = of_blocks[r * blocks + b];
        unsigned seed = 1;
        for (int s = 0; s < sums; s++) {
            if (apart && s == sums - 1 && r == n - 1) return;
            seed = seed * 1664525u + 1013904223u;
            const int count = 1 + (seed >> 8) % most, units = (count + 1) / 2;
            const int grid = (units + threads - 1) / threads < blocks ? (units + threads - 1) / threads : blocks;
            if (b == 0 && t == 0) for (int i = 0; i < count; i++) x[r][i] = brought(r, s, i), rest[r][i] = (float)(i * 3 - s % 10);
            of_rank[r]->arrive_and_wait();
            if (b < grid) {
                blockIdx.x = b;
                threadIdx.x = t;
                gridDim.x = grid;
                arrived = false;
                kernel(r, x[r].data(), y[r].data(), rest[r].data(), z[r].data(), count, inboxes, states[r], &told[r], apart ? 200000000ull : 60000000000ull);
                if (!arrived) of_block->arrive_and_drop();  // on a GPU nobody waits for a thread that has ended
            }
            of_rank[r]->arrive_and_wait();
            if (b == 0 && t == 0) for (int i = 0; i < count; i++) {
                float want = 0;
                for (int q = 0; q < n; q++) want += brought(q, s, i);
                if (y[r][i] != want || (ADDED_OF_TEST && z[r][i] != want + rest[r][i])) wrong++;
            }
            of_rank[r]->arrive_and_wait();
        }
    });
    for (auto& thread : all) thread.join();
    printf("%d %u\n", (int)(apart ? wrong.load() > 0 : wrong.load()), told[0]);
}
