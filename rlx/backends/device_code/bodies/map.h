// Matrices of halves that tiles of 64 columns are brought of into panels (wgmma.h), by the copy engine of a multiprocessor
// (PTX ISA, cp.async.bulk.tensor): the map is made by the driver, zeros stand beyond the edges, and a barrier in shared
// memory counts the bytes that have come. A cluster is two workgroups.
#ifndef RLX_MAP_H
#define RLX_MAP_H
#ifdef RLX_ON_HOST
struct RlxMap {
    const unsigned short* data;
    uint rows, columns, high;
};
#define MAP RlxMap
#define MAP_IN const RlxMap&
// Brings the tile from (row, column) on into units[at ...], rows in panels.
static inline void rlx_bring(uint4* units, const RlxMap& map, const uint at, const uint row, const uint column) {
    for (uint r = 0; r < map.high; r++)
        for (uint c = 0; c < 64u; c++) {
            const bool inside = row + r < map.rows && column + c < map.columns;
            const uint to = ((at + r * 8u) * 8u) + ((c / 8u ^ r % 8u) * 8u) + c % 8u;
            ((unsigned short*)units)[to] =
                inside ? map.data[size_t(row + r) * map.columns + column + c] : (unsigned short)0;
        }
}
#else
struct __align__(64) RlxMap {
    rlx_u64 words[16];
};
#define MAP const __grid_constant__ RlxMap
#define MAP_IN const RlxMap&
RLX_FN uint rlx_cluster_rank() {
    uint rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// Waits for all threads of the cluster, which see each other's shared memory then.
RLX_FN void rlx_cluster_meet() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// Barriers, by their address in shared memory: of `count` arrivals (and the bytes that are expected) a phase.
RLX_FN void rlx_barrier_make(const uint barrier, const uint count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
RLX_FN void rlx_barriers_made() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
RLX_FN void rlx_barrier_expect(const uint barrier, const uint bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Waits until the phase of this parity is over.
RLX_FN void rlx_barrier_wait(const uint barrier, const uint parity) {
    asm volatile(
        "{\n.reg .pred p;\nAGAIN:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra OVER;\nbra AGAIN;\nOVER:\n}"
        ::"r"(barrier), "r"(parity)
        : "memory");
}
// Arrives at this barrier of workgroup `rank` of the cluster, which then may write what this warp has read. What it wrote
// itself is not released to the other workgroup: that would be a fence of the whole device.
RLX_FN void rlx_barrier_arrive(const uint barrier, const uint rank) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier), "r"(rank)
                 : "memory");
}
// Brings a tile into shared memory from `to` on; of the whole cluster, where it is for ALL.
RLX_FN void rlx_bring(const RlxMap& map, const uint to, const uint barrier, const uint row, const uint column,
                      const bool all) {
    if (all) {
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
            "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to), "l"(&map), "r"(column), "r"(row), "r"(barrier),
            "h"((unsigned short)3)
            : "memory");
    } else {
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(&map), "r"(column), "r"(row), "r"(barrier)
                     : "memory");
    }
}
#endif
#endif
