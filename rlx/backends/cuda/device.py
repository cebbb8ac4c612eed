"""CudaBackend and CudaDevice: discovery, with the reason where there is no device, and the opened device."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.backends.cuda.api import (
    Api,
    check_process,
    device_count,
    is_fatal,
    load,
    translate,
    version_text,
)
from rlx.backends.cuda.blas import WORKSPACE_BYTES, Blas
from rlx.backends.cuda.blas_lt import Known, adds_bias, is_promised, product_key, promising
from rlx.backends.cuda.compiler import Compiler
from rlx.backends.cuda.dependent_launch import may_begin_early
from rlx.backends.cuda.imported import ImportedMemory, gpu_uuid
from rlx.backends.cuda.libraries import load_library
from rlx.backends.cuda.management import free_bytes
from rlx.backends.cuda.memory import SPARE_BYTES, CudaArena, CudaBuffer, Foreign, Memory, Staging, granules
from rlx.backends.cuda.nvrtc import nvrtc
from rlx.backends.cuda.recorder import Recorded, record
from rlx.backends.cuda.start import drop_context, make_context
from rlx.backends.cuda.target import cuda_target
from rlx.backends.gpu import PROGRAMS
from rlx.backends.gpu.program.steps import Gemm, Ref, Step
from rlx.backends.gpu.program.target import UNITS
from rlx.driver import (
    Buffer,
    BuildOptions,
    Call,
    DeviceArena,
    DeviceInfo,
    Executable,
    Limits,
    MemoryPlan,
)
from rlx.driver.closing import Resources, close_each
from rlx.driver.device import CUDA, Borrowed, Support
from rlx.driver.memory.check_plan import check_nbytes
from rlx.driver.memory.pool import DEFAULT_BUDGET, BufferPool
from rlx.dtypes import f32
from rlx.errors import DeviceLost, DeviceUnavailable, OutOfDeviceMemory, RankLost, RlxError
from rlx.host.background import aside, importing
from rlx.ir import Graph, Node

if TYPE_CHECKING:
    from rlx.backends.cuda.copies import Copies
    from rlx.backends.cuda.nccl import Collectives
    from rlx.backends.gpu.program.call import Enqueued

# The handles of the legacy and the per-thread default stream; work on the first waits for the second.
LEGACY = frozenset({1, 2})
_HIGHEST = -100  # a stream priority; CUDA clamps it to the highest that the device has
NOT_READY = 600  # cudaErrorNotReady: the answer of a query while work is under way
MIN_CAPABILITY = 70  # Volta: independent thread scheduling, and the first with tensor cores
_FEATURES = frozenset(
    {
        "16bit_storage",
        "8bit_storage",
        "f16",
        "bf16",
        "i8",
        "i64",
        "f64",
        "subgroup",
        "tensorcore",
        "denorm_preserve",
    }
)


class CudaBackend:
    """NVIDIA GPUs through CuPy. Importing it loads nothing; `probe` and `open` load CuPy."""

    name = "cuda"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened: dict[int, CudaDevice] = {}
        self._infos: dict[int, DeviceInfo] = {}  # asking the driver takes a millisecond

    def probe(self) -> list[DeviceInfo]:
        """All CUDA devices. Raises: DeviceUnavailable with the reason when CUDA cannot be used."""
        api = load()
        return [self._info(api, index) for index in range(device_count(api))]

    def _info(self, api: Api, index: int) -> DeviceInfo:
        if index not in self._infos:
            self._infos[index] = _describe(api, index)
        return self._infos[index]

    def open(self, index: int) -> CudaDevice:
        """The device, opened once a process, and again once it was closed or its work was given up for a lost rank.
        Raises: DeviceUnavailable."""
        api = load()  # before the lock: it raises after a fork, where the lock may stay held by a lost thread
        with self._lock:
            result = self._opened.get(index)
            if result is not None and result.gave_up:
                result.close()
            if result is None or result.closed:
                count = device_count(api)
                if not 0 <= index < count:
                    there = ", ".join(f"cuda:{i}" for i in range(count))
                    raise DeviceUnavailable(f"cuda:{index}: there is no such device; there are {there}")
                result = self._opened[index] = CudaDevice(api, self._info(api, index))
            return result

    def opened(self, index: int) -> CudaDevice | None:
        device = self._opened.get(index)
        return device if device is not None and device.usable else None

    def free_bytes(self, index: int) -> int | None:
        info = self._infos.get(index)
        return None if info is None else free_bytes(info.uuid)


def _describe(api: Api, index: int) -> DeviceInfo:
    try:
        props = api.runtime.getDeviceProperties(index)
        driver = version_text(int(api.runtime.driverGetVersion()))
    except api.errors as error:
        raise translate(error, f"cuda:{index}", "asking what the device is") from error
    name = props["name"]
    return DeviceInfo(
        backend="cuda",
        index=index,
        name=name.decode() if isinstance(name, bytes) else str(name),
        kind="integrated" if props.get("integrated") else "discrete",
        dlpack=CUDA,
        memory_bytes=int(props["totalGlobalMem"]),
        driver=f"CUDA {driver}",
        uuid=gpu_uuid(index),
        # mma.sync for bf16, and the asynchronous copies that the kernels need besides mma.sync for f16, came with 8.0.
        features=_FEATURES
        | ({"coopmat", "bf16_coopmat"} if int(props["major"]) >= 8 else frozenset())
        | ({"wgmma"} if int(props["major"]) == 9 else frozenset()),
    )


class CudaDevice:
    """One GPU: a stream on which all work runs in order, a memory pool, kernels and a cuBLAS handle.

    Any thread may call. In a forked child every call raises DeviceUnavailable; after a fatal error, DeviceLost.
    """

    def __init__(self, api: Api, info: DeviceInfo) -> None:
        self.api = api
        self.info = info
        self.pid = os.getpid()
        self.closed = False
        self.lock = threading.RLock()
        # Memory and graphs whose owners were garbage-collected; freed at the next `acquire` or `record`.
        self.orphans: deque[Memory | int] = deque()
        # Released small memory by size, from which calls take memory for their results without going through the pool.
        self.spares: dict[int, deque[Memory]] = {}
        self._allocated: dict[int, Memory] = {}  # all allocations by address, free ones in the pool included
        self._graphs: set[int] = set()
        # Memory of other libraries that was closed, each with an event after its last use.
        self._guests: deque[tuple[int, Memory]] = deque()
        self._events: list[int] = []  # events to use again
        self._lost = ""
        self._why_lost: type[RlxError] = DeviceLost
        self._errors = api.errors
        self._set_device = api.runtime.setDevice
        self._blas: Blas | None = None
        self.bias_known: Known = {}  # cuBLASLt's answers, for the handle of `blas`
        self._workspace: Memory | None = None
        self._compiler: Compiler | None = None
        self._compiling = threading.Lock()  # apart from `lock`, which is held while a library starts
        try:
            props = api.runtime.getDeviceProperties(info.index)
        except api.errors as error:
            raise self.failed(error, "asking what the device is") from error
        self.capability = int(props["major"]) * 10 + int(props["minor"])
        if self.capability < MIN_CAPABILITY:
            raise DeviceUnavailable(
                f"{info.id}: {info.name} has compute capability {self.capability / 10}, rlx needs "
                f"{MIN_CAPABILITY / 10}"
            )
        self.early = may_begin_early(self.capability, info.driver)
        self.limits = Limits(
            max_alloc_bytes=info.memory_bytes,
            max_groups=_triple(props["maxGridSize"]),
            max_group_threads=int(props["maxThreadsPerBlock"]),
            shared_bytes=int(props["sharedMemPerBlock"]),
            subgroup=int(props["warpSize"]),
            dynamic_shared_bytes=int(props.get("sharedMemPerBlockOptin", 0)),
        )
        units = int(props.get("multiProcessorCount", UNITS))
        self._collectives: Collectives | None = None
        self._copies: Copies | None = None
        self.target = cuda_target(info.features, self.limits, units, self.adds_bias, collects=self._collects)
        self._held = Resources()  # resources that `close` releases in reverse order
        with importing((*PROGRAMS, "rlx.backends.gpu.elementwise.emit_cuda")):
            created = make_context(info.index)
        with self._held.unwound(), self.doing("opening the device"):
            runtime = api.runtime
            try:
                runtime.memGetInfo()  # the runtime uses the context from here on
            finally:
                if created:
                    drop_context(info.index)
            self.stream = self._new_stream()
            self.capture_streams = (self._new_stream(), self._new_stream())
            self.aside_stream = self._new_stream(_HIGHEST)  # other ranks wait for what runs there
            self.fork_event = int(api.runtime.eventCreateWithFlags(api.runtime.eventDisableTiming))
            self._held.callback(api.runtime.eventDestroy, self.fork_event)
            self.staging = Staging(api, self.stream)
            self._held.callback(self.staging.close)
            self._pool: BufferPool[Memory] = BufferPool(
                self._free, budget=max(DEFAULT_BUDGET, info.memory_bytes // 16)
            )
            self._held.callback(self._end_collectives)  # after the graphs, which are freed next
            self._held.callback(self._free_all)

    def __repr__(self) -> str:
        return f"CudaDevice({self.info.id}: {self.info.name})"

    def _new_stream(self, priority: int = 0) -> int:
        runtime = self.api.runtime
        stream = int(runtime.streamCreateWithPriority(runtime.streamNonBlocking, priority))
        self._held.callback(runtime.streamDestroy, stream)
        return stream

    # -- checks and typed errors around every call

    def enter(self) -> None:
        """Makes the device current in this thread. Raises: DeviceUnavailable in a forked child, DeviceLost."""
        if os.getpid() != self.pid:  # checked first: building the device's name would take longer than all the rest
            check_process(self.pid, self.info.id)
        if self._lost:
            raise self._why_lost(self._lost)
        if self.closed:
            raise DeviceUnavailable(f"{self.info.id} is closed; open it again")
        try:
            self._set_device(self.info.index)
        except self._errors as error:
            raise self.failed(error, "making the device current") from error

    @property
    def usable(self) -> bool:
        """Whether `enter` could succeed: the device is open in this process, and not lost."""
        return not self.closed and not self._lost and os.getpid() == self.pid

    def doing(self, what: str) -> _Doing:
        """A context for calls on the device: CuPy's exceptions become typed errors that say `what` failed."""
        return _Doing(self, what)

    def failed(self, error: BaseException, doing: str) -> RlxError:
        """The typed error for one of CuPy's; a fatal one marks the device as lost for every session on it."""
        typed = translate(error, self.info.id, doing)
        if is_fatal(error):
            self._lost = str(typed)
        return typed

    def lose_ranks(self, text: str) -> None:
        """Notes that work on the device was aborted because another rank is lost: its results are invalid, and so are
        all values of this device. The GPU itself can be opened again."""
        self._why_lost = RankLost
        self._lost = f"{text}; what was on {self.info.id} is void: make sessions, arrays and functions there anew"

    @property
    def gave_up(self) -> bool:
        """Whether work was aborted because another rank is lost."""
        return bool(self._lost) and self._why_lost is RankLost

    def waited(self) -> None:
        """To be called after a wait for the device, since a wait also ends if the work was aborted.

        Raises: RankLost if it was: the results are invalid then."""
        if self._collectives is not None:
            self._collectives.check()
            self.enter()

    # -- memory

    def acquire(self, nbytes: int, clear: bool = True) -> CudaBuffer:
        """Memory from the pool, zero-filled if `clear`. Raises: OutOfDeviceMemory."""
        # From here on only the buffer returns its memory: memory returned twice would be given to two buffers.
        buffer = CudaBuffer(self, self.take(nbytes), nbytes)
        if clear:
            undo = Resources()
            undo.callback(buffer.close)
            with undo.unwound(), self.doing("clearing memory"):
                self.api.runtime.memsetAsync(buffer.address, 0, max(nbytes, 1), self.stream)
        return buffer

    def foreign(self, address: int, nbytes: int, owner: object) -> CudaBuffer:
        """A buffer over memory of another library. Requires: the device's stream waits for the work that writes it."""
        self.enter()
        self.sweep()  # a loop may borrow without ever acquiring memory
        return CudaBuffer(self, Foreign(address, nbytes, owner), nbytes)

    def copied(self, source: Buffer, offset: int, nbytes: int) -> Buffer:
        """A copy of bytes of one of the device's buffers in new memory, ordered before later work."""
        if self._copies is None:
            from rlx.backends.cuda.copies import Copies

            self._copies = Copies(self)
        copy = self._copies.of(source.address + offset, nbytes)
        if copy is None:
            copy = self.acquire(nbytes, clear=False)
            copy.copy_from(source, offset, 0, nbytes)
        return copy

    def borrow(self, source: Any) -> Borrowed:
        from rlx.backends.cuda.exchange import borrow

        self.enter()
        return borrow(self, source)

    def lend(
        self,
        buffer: Buffer,
        offset: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        options: Mapping[str, Any],
    ) -> object:
        from rlx.backends.cuda.exchange import lend

        self.enter()
        assert isinstance(buffer, CudaBuffer)
        return lend(self, buffer, offset, shape, dtype, options)

    def import_memory(self, handle: int, nbytes: int) -> ImportedMemory:
        """See Importing."""
        try:
            self.enter()
        except RlxError:
            os.close(handle)
            raise
        return ImportedMemory(self.info.id, handle, nbytes)

    def take(self, nbytes: int) -> Memory:
        """Memory that is not cleared; `give` takes it back. Raises: OutOfDeviceMemory."""
        self.enter()
        return self.take_whole(granules(check_nbytes(nbytes, self.info.id)))

    def take_whole(self, wanted: int, exact: bool = False) -> Memory:
        """As `take`, for a size that `granules` gave; `exact`: not a larger one, for whose size no spares are kept.
        Requires: `enter` was called."""
        memory = self._again(wanted)
        if memory is not None:
            return memory
        self.sweep()
        memory = self._pool.take(wanted)
        if memory is not None:
            if memory.nbytes == wanted or not exact:
                return memory
            self._pool.give(memory)
        for last in (False, True):
            try:
                memory = Memory(int(self.api.runtime.malloc(wanted)), wanted)
                self._allocated[memory.address] = memory
                return memory
            except self._errors as error:
                typed = self.failed(error, f"acquiring {wanted:,} bytes")
                if not isinstance(typed, OutOfDeviceMemory):
                    raise typed from error
                if last or not self._give_spares() + self._pool.trim():
                    raise OutOfDeviceMemory(
                        f"{self.info.id}: {wanted:,} bytes are needed, {self.free_bytes():,} of "
                        f"{self.info.memory_bytes:,} are free; close what is not used, or take a smaller batch"
                    ) from error
        raise AssertionError("unreachable")

    def spares_of(self, nbytes: int) -> deque[Memory] | None:
        """The list of spares into which released memory of this size (from `granules`) is put; None for large
        memory."""
        return self.spares.setdefault(nbytes, deque()) if nbytes <= SPARE_BYTES else None

    def _give_spares(self) -> int:
        """Gives the spares back to the pool. Returns: their bytes."""
        given = 0
        for spares in tuple(self.spares.values()):
            with suppress(IndexError):
                while True:
                    memory = spares.pop()
                    given += memory.nbytes
                    self._pool.give(memory)
        return given

    @property
    def _waiting_bytes(self) -> int:
        """The unused bytes in the pool and in the spares."""
        return self._pool.nbytes + sum(n * len(spares) for n, spares in tuple(self.spares.items()))

    def _again(self, nbytes: int) -> Memory | None:
        """The memory released last, if it has this size: a loop that drops one result for each it makes then need not
        go through the pool."""
        try:
            last = self.orphans.pop()
        except IndexError:
            return None
        if type(last) is Memory and last.nbytes == nbytes and not last.lent:
            return last
        self.orphans.append(last)
        return None

    def give(self, memory: Memory) -> None:
        """Returns memory to the pool. Work under way may still use it: its next user comes later on the same stream.
        Another library knows nothing of that stream: its memory goes back once all work enqueued so far is done."""
        if self.closed or self._lost:
            return
        if memory.lent:
            self._await_borrowers(memory)
        if isinstance(memory, Foreign):
            with self.doing("handing memory back"):
                event = self.event()
                self.api.runtime.eventRecord(event, self.stream)
                self._guests.append((event, memory))
        else:
            self._pool.give(memory)

    def _await_borrowers(self, memory: Memory) -> None:
        """Orders later work of this device after that of other libraries which borrowed the memory and have released
        it.

        For the legacy default stream an event does that. Any other stream may no longer exist, so the host waits for
        all work on the device."""
        streams, memory.lent = memory.lent, frozenset()
        runtime = self.api.runtime
        with self.doing("waiting for those who borrowed memory"):
            if streams - LEGACY:
                runtime.deviceSynchronize()
                return
            event = self.event()
            runtime.eventRecord(event, 0)
            runtime.streamWaitEvent(self.stream, event)
            self.free_event(event)

    def event(self) -> int:
        """An event without timing, a new one or one that `free_event` took back."""
        try:
            return self._events.pop()
        except IndexError:
            event = int(self.api.runtime.eventCreateWithFlags(self.api.runtime.eventDisableTiming))
            self._held.callback(self.api.runtime.eventDestroy, event)
            return event

    def free_event(self, event: int) -> None:
        """Takes back an event that nothing waits for any more. Finalizers may call it."""
        self._events.append(event)

    def _see_guests_off(self) -> None:
        """Releases other libraries' memory that no running work uses any more."""
        while self._guests:
            try:
                event, memory = self._guests.popleft()
            except IndexError:  # another thread took it
                return
            with self.doing("asking whether work is done"):
                if self.api.runtime.eventQuery(event) != 0:
                    self._guests.appendleft((event, memory))
                    return
            self.free_event(event)

    def free_bytes(self) -> int:
        """Bytes that could still be acquired: those free on the device and those in the pool."""
        self.enter()  # CUDA answers for the thread's current device
        with self.doing("asking for free memory"):
            return int(self.api.runtime.memGetInfo()[0]) + self._waiting_bytes

    def taken_bytes(self) -> int:
        if not self.usable:
            return 0
        self.enter()
        self.sweep()
        return sum(memory.nbytes for memory in tuple(self._allocated.values())) - self._waiting_bytes

    def sweep(self) -> None:
        """Frees the memory and graphs of owners that were garbage-collected."""
        self._adopt_orphans()
        self._see_guests_off()

    def _adopt_orphans(self) -> None:
        while self.orphans:
            try:
                orphan = self.orphans.popleft()
            except IndexError:  # another thread took it
                return
            try:
                if isinstance(orphan, Memory):
                    self.give(orphan)
                else:
                    self.destroy_graph(orphan)
            except BaseException:
                self.orphans.append(orphan)
                raise

    def _free(self, memory: Memory) -> None:
        try:
            with self.doing("freeing memory"):
                self._forget(memory)
        except BaseException:
            if memory.address in self._allocated:
                self.orphans.append(memory)
            raise

    def _forget(self, memory: Memory) -> None:
        if self._allocated.pop(memory.address, None) is not None:
            self.api.runtime.free(memory.address)

    # -- programs

    @property
    def kernels(self) -> Compiler:
        """The compiled kernels, which saved programs hold too."""
        return self.compiler

    @property
    def compiler(self) -> Compiler:
        self.enter()
        with self._compiling:
            if self._compiler is None:
                self._compiler = Compiler(self.api, self.capability, self.info.driver)
                self._held.callback(self._compiler.close)
            return self._compiler

    @property
    def blas(self) -> Blas:
        """The cuBLAS handle, made on first use. Requires: `lock` held while it is used."""
        self.enter()
        with self.lock:
            if self._blas is None:
                if self._workspace is None:
                    self._workspace = self.take(WORKSPACE_BYTES)
                self._blas = Blas(self.api.major, self._workspace.address)
                self._held.callback(self._blas.close)
            return self._blas

    def arena(self, plan: MemoryPlan, bound: Mapping[str, Buffer] | None = None) -> CudaArena:
        """An arena for the plan, zero-filled; `bound` are the segments that it takes from stores."""
        return CudaArena(plan, self, bound)

    def support(self, node: Node) -> Support:
        """Whether the node runs natively here or as a host step."""
        from rlx.backends.gpu.program.executable import support

        return support(self, node)

    def build(self, graph: Graph, plan: MemoryPlan, arena: DeviceArena, options: BuildOptions) -> Executable:
        """Lowers a legalized graph over a plan's slots and records it."""
        from rlx.backends.gpu.program.executable import build

        self.enter()
        return build(self, graph, plan, arena, options)

    def build_call(
        self, graph: Graph, plan: MemoryPlan, bound: Mapping[str, Buffer], options: BuildOptions,
        segments: Sequence[str],
    ) -> Call | str:  # fmt: skip
        """See Device."""
        from rlx.backends.gpu.program.call import build_call

        self.enter()
        return build_call(self, graph, plan, bound, options, segments)

    def bind(self, steps: Sequence[Step], arena: DeviceArena | None, segments: Sequence[str]) -> Enqueued | str:
        """See Enqueues; without an arena all memory is that of the segments."""
        from rlx.backends.cuda.call import bind

        return bind(self, steps, arena, segments)

    def adds_bias(self, step: Gemm) -> bool:
        """Whether cuBLASLt can add the bias in the GEMM's epilogue; otherwise a kernel adds it afterwards."""
        if is_promised(step):
            return True
        with self.lock, self.doing("asking cuBLASLt for a way"):
            blas = self.blas
            return adds_bias(load_library("cublasLt", blas.major), blas.handle, step, self.bias_known)

    @property
    def collectives(self) -> Collectives:
        """The collectives with other devices; created on first use, as few programs need them."""
        with self.lock:
            if self._collectives is None:
                from rlx.backends.cuda.nccl import Collectives

                self._collectives = Collectives(self)
            return self._collectives

    def _end_collectives(self) -> None:
        if self._collectives is not None:
            self._collectives.close()

    def _collects(self, node: Node) -> bool:
        return self.collectives.usable(node)

    def products(self, steps: Iterable[Step]) -> list[tuple[int | str, ...]]:
        """The keys (for `promising`) of those products among the steps whose bias cuBLASLt adds."""
        return list(dict.fromkeys(product_key(s) for s in steps if isinstance(s, Gemm) and s.bias is not None))

    promising = staticmethod(promising)

    def warm_up(self) -> None:
        """Asks cuBLASLt about a small product, since its first answer in a process takes a tenth of a second, and loads
        NVRTC meanwhile. Run it in a thread, while other threads do work that needs no device."""
        compiler = aside(partial(nvrtc, self.api.major))
        a, b, c, bias = (Ref("none", 0, 4 * n) for n in (1 << 12, 1 << 12, 1 << 12, 1 << 6))
        try:
            self.adds_bias(Gemm(a, b, c, 64, 64, 64, f32, f32, f32, False, False, 1, 0, 0, 0, "f32", "", bias))
        finally:
            compiler()

    def record(self, steps: Sequence[Step], arena: DeviceArena, timings: bool = False) -> Recorded:
        """Captures steps into one CUDA graph over an arena's memory. With `timings`, a run launches the steps one by
        one between events, not as a graph."""
        return record(self, steps, arena, timings)

    def keep_graph(self, handle: int) -> None:
        """Registers an instantiated graph, which is destroyed with the device at the latest."""
        self._graphs.add(handle)

    def destroy_graph(self, handle: int) -> None:
        """Destroys an instantiated graph once its runs under way are complete."""
        if self.closed or self._lost or handle not in self._graphs:
            return
        with self.doing("freeing a recorded run"):
            self._graphs.discard(handle)
            try:
                self.api.runtime.streamSynchronize(self.stream)
            finally:  # safe even if the wait failed: the driver keeps the resources of a run under way
                self.api.runtime.graphExecDestroy(handle)

    def settle(self) -> None:
        """Returns at once: the host addresses no memory of the device, and its copies are in stream order."""

    def mark(self) -> EventMark:
        """A mark behind all work enqueued so far: an event."""
        with self.doing("marking enqueued work"):
            event = self.event()
            self.api.runtime.eventRecord(event, self.stream)
            return EventMark(self, event)

    def follow(self, stream: int) -> None:
        """Lets all later work of the device wait for what is on the user's stream now."""
        self._order(stream, self.stream)

    def lead(self, stream: int) -> None:
        """Lets later work on the user's stream wait for all work of the device enqueued so far."""
        self._order(self.stream, stream)

    def _order(self, first: int, second: int) -> None:
        runtime = self.api.runtime
        with self.doing("ordering streams"):
            event = self.event()
            runtime.eventRecord(event, first)
            runtime.streamWaitEvent(second, event)
            self.free_event(event)  # the wait is for this record, also where the event is recorded again

    def synchronize(self) -> None:
        """Waits for everything under way on the device's stream."""
        with self.doing("waiting for the device"):
            self.api.runtime.streamSynchronize(self.stream)
            self.waited()

    def close(self) -> None:
        """Frees everything. Buffers and recordings of this device are unusable afterwards. Idempotent."""
        if self.closed or os.getpid() != self.pid:
            return
        with self.lock:
            if self.gave_up:  # the context is fine, and what was aborted ends
                self._set_device(self.info.index)
                self.collectives.wait_for_abort()
                with Resources() as rest:
                    rest.callback(self._end)
                    self.api.runtime.streamSynchronize(self.stream)
            elif not self._lost:  # nothing of a dead context can be freed, and nothing needs to be
                with Resources() as rest:
                    rest.callback(self._end)
                    self.synchronize()
                    self.sweep()
            self.closed = True

    def _free_all(self) -> None:
        """Frees all allocations and graphs: the pool's, and those of buffers and recordings that were not closed."""
        graphs, self._graphs = self._graphs, set()
        close_each(
            *(partial(self.api.runtime.graphExecDestroy, handle) for handle in graphs),
            *(partial(self._forget, memory) for memory in tuple(self._allocated.values())),
        )

    def _end(self) -> None:
        """Releases all resources; each release is tried even where another fails."""
        try:
            self._held.close()
        except self._errors as error:
            raise self.failed(error, "closing the device") from error
        finally:
            self.closed = True


class EventMark:
    """A mark on the device's stream."""

    __slots__ = ("_device", "_event")

    def __init__(self, device: CudaDevice, event: int) -> None:
        self._device = device
        self._event = event

    def done(self) -> bool:
        with self._device.doing("asking whether a launched program is done"):
            status = int(self._device.api.runtime.eventQuery(self._event))
        if status not in (0, NOT_READY):
            self.wait()  # it raises what failed
        elif status == 0:
            self._device.waited()
        return status == 0

    def wait(self) -> None:
        with self._device.doing("running launched programs"):
            self._device.api.runtime.eventSynchronize(self._event)
            self._device.waited()

    def __del__(self) -> None:
        self._device.free_event(self._event)


class _Doing:
    """Makes the device current, and CuPy's errors typed. It is a class since entering it costs a third of what a
    generator does."""

    __slots__ = ("_device", "_what")

    def __init__(self, device: CudaDevice, what: str) -> None:
        self._device = device
        self._what = what

    def __enter__(self) -> None:
        self._device.enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and isinstance(error, self._device.api.errors):
            raise self._device.failed(error, self._what) from error


def _triple(values: Any) -> tuple[int, int, int]:
    x, y, z = (int(v) for v in values)
    return x, y, z
