"""Steps that each call enqueues on the device's stream: kernels and products on the addresses that the call
supplies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from rlx.backends.cuda.blas import gemm_call
from rlx.backends.cuda.copies import copy_launch
from rlx.backends.cuda.memory import CudaBuffer, granules
from rlx.backends.cuda.recorder import bound_launch
from rlx.backends.gpu.program.call import Enqueued, Memory
from rlx.backends.gpu.program.steps import Copy, Gemm, Launch, Ref, Step
from rlx.driver import Buffer, DeviceArena

if TYPE_CHECKING:
    from rlx.backends.cuda.device import CudaDevice

Places = Sequence[int]


def bind(
    device: CudaDevice, steps: Sequence[Step], arena: DeviceArena | None, segments: Sequence[str]
) -> Enqueued | str:
    """See Enqueues; without an arena, all memory is that of the segments. Released memory is reused only by later work
    on the same stream, so a call need not keep its buffers alive."""
    steps = [copy_launch(s.source, s.target, s.label) or s if isinstance(s, Copy) else s for s in steps]
    number = {name: n for n, name in enumerate(segments)}
    words: list[tuple[Any, int, int]] = []  # address arguments: (value, segment number, offset in the segment)
    now: list[int] = [0] * len(segments)  # the segments' addresses in the call being enqueued

    def fixed(ref: Ref) -> int:
        if ref.segment in number:
            return 0
        assert arena is not None
        return arena.buffer(ref.segment).address + ref.offset

    def place(ref: Ref) -> Callable[[], int]:
        n, offset = number.get(ref.segment), ref.offset
        if n is None:
            address = fixed(ref)
            return lambda: address
        return lambda: now[n] + offset

    with device.doing("loading kernels"):  # before the lock, which another thread may hold while cuBLAS starts
        for step in steps:
            if isinstance(step, Launch):
                device.compiler.get(step.kernel)
    launches: list[Callable[[], object]] = []
    arguments = []  # the kernels' packed arguments; launches refer to them by address
    stream, runtime = device.stream, device.api.runtime
    products = [step for step in steps if isinstance(step, Gemm)]
    if any(step.bias is not None for step in products):
        return "cuBLASLt binds its product to addresses"
    with device.lock, device.doing("binding steps"):
        for step in steps:
            if isinstance(step, Launch):
                bound = bound_launch(device, step, fixed)
                arguments.append(bound.arguments)
                for arg, value in zip(step.args, bound.arguments.values, strict=True):
                    if isinstance(arg, Ref) and arg.segment in number:
                        words.append((value, number[arg.segment], arg.offset))
                launches.append(bound.on(stream))
            elif isinstance(step, Gemm):
                launches.append(_product(device, step, *(place(ref) for ref in (step.a, step.b, step.c))))
            else:
                assert isinstance(step, Copy)
                launches.append(_copy(runtime, stream, step, place(step.target), place(step.source)))
    # The arguments belong to this call object; the cuBLAS handle and its stream are shared by the whole device.
    turn = threading.Lock()
    blas = device.blas if products else None
    lock: Any = device.lock if products else nullcontext()

    def several() -> None:
        with lock:
            if blas is not None:
                blas.use_stream(stream)
            for launch in launches:
                launch()

    def put(places: Places) -> None:
        try:
            with turn:
                if not only:
                    now[:] = places
                for value, n, offset in words:
                    value.value = places[n] + offset
                work()
        except device.api.errors as error:
            raise device.failed(error, "launching a call") from error

    put.arguments = arguments  # type: ignore[attr-defined]  # kept as long as it is

    def begin(memory: Memory) -> None:
        device.enter()
        put([buffer.address + offset for buffer, offset in memory])

    def fresh(sizes: Sequence[int]) -> Callable[[list[int]], list[Buffer]]:
        wanted = [(nbytes, granules(nbytes), device.spares_of(granules(nbytes))) for nbytes in sizes]

        def begin_fresh(places: list[int]) -> list[Buffer]:
            enter()
            results: list[Buffer] = []
            for nbytes, whole, spares in wanted:
                if spares:
                    try:
                        memory = spares.pop()
                    except IndexError:  # another thread took it
                        memory = take_whole(whole, True)
                else:
                    memory = take_whole(whole, spares is not None)
                results.append(CudaBuffer(device, memory, nbytes))
                places.append(memory.address)
            put(places)
            return results

        return begin_fresh

    enter, take_whole = device.enter, device.take_whole
    only = len(arguments) == len(steps)  # kernels
    work = launches[0] if len(launches) == 1 and not products else several
    return Enqueued(begin, fresh)


def _product(
    device: CudaDevice, step: Gemm, a: Callable[[], int], b: Callable[[], int], c: Callable[[], int]
) -> Callable[[], None]:
    enqueue = device.blas.prepared(gemm_call(step), step.label)
    return lambda: enqueue(a(), b(), c())


def _copy(
    runtime: Any, stream: int, step: Copy, target: Callable[[], int], source: Callable[[], int]
) -> Callable[[], object]:
    nbytes, kind = step.source.nbytes, runtime.memcpyDeviceToDevice
    return lambda: runtime.memcpyAsync(target(), source(), nbytes, kind, stream)
