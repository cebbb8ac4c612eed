"""CpuBackend and CpuDevice: the processor this program runs on."""

from __future__ import annotations

import math
import os
import platform
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.backends.cpu.arena import (
    RECENT,
    RECENT_BYTES,
    Block,
    CpuArena,
    CpuBuffer,
    Foreign,
    Slabs,
    SmallBuffer,
)
from rlx.backends.cpu.forms import freed_bytes, give_back
from rlx.driver import Buffer, BuildOptions, DeviceArena, DeviceInfo, Limits, MemoryPlan
from rlx.driver.device import HOST, Borrowed, Bytes, Support, no_streams
from rlx.driver.memory.check_plan import check_nbytes
from rlx.driver.memory.pool import MAX_BUFFERS, BufferPool, kept_alive
from rlx.errors import DeviceUnavailable, OutOfDeviceMemory
from rlx.host.files import system_text
from rlx.host.locks import renewed
from rlx.ir import Graph, Node

if TYPE_CHECKING:
    from rlx.backends.cpu.call import CpuCall
    from rlx.backends.cpu.executable import CpuExecutable

_FEATURES = frozenset({"f64", "f16", "bf16", "i64", "i8"})
_UNASKED_BYTES = 1 << 20  # bytes that may be acquired before the system is asked again how much is free
_POOLED_BYTES = 1 << 14  # allocating less than this is as fast as the pool
_COPIED_BYTES = 1 << 16  # NumPy copies so many bytes in less time than the pool takes to find memory for them
_POOL_SHARE = 8  # the pool keeps at most an eighth of all memory for the next arena


class CpuBackend:
    """The NumPy backend: one device, which is always available."""

    name = "cpu"

    def __init__(self) -> None:
        self._lock = renewed(self, "_lock", threading.Lock)
        self._device: CpuDevice | None = None

    def probe(self) -> list[DeviceInfo]:
        return [
            DeviceInfo(
                backend="cpu",
                index=0,
                name=_cpu_name(),
                kind="cpu",
                memory_bytes=total_memory(),
                driver=f"NumPy {np.__version__}",
                features=_FEATURES,
                dlpack=HOST,
            )
        ]

    def open(self, index: int) -> CpuDevice:
        if index != 0:
            raise DeviceUnavailable(f'device "cpu:{index}": there is one CPU device, "cpu"')
        with self._lock:
            if self._device is None:
                self._device = CpuDevice(self.probe()[0])
            return self._device

    def opened(self, index: int) -> CpuDevice | None:
        return self._device

    def free_bytes(self, index: int) -> int:
        return free_memory()


class Done:
    """The event that marks the end of work: always complete, since calls return when their work is done."""

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        """Returns at once."""


class CpuDevice:
    """The processor as a device: memory is NumPy arrays, programs are lists of bound calls."""

    def __init__(self, info: DeviceInfo) -> None:
        self.info = info
        self.limits = Limits()
        self._pool: BufferPool[Block] = BufferPool(_forget, budget=info.memory_bytes // _POOL_SHARE)
        self._unasked = _UNASKED_BYTES  # bytes acquired since the system was asked how much is free
        self._slabs = Slabs()
        self._taken: dict[int, int] = {}  # bytes of the blocks in use, by the blocks' ids

    def __repr__(self) -> str:
        return f"CpuDevice({self.info.id}: {self.info.name})"

    def acquire(self, nbytes: int, clear: bool = True) -> CpuBuffer:
        return self._acquire(nbytes, clear, Block)

    def acquire_lasting(self, nbytes: int) -> CpuBuffer:
        """A zeroed buffer as from `acquire`, for contents that are read often and kept for long (`Slabs`)."""
        return self._acquire(nbytes, True, self._slabs.block if Slabs.takes(nbytes) else Block)

    def _acquire(self, nbytes: int, clear: bool, make: Callable[[int], Block]) -> CpuBuffer:
        nbytes = check_nbytes(nbytes, self.info.id)
        block = self._pool.take(nbytes) if nbytes >= _POOLED_BYTES and make is Block else None
        if block is None:
            # The system overcommits memory and kills a process that uses too much: refuse before that. Asking how much
            # is free takes as long as making a hundred small tensors, so small ones are added up before it is asked.
            self._unasked += nbytes
            free = 1 << 63
            if self._unasked > _UNASKED_BYTES:
                self._unasked = 0
                if nbytes > free_memory():
                    self._pool.trim()
                free = free_memory()
            if nbytes > free:
                raise OutOfDeviceMemory(
                    f"cpu: {nbytes:,} bytes asked for, {free:,} of {self.info.memory_bytes:,} are free"
                )
            try:
                block = make(nbytes)
            except MemoryError as error:
                raise OutOfDeviceMemory(
                    f"cpu: the system refused {nbytes:,} bytes ({free_memory():,} free): {error}"
                ) from None
        self._taken[id(block)] = block.nbytes
        return CpuBuffer(block, nbytes, self._leave, self._pool.sweep, clear)

    def fresh(self, nbytes: int) -> CpuBuffer:
        """A buffer with undefined contents, for results: a small one takes a third of `acquire`'s time."""
        if 0 < nbytes <= RECENT_BYTES:
            self._unasked += nbytes  # `acquire` asks for these too
            spare = RECENT.take(nbytes)
            return SmallBuffer(spare[0], self._taken, spare)
        if 0 < nbytes <= _COPIED_BYTES:
            self._unasked += nbytes
            return SmallBuffer(np.empty(nbytes, np.uint8), self._taken)
        return self._acquire(max(nbytes, 1), False, Block)

    def holding(self, data: Bytes) -> CpuBuffer:
        """A buffer with a copy of these bytes: for a few bytes, in a third of the time of `acquire` and a write."""
        nbytes = data.nbytes
        if 0 < nbytes <= _COPIED_BYTES:
            self._unasked += nbytes  # `acquire` asks for these too
            return SmallBuffer(data.copy(), self._taken)
        buffer = self.acquire(max(nbytes, 1), False)
        buffer.memory()[:nbytes] = data
        return buffer

    def foreign(self, address: int, nbytes: int, owner: object) -> CpuBuffer:
        """A buffer over host memory at `address` that lives as long as `owner`."""
        return CpuBuffer(Foreign(address, nbytes, owner), nbytes, _forget, self._pool.sweep, clear=False)

    def borrow(self, source: Any) -> Borrowed:
        view = np.from_dlpack(source)
        held = np.ascontiguousarray(view).reshape(view.shape)  # a rank of 0 becomes one of 1
        copied = view.size > 0 and not np.may_share_memory(view, held)  # empty arrays share nothing
        return Borrowed(held.ctypes.data, held.shape, held.dtype, held, copied)

    def lend(
        self,
        buffer: Buffer,
        offset: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        options: Mapping[str, Any],
    ) -> object:
        raw = buffer.view()
        assert raw is not None
        nbytes = math.prod(shape) * dtype.itemsize
        held = kept_alive(raw[offset : offset + nbytes], buffer.pin()).view(dtype).reshape(shape)
        return held.__dlpack__(**{k: v for k, v in options.items() if k != "stream"})

    def _leave(self, block: Block) -> None:
        """Takes back the memory of a buffer that is closed or dropped; runs in finalizers. Memory that the pool would
        not keep anyway does not wait for the pool's next call: NumPy frees it with the last view. A part of a shared
        allocation would wait there for all other parts."""
        self._taken.pop(id(block), None)
        if block.shared:
            give_back(block.bytes)
        elif _POOLED_BYTES <= block.nbytes <= self._pool.budget and self._pool.left < MAX_BUFFERS:
            self._pool.leave(block)

    def arena(self, plan: MemoryPlan, bound: Mapping[str, Buffer] | None = None) -> CpuArena:
        return CpuArena(plan, self, bound)

    def free_bytes(self) -> int:
        """The system's free bytes and those that the pool keeps."""
        return free_memory() + self._pool.nbytes

    def taken_bytes(self) -> int:
        return sum(tuple(self._taken.values())) - freed_bytes()

    def support(self, node: Node) -> Support:
        """Native, except for an op without a kernel that updates inputs in place: its NumPy definition would copy them,
        and it can be decomposed into simpler ops."""
        op = node.op
        copies = op.renews is not None and op.kernel is None and op.decompose is not None
        return "host" if copies else "native"

    def build(
        self, graph: Graph, plan: MemoryPlan, arena: DeviceArena, options: BuildOptions
    ) -> CpuExecutable:
        from rlx.backends.cpu.executable import (
            CpuExecutable,  # imported where it is used, not with the device
        )

        return CpuExecutable(self, graph, plan, arena, options)

    def build_call(
        self, graph: Graph, plan: MemoryPlan, bound: Mapping[str, Buffer], options: BuildOptions,
        segments: Sequence[str],
    ) -> CpuCall | str:  # fmt: skip
        """See Device."""
        from rlx.backends.cpu.call import build_call  # imported where it is used, not with the device

        return build_call(self, graph, plan, bound, options, segments)

    def follow(self, stream: int) -> None:
        """Refuses: the CPU has no streams."""
        raise no_streams(self.info.id)

    lead = follow

    def mark(self) -> Done:
        return Done()

    def synchronize(self) -> None:
        """Returns at once: calls return when their work is done."""

    def close(self) -> None:
        self._pool.close()


def _forget(memory: Block | Foreign) -> None:
    """Frees nothing itself: NumPy frees a block's memory with its last view, and the owner of foreign memory frees
    that."""


def _cpu_name() -> str:
    for line in (system_text("/proc/cpuinfo") or "").splitlines():
        if line.startswith(("model name", "Model\t", "Hardware")) and (name := line.partition(":")[2].strip()):
            return name  # some virtual machines leave it empty
    return platform.processor() or platform.machine() or "CPU"


def _meminfo(key: str) -> int | None:
    for line in (system_text("/proc/meminfo") or "").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup() -> tuple[int, int] | None:
    """A container's memory: (limit, bytes in use that the system cannot reclaim); None where there is no limit."""
    for folder, limit_name, used_name in (
        ("", "memory.max", "memory.current"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        names = (limit_name, used_name, "memory.stat")
        limit, used, stat = (system_text("/sys/fs/cgroup", folder, name) for name in names)
        if limit is not None and used is not None:
            if not limit.strip().isdecimal():
                return None
            return int(limit), int(used) - _file_cache(stat or "")
    return None


def _file_cache(stat: str) -> int:
    """Bytes of cached files, which the system reclaims when memory is needed."""
    for line in stat.splitlines():
        if line.startswith(("inactive_file ", "total_inactive_file ")):
            return int(line.split()[1])
    return 0


def total_memory() -> int:
    """Bytes of memory that this process may use: the machine's, or the container's limit where that is less."""
    machine = _meminfo("MemTotal")
    if machine is None and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ()):
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    group = _cgroup()
    known = [n for n in (machine, group[0] if group else None) if n is not None]
    return min(known, default=1 << 62)


def free_memory() -> int:
    """Bytes that can be allocated without swapping; `total_memory` where the system does not say."""
    available = _meminfo("MemAvailable")
    known = [] if available is None else [available]
    group = _cgroup()
    if group is not None:
        known.append(max(0, group[0] - group[1]))
    return min(known) if known else total_memory()
