"""Recorded: steps captured once into a CUDA graph, which each run launches."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from rlx.backends.cuda.blas import gemm_call
from rlx.backends.cuda.blas_lt import lt_gemm
from rlx.backends.cuda.dependent_launch import launch_early
from rlx.backends.cuda.libraries import load_library
from rlx.backends.cuda.packing import PackedArgs, pack_args
from rlx.backends.gpu.program.barriers import Placed, place_barriers, placed
from rlx.backends.gpu.program.steps import (
    Collective,
    ControlCall,
    Copy,
    Gemm,
    HostCall,
    Launch,
    Ref,
    SourceKernel,
    Step,
)
from rlx.driver import Buffer, DeviceArena
from rlx.driver.closing import Resources
from rlx.errors import ArenaError, RlxError, UnsupportedOp

if TYPE_CHECKING:
    from rlx.backends.cuda.device import CudaDevice

Enqueue = Callable[..., None]  # puts one step on a stream; with True, a launch may begin before the launch before ends


class Recorded:
    """One CUDA graph. All arguments are bound at capture, so `launch` is one call; runs are in stream order.

    It refers to the buffers of its steps; when one of them is closed first, `launch` raises.
    """

    def __init__(
        self,
        device: CudaDevice,
        steps: Sequence[Step],
        barriers: frozenset[int],
        enqueues: Sequence[Enqueue],
        exec_: int,
        buffers: frozenset[Buffer],
        timed: bool = False,
    ) -> None:
        self._device = device
        self.buffers = buffers
        self._steps = tuple(steps)
        self._barriers = barriers
        self._enqueues = tuple(enqueues)
        self._exec = exec_
        self._timed = timed
        self._times: list[float] | None = None
        self._meets = any(isinstance(step, Collective) for step in steps)
        self._graph_launch = device.api.runtime.graphLaunch
        self._synchronize = device.api.runtime.streamSynchronize

    @property
    def schedule(self) -> tuple[Sequence[Step], frozenset[int]]:
        """The steps, and the indices of those that wait for all earlier ones."""
        return self._steps, self._barriers

    def launch(self) -> None:
        """Enqueues one run; a timed one is complete when this returns. Raises: DeviceUnavailable in a forked child,
        DeviceLost, RlxError after `close`, ArenaError when a buffer it uses was closed."""
        device = self._device
        device.enter()
        if not self._exec:
            raise RlxError(f"{device.info.id}: this recording is closed")
        for buffer in self.buffers:
            _ = buffer.address
        if self._timed:
            self._times = self._launch_timed()
            return
        try:
            self._graph_launch(self._exec, device.stream)
        except device.api.errors as error:
            raise device.failed(error, "launching a recorded run") from error
        if self._meets:
            device.collectives.begun(self._steps)

    def wait(self) -> None:
        """Returns when every run launched so far is complete."""
        device = self._device
        device.enter()
        try:
            self._synchronize(device.stream)
        except device.api.errors as error:
            raise device.failed(error, "running recorded steps") from error
        device.waited()

    def timings(self) -> list[float]:
        """µs of each step in the last run. Requires: recorded with timings, and launched."""
        if not self._timed:
            raise UnsupportedOp("this recording has no timings; record it with timings=True")
        if self._times is None:
            raise ArenaError("no timings yet: launch the recording first")
        return self._times

    def _launch_timed(self) -> list[float]:
        """Runs the steps on the stream with an event after each, instead of the graph: a graph does not report the
        times of its steps, and running both would update states twice."""
        device = self._device
        runtime = device.api.runtime
        with device.lock, device.doing("timing steps"):
            aim_blas(device, self._steps, device.stream)
            with Resources() as held:
                events = []
                for _ in range(len(self._steps) + 1):
                    events.append(runtime.eventCreateWithFlags(runtime.eventDefault))
                    held.callback(runtime.eventDestroy, events[-1])
                runtime.eventRecord(events[0], device.stream)
                for enqueue, event in zip(self._enqueues, events[1:], strict=True):
                    enqueue(device.stream)
                    runtime.eventRecord(event, device.stream)
                runtime.streamSynchronize(device.stream)
                return [runtime.eventElapsedTime(start, end) * 1e3 for start, end in pairwise(events)]

    def close(self) -> None:
        """Waits for a run under way, then destroys the graph. Idempotent."""
        if self._exec and os.getpid() == self._device.pid:
            self._device.destroy_graph(self._exec)
        self._exec = 0  # set last: if an interrupt ends the call before, the next `close` destroys the graph

    def __del__(self) -> None:
        handle, self._exec = getattr(self, "_exec", 0), 0
        if handle:
            self._device.orphans.append(handle)


def record(device: CudaDevice, steps: Sequence[Step], arena: DeviceArena, timings: bool = False) -> Recorded:
    """Captures the steps, in order, into one graph. Kernels are loaded, and the cuBLAS handle is made, before that.

    Raises: RlxError naming the step that cannot be captured; UnsupportedOp, ShapeError for a GEMM cuBLAS cannot do.
    """
    device.enter()
    runtime = device.api.runtime
    with device.doing("loading kernels"):  # before the lock, which another thread may hold while cuBLAS starts
        device.compiler.get_all(step.kernel for step in steps if isinstance(step, Launch))
    meets = any(isinstance(step, Collective) for step in steps)
    if meets:
        device.collectives.prepare(steps)
        steps = device.collectives.with_addends(steps)
    with device.lock:
        device.sweep()
        with device.doing("binding steps"):
            enqueues = [_enqueue(device, step, arena) for step in steps]
        label = "the first"
        order = Placed(place_barriers(steps), frozenset(), {})
        if meets:
            order = placed(steps, device.collectives.may_run_aside)
        with Resources() as events, device.doing("capturing steps"):
            stream = device.capture_streams[0]
            aim_blas(device, steps, stream)
            fork = _Fork(device, events)
            try:
                # Relaxed mode: as in the thread-local mode, calls of other threads do not disturb the capture. It also
                # lets cuBLAS load a kernel at its first use, in the very call that is captured.
                runtime.streamBeginCapture(stream, runtime.streamCaptureModeRelaxed)
                fork.join()
                for i, (step, enqueue) in enumerate(zip(steps, enqueues, strict=True)):
                    label = step.label or type(step).__name__
                    alone = not fork.forked and i not in order.awaited
                    if i in order.awaited:
                        fork.wait(order.awaited[i])
                    if i in order.barriers:
                        fork.join()
                    if i in order.aside:
                        fork.begin_aside()
                        enqueue(device.aside_stream)
                        fork.end_aside(i)
                        continue
                    chosen = fork.stream(step)
                    alone = alone and not fork.forked  # the step before is the last on this stream, and on no other
                    if device.early and alone and i and _may_overlap(device, steps[i - 1], step):
                        enqueue(chosen, True)
                    else:
                        enqueue(chosen)
                label = "the end"
                if order.aside:
                    fork.wait(max(order.aside))
                fork.join()
                graph = runtime.streamEndCapture(stream)
            except BaseException as error:
                _abandon(device, stream)
                if isinstance(error, device.api.errors):
                    raise device.failed(error, f"capturing step {label}") from error
                raise
            resources = Resources()
            with resources.unwound():
                with Resources() as captured:
                    captured.callback(runtime.graphDestroy, graph)
                    handle = runtime.graphInstantiate(graph)
                    device.keep_graph(handle)
                    resources.callback(device.destroy_graph, handle)
                runtime.graphUpload(handle, device.stream)
                segments = {ref.segment for step in steps for ref in (*step.reads, *step.writes)}
                buffers = frozenset(map(arena.buffer, segments))
                return Recorded(device, steps, order.barriers, enqueues, handle, buffers, timings)


class _Fork:
    """The streams of a capture. Launches between two barriers take turns on the first two, so that one can begin while
    the last workgroups of another run. Calls of cuBLAS share a workspace, so that these and copies stay on the first.
    Collectives that overlap other steps ("aside") are on a third."""

    def __init__(self, device: CudaDevice, events: Resources) -> None:
        self._runtime, self._event, self._events = device.api.runtime, device.fork_event, events
        self._main, self._side = device.capture_streams
        self._aside = device.aside_stream
        self._ends: dict[int, int] = {}  # the event after each overlapping collective, by its step's index
        self.forked = False  # whether the second stream has work since the last barrier
        self._launches = 0

    def begin_aside(self) -> None:
        """Makes the next step on the stream of overlapping collectives wait for all steps before the last barrier."""
        self._runtime.streamWaitEvent(self._aside, self._event)

    def end_aside(self, index: int) -> None:
        """Records an event at the end of a step on that stream."""
        self._ends[index] = event = int(self._runtime.eventCreateWithFlags(self._runtime.eventDisableTiming))
        self._events.callback(self._runtime.eventDestroy, event)
        self._runtime.eventRecord(event, self._aside)

    def wait(self, index: int) -> None:
        """Makes the steps after the next barrier wait for a step on that stream."""
        self._runtime.streamWaitEvent(self._main, self._ends[index])

    def stream(self, step: Step) -> int:
        """The stream of the next step."""
        if not isinstance(step, Launch):
            return self._main
        self._launches += 1
        if self._launches % 2:
            return self._main
        if not self.forked:
            self.forked = True
            self._runtime.streamWaitEvent(self._side, self._event)
        return self._side

    def join(self) -> None:
        """Lets the following steps wait for all before them."""
        if self.forked:
            self._runtime.eventRecord(self._event, self._side)
            self._runtime.streamWaitEvent(self._main, self._event)
        self._runtime.eventRecord(self._event, self._main)
        self.forked, self._launches = False, 0


def _may_overlap(device: CudaDevice, before: Step, step: Step) -> bool:
    """Whether both are kernels of rlx, which themselves wait for earlier launches; users' kernels do not."""
    return all(
        not isinstance(s.kernel, SourceKernel)
        if isinstance(s, Launch)
        else isinstance(s, Collective) and device.collectives.is_kernel(s)
        for s in (before, step)
    )


def aim_blas(device: CudaDevice, steps: Sequence[Step], stream: int) -> None:
    """Sends the GEMMs among the steps to a stream. Requires: the device's lock held until they are enqueued."""
    if any(isinstance(step, Gemm) for step in steps):
        device.blas.use_stream(stream)


def _abandon(device: CudaDevice, stream: int) -> None:
    """Ends a capture that failed. The stream is usable again afterwards, even where ending the capture fails."""
    try:
        graph = device.api.runtime.streamEndCapture(stream)
    except device.api.errors:
        return
    if graph:
        device.api.runtime.graphDestroy(graph)


def _enqueue(device: CudaDevice, step: Step, arena: DeviceArena) -> Enqueue:
    """Binds a step to addresses; the result is called with a stream."""

    def address(ref: Ref) -> int:
        return arena.buffer(ref.segment).address + ref.offset

    if isinstance(step, Launch):
        return bound_launch(device, step, address).enqueue
    if isinstance(step, Gemm):
        blas = device.blas
        if step.bias is not None:
            lib = load_library("cublasLt", blas.major)
            return lt_gemm(lib, blas.handle, blas.workspace, step, address, device.bias_known)
        call, label = gemm_call(step), step.label
        a, b, c = address(step.a), address(step.b), address(step.c)
        # The caller sets the handle's stream, once for all steps.
        return lambda stream: blas.gemm(call, a, b, c, label)
    if isinstance(step, Copy):
        runtime = device.api.runtime
        target, source, nbytes = address(step.target), address(step.source), step.source.nbytes
        kind = runtime.memcpyDeviceToDevice
        return lambda stream: runtime.memcpyAsync(target, source, nbytes, kind, stream)
    if isinstance(step, Collective):
        return device.collectives.bound(step, address)
    assert isinstance(step, HostCall | ControlCall)
    raise RlxError(f"{step.label}: a host call cannot be captured; the step list is cut there")


class BoundLaunch(NamedTuple):
    """A launch bound to addresses. Its `arguments` may be changed between two launches; `on` returns the launch for a
    stream, and the caller must keep the arguments alive with it."""

    enqueue: Enqueue
    arguments: PackedArgs
    on: Callable[[int], Callable[[], object]]


def bound_launch(device: CudaDevice, step: Launch, address: Callable[[Ref], int]) -> BoundLaunch:
    kernel = device.compiler.get(step.kernel)
    packed = pack_args(step, address)
    limits, threads = device.limits, kernel.block[0] * kernel.block[1] * kernel.block[2]
    if threads > limits.max_group_threads or any(
        not 0 < g <= most for g, most in zip(step.groups, limits.max_groups, strict=True)
    ):
        raise RlxError(
            f"{step.label}: a grid of {step.groups} blocks of {kernel.block} threads is outside what "
            f"{device.info.id} runs: {limits.max_groups} blocks of {limits.max_group_threads}"
        )
    launch = device.api.driver.launchKernel
    grid, block, shared, function = step.groups, kernel.block, kernel.shared_bytes, kernel.function
    what, pointer = (function, *grid, *block, shared), packed.pointer

    def enqueue(stream: int, early: bool = False) -> None:
        if early:
            status = launch_early(function, grid, block, shared, stream, packed.pointer)
            if status:
                raise device.api.errors[-1](status)
        else:
            launch(*what, stream, pointer, 0)

    return BoundLaunch(enqueue, packed, lambda stream: partial(launch, *what, stream, pointer, 0))
