"""Sums of small arrays over GPUs of one process, in one kernel, through memory of each that all others write.

Each rank writes its data into an inbox of every other rank, and adds up what arrives in its own inboxes in rank order.
The array that a residual stream adds to the sum is added in the same kernel. docs/design/ranks.md ("Small sums") says
why that is correct."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from rlx.backends.cuda.api import status_of
from rlx.backends.cuda.dependent_launch import launch_early
from rlx.backends.cuda.packing import PackedArgs
from rlx.backends.gpu.program.steps import Collective, Launch, Ref, SourceKernel, Step, TreeKernel
from rlx.ops.collectives.records import count_of
from rlx.ranks.collect import Group
from rlx.ranks.memory import Memory

if TYPE_CHECKING:
    from rlx.backends.cuda.device import CudaDevice

MOST = 1 << 19  # up to this many bytes per rank this is faster than NCCL
RANKS = 8
# The threads of a block, the most blocks of a launch (each a channel), and the most units of 8 bytes of a thread.
THREADS, BLOCKS, EACH = 256, 64, 4
_KINDS = {"f32": 0, "bf16": 1, "f16": 2}
_ENABLED = 704  # the status of a peer's access that was enabled before
_GIVEN_UP = 0xFFFFFFFF  # what the host writes
_SLACK = 2.0  # seconds that a kernel waits longer than the mesh's timeout, which the host keeps

TEXT = r"""
#ifdef RLX_ON_HOST
#define BEGIN
#endif
typedef unsigned int word;
typedef unsigned long long pair;
struct Inboxes { pair* of[RANKS]; };

#ifndef RLX_ON_HOST
// Both halves are accesses of 64 bits of their own, each of which is whole; what is between them has no order.
__device__ __forceinline__ void send(pair* at, pair low, pair high) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" :: "l"(at), "l"(low), "l"(high) : "memory");
}
__device__ __forceinline__ void look(const pair* at, pair& low, pair& high) {
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(at) : "memory");
}
__device__ __forceinline__ word read(const word* at) {
    word value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}
__device__ __forceinline__ void write(word* at, word value) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" :: "l"(at), "r"(value) : "memory");
}
__device__ __forceinline__ pair nanoseconds() {
    pair now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}
// As BEGIN in bodies/begin.h: the next kernel may take its place, and all that was launched before is done.
#if __CUDA_ARCH__ >= 900
#define BEGIN \
    asm volatile("griddepcontrol.launch_dependents;"); \
    asm volatile("griddepcontrol.wait;" ::: "memory")
#else
#define BEGIN
#endif
__device__ __forceinline__ float as_float(word bits) { return __uint_as_float(bits); }
__device__ __forceinline__ word as_word(float value) { return __float_as_uint(value); }
__device__ __forceinline__ float from_half(word bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((unsigned short)bits));
    return value;
}
__device__ __forceinline__ word to_half(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#endif

#if KIND == 0
typedef word element;
#else
typedef unsigned short element;
#endif
#define PER (8 / sizeof(element))

// 8 bytes of an array, with zeros behind its end.
__device__ __forceinline__ pair load(const element* x, pair unit, pair count) {
#if ALIGNED
    if ((unit + 1) * PER <= count) return ((const pair*)x)[unit];
#endif
    pair value = 0;
    for (word i = 0; i < PER; ++i)
        if (unit * PER + i < count) value |= (pair)x[unit * PER + i] << (64 / PER * i);
    return value;
}
__device__ __forceinline__ void store(element* y, pair unit, pair count, pair value) {
#if ALIGNED
    if ((unit + 1) * PER <= count) {
        ((pair*)y)[unit] = value;
        return;
    }
#endif
    for (word i = 0; i < PER; ++i)
        if (unit * PER + i < count) y[unit * PER + i] = (element)(value >> (64 / PER * i));
}

__device__ __forceinline__ float number(pair value, word i) {
#if KIND == 0
    return as_float((word)(value >> (32 * i)));
#elif KIND == 1
    return as_float((word)(value >> (16 * i)) << 16);
#else
    return from_half((word)(value >> (16 * i)) & 0xffff);
#endif
}
__device__ __forceinline__ pair bits(float sum) {
#if KIND == 0
    return as_word(sum);
#elif KIND == 1
    if (sum != sum) return 0x7fc0;
    const word exact = as_word(sum);
    return (exact + 0x7fff + (exact >> 16 & 1)) >> 16;
#else
    return to_half(sum);
#endif
}

// What a rank has sent with this mark; false where it does not come.
__device__ __forceinline__ bool taken(const pair* at, word mark, pair& value, word rank, word* dead, word* told,
                                      pair limit) {
    pair low, high, begin = 0;
    for (word tries = 1;; ++tries) {
        look(at, low, high);
        if ((word)(low >> 32) == mark && (word)(high >> 32) == mark) break;
        if (tries % 4096) continue;
        if (read(dead)) return false;
        const pair now = nanoseconds();
        if (begin == 0) begin = now;
        const bool late = now - begin > limit;
        if (late) write(told, rank + 1);
        if (late || read(told)) {
            write(dead, 1);
            return false;
        }
    }
    value = (low & 0xffffffff) | high << 32;
    return true;
}

// y is the sum; with ADDED, z is the rounded sum plus r. state: how many sums each channel has had, then whether this
// rank has given up.
extern "C" __global__ void __launch_bounds__(THREADS) sum_of_peers(
    const element* x, element* y,
#if ADDED
    const element* r, element* z,
#endif
    pair count, Inboxes inboxes, word* state, word* told, pair limit) {
    BEGIN;
    const word channel = blockIdx.x, thread = threadIdx.x;
    const word mark = state[channel] + 1;
    if (state[BLOCKS]) return;
    const pair units = (count + PER - 1) / PER, step = (pair)gridDim.x * THREADS;
    const pair half = (pair)(channel * 2 + mark % 2) * SIZE;
    pair own[EACH];
#if ADDED
    pair added[EACH];
#endif
    for (word i = 0; i < EACH; ++i) {
        const pair unit = (pair)channel * THREADS + thread + i * step;
        if (unit >= units) break;
        own[i] = load(x, unit, count);
#if ADDED
        added[i] = load(r, unit, count);
#endif
        const pair flag = (pair)mark << 32, low = (own[i] & 0xffffffff) | flag, high = own[i] >> 32 | flag;
        for (word after = 1; after < SIZE; ++after) {
            const word to = (RANK + after) % SIZE;
            send(inboxes.of[to] + 2 * (((half + RANK) * EACH + i) * THREADS + thread), low, high);
        }
    }
    for (word i = 0; i < EACH; ++i) {
        const pair unit = (pair)channel * THREADS + thread + i * step;
        if (unit >= units) break;
        float sums[PER];
        for (word from = 0; from < SIZE; ++from) {
            pair value = own[i];
            if (from != RANK && !taken(inboxes.of[RANK] + 2 * (((half + from) * EACH + i) * THREADS + thread), mark,
                                       value, from, state + BLOCKS, told, limit))
                return;
            for (word j = 0; j < PER; ++j) sums[j] = from == 0 ? number(value, j) : sums[j] + number(value, j);
        }
        pair sum = 0;
        for (word j = 0; j < PER; ++j) sum |= bits(sums[j]) << (64 / PER * j);
        store(y, unit, count, sum);
#if ADDED
        pair total = 0;
        for (word j = 0; j < PER; ++j) total |= bits(number(sum, j) + number(added[i], j)) << (64 / PER * j);
        store(z, unit, count, total);
#endif
    }
    __syncthreads();
    if (thread == 0) state[channel] = mark;
}
"""


class Peers:
    """The inboxes of the ranks of a group, as one of them uses them."""

    def __init__(self, device: CudaDevice, group: Group, inboxes: list[int]) -> None:
        self._device, self._place, self._inboxes = device, group.place, inboxes
        self._timeout = group.world.timeout
        self._ranks = group.ranks
        runtime = device.api.runtime
        self._state = device.acquire(4 * (BLOCKS + 1))
        self._told = int(runtime.hostAlloc(4, runtime.hostAllocPortable))  # the device knows it by the same address
        self._word = ctypes.c_uint32.from_address(self._told)
        self._word.value = 0

    @staticmethod
    def takes(step: Collective) -> bool:
        """Whether a step is a sum that is computed here: a small one whose whole result every rank gets."""
        (x,), nbytes, attrs = step.node.inputs, step.reads[0].nbytes, step.node.attrs
        whole = attrs.get("how") == "sum" and nbytes == step.writes[0].nbytes
        most = min(MOST // max(count_of(attrs) - 1, 1), BLOCKS * THREADS * EACH * 8)
        return whole and 0 < nbytes <= most and x.dtype.name in _KINDS

    def bound(self, step: Collective, address: Callable[[Ref], int]) -> Callable[..., None]:
        """A sum bound to addresses. As with a launch, the result is called with a stream and whether it may begin
        early."""
        device, nbytes = self._device, step.reads[0].nbytes
        arrays = [address(ref) for pair in zip(step.reads, step.writes, strict=True) for ref in pair]
        aligned = all(at % 8 == 0 for at in arrays)
        loaded = device.compiler.get(
            kernel_of(step.dtype.name, aligned, self._place, len(self._inboxes), added=len(arrays) == 4)
        )
        inboxes = (ctypes.c_uint64 * RANKS)(*self._inboxes)
        numbers = (*arrays, nbytes // step.dtype.itemsize)
        more = (self._state.address, self._told, int((self._timeout + _SLACK) * 1e9))
        values = (*map(ctypes.c_uint64, numbers), inboxes, *map(ctypes.c_uint64, more))
        packed = PackedArgs(values, (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values)))
        blocks = min(BLOCKS, -(-nbytes // (8 * THREADS)))
        launch = device.api.driver.launchKernel

        def enqueue(stream: int, early: bool = False) -> None:
            if not early:
                launch(loaded.function, blocks, 1, 1, THREADS, 1, 1, 0, stream, packed.pointer, 0)
                return
            status = launch_early(loaded.function, (blocks, 1, 1), (THREADS, 1, 1), 0, stream, packed.pointer)
            if status:
                raise device.api.errors[-1](status)

        return enqueue

    @property
    def failure(self) -> str:
        """Which rank a kernel gave up waiting for, or nothing."""
        value = self._word.value
        if value in (0, _GIVEN_UP):
            return ""
        return f"rank {self._ranks[value - 1]} did not come to a sum within {self._timeout:g} seconds"

    def abort(self) -> None:
        """Ends the kernels that wait."""
        self._word.value = _GIVEN_UP


def with_addend(step: Collective, after: Step) -> Collective | None:
    """A sum and the launch after it as one step, if that launch adds another array of the same dtype to the sum; else
    None."""
    kernel = after.kernel if isinstance(after, Launch) else None
    if not isinstance(kernel, TreeKernel) or len(step.reads) != 1 or len(kernel.trees) != 1 or kernel.batched:
        return None
    (tree,), operands = kernel.trees, (*kernel.inputs, *kernel.outputs)
    adds = tree.prim == "add" and {a.value for a in tree.args if a.prim == "arg"} == {0, 1}
    if not adds or any(o.access != "flat" or o.storage != step.dtype for o in operands):
        return None
    others = [ref for ref in after.reads if ref != step.writes[0]]
    if len(after.reads) != 2 or len(others) != 1:
        return None
    if not others[0].nbytes == after.writes[0].nbytes == step.reads[0].nbytes:
        return None
    return replace(step, reads=(*step.reads, *others), writes=(*step.writes, *after.writes))


def kernel_of(dtype: str, aligned: bool, rank: int, size: int, added: bool = False) -> SourceKernel:
    """The kernel of rank `rank` of `size`. `aligned`: whether arrays begin at multiples of 8 bytes. `added`: whether it
    also adds an array to the sum."""
    defines = {"RANKS": RANKS, "THREADS": THREADS, "BLOCKS": BLOCKS, "EACH": EACH, "KIND": _KINDS[dtype],
               "ALIGNED": int(aligned), "RANK": rank, "SIZE": size, "ADDED": int(added)}  # fmt: skip
    return SourceKernel("sum_of_peers", "".join(f"#define {n} {v}\n" for n, v in defines.items()) + TEXT, None, THREADS)


def connected(device: CudaDevice, group: Group) -> Peers | None:
    """The inboxes of a group of threads whose GPUs reach each other's memory; None for others, on all ranks alike.

    An inbox is never freed before the process ends, since another rank may write into it."""
    size = len(group.ranks)
    if not isinstance(group.world, Memory) or not 1 < size <= RANKS:
        return None
    device.enter()
    runtime, own = device.api.runtime, device.info.index
    indices = [int(i) for i in group.all_gather(np.array([own]))]
    others = [i for i in indices if i != own]
    reached = all(runtime.deviceCanAccessPeer(own, other) for other in others)
    inbox = 0
    if reached:
        with device.doing("reaching the memory of other GPUs"):
            for other in others:
                try:
                    runtime.deviceEnablePeerAccess(other)
                except device.api.errors as error:
                    if status_of(error) != _ENABLED:
                        raise
            nbytes = 2 * BLOCKS * size * EACH * THREADS * 16
            inbox = int(runtime.malloc(nbytes))
            runtime.memsetAsync(inbox, 0, nbytes, device.stream)
            runtime.streamSynchronize(device.stream)
    inboxes = [int(address) for address in group.all_gather(np.array([inbox], np.int64))]
    if not all(inboxes):
        return None
    result = Peers(device, group, inboxes)
    group.meet(lambda: "the inboxes of small sums")
    return result
