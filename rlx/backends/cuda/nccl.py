"""Collectives through NCCL: communicators of a device, calls that graphs capture, and a watch over what waits in them.
Small sums of GPUs that reach each other's memory are a kernel of rlx (`peers.py`), under the same watch.

A rank that waits for another in a launched graph waits on the device, where no timeout ends it. So a thread watches an
event behind each such launch. When it is late, or another rank has ended, the communicators are aborted, which ends
their kernels, and whoever waits for the device gets RankLost."""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlx.backends.cuda.peers import Peers, connected, with_addend
from rlx.backends.gpu.program.steps import Collective, Ref, Step
from rlx.errors import RlxError
from rlx.ir import Node
from rlx.ops.collectives import cards
from rlx.ops.collectives.records import group_of
from rlx.ranks.collect import Group
from rlx.ranks.memory import Memory

if TYPE_CHECKING:
    from rlx.backends.cuda.device import CudaDevice, EventMark

# NCCL's numbers (nccl.h: ncclDataType_t, ncclRedOp_t).
_TYPES = {"i8": 0, "u8": 1, "bool": 1, "i32": 2, "i64": 4, "f16": 6, "f32": 7, "f64": 8, "bf16": 9}
_HOWS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "mean": 4}
_BYTES = 1  # the type for data that is only moved
_UUID = 64  # bytes in which ranks exchange their GPU's UUID
_EACH = 0.2  # seconds between two checks of the launches
_GRACE = 2.0  # seconds given, after a rank has failed, to launches that do not depend on it
_CALL = 5.0  # seconds within which live ranks answer

Key = tuple[str, tuple[int, ...]]


@cache
def library() -> Any:
    """CuPy's module of NCCL; None where there is none."""
    try:
        from cupy.cuda import nccl
    except ImportError:
        return None
    return nccl if nccl.available else None


def why_not() -> str:
    """The reason why collectives of CUDA devices go through the host; "" if they do not."""
    if library() is not None:
        return ""
    return "CuPy finds no NCCL: pip install nvidia-nccl-cu13 (or -cu12), or python -m cupyx.tools.install_library"


class Collectives:
    """The communicators of one device."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._known: dict[Key, Any] = {}
        self._peers: dict[Key, Peers | None] = {}
        self._waiting: deque[tuple[EventMark, float, Group, str]] = deque()
        self._turn = threading.Lock()
        self._watch: threading.Thread | None = None

    # -- compiling

    def usable(self, node: Node) -> bool:
        """Whether NCCL runs a node: its dtype, and each rank on a GPU of its own."""
        how, dtype = node.attrs.get("how"), node.inputs[0].dtype
        if library() is None or dtype.name not in _TYPES:
            return False
        if how in ("max", "min") and dtype.is_float:
            return False  # NCCL's max and min return the other operand of a NaN
        group = group_of(node.attrs)
        world = group.world
        if world.gpus is None:  # ranks are processes, which tell each other
            everyone = group._replace(ranks=tuple(range(world.size)))
            everyone.meet(lambda: "telling the GPUs of the ranks")
            mine = np.frombuffer(str(self._device.info.uuid).encode().ljust(_UUID)[:_UUID], np.uint8)
            world.gpus = [row.tobytes().decode() for row in everyone.all_gather(mine[None])]
        return all(world.gpus) and len(set(world.gpus)) == world.size

    # -- recording

    def prepare(self, steps: Sequence[Step]) -> None:
        """Makes the communicators that steps need. The ranks compare their programs first, since a missing rank would
        block the others here."""
        collectives = [s for s in steps if isinstance(s, Collective)]
        firsts: dict[Key, Collective] = {}
        for step in collectives:
            firsts.setdefault(_key(step), step)
        for key, step in firsts.items():
            group = group_of(step.node.attrs)
            group.meet(partial(cards.told, step.node), cards.card(step.node))
            if not group.all_gather(np.array([key in self._known])).all():  # or a rank's device was opened again
                self._known[key] = self._connected(group)
                self._peers.pop(key, None)
            if key not in self._peers and any(_key(s) == key and Peers.takes(s) for s in collectives):
                self._peers[key] = connected(self._device, group)

    def _connected(self, group: Group) -> Any:
        """A new communicator that has already sent data in each direction, so that NCCL's lazy setup is not captured in
        a graph."""
        nccl, device = library(), self._device
        device.enter()
        fresh = nccl.get_unique_id()  # a tuple of numbers, and since CuPy 14 bytes
        number = np.frombuffer(fresh, np.int8) if isinstance(fresh, bytes) else np.array(fresh, np.int8)
        group.meet(lambda: f"a communicator of {len(group.ranks)} GPUs")
        number = group.broadcast(number, 0)
        n, place = len(group.ranks), group.place
        with _Calls(device, "connecting the GPUs"):
            own = number.tobytes() if isinstance(fresh, bytes) else tuple(int(b) for b in number)
            communicator = nccl.NcclCommunicator(n, own, place)
            # NCCL's destruction of a communicator waits for all graphs that contain its calls. When the process exits
            # these are not destroyed first, so a communicator must not be destroyed with its last reference.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(communicator))
            buffer = device.acquire(8 * n)
            try:
                at = buffer.address
                communicator.allReduce(at, at, 1, _TYPES["f32"], 0, device.stream)
                _exchange(nccl, communicator, at, at + 4 * n, 4, n, device.stream)
                device.api.runtime.streamSynchronize(device.stream)
            finally:
                buffer.close()
        return communicator

    def may_run_aside(self, step: Step) -> bool:
        """Whether a step is one of NCCL's, which can overlap the device's other work."""
        return isinstance(step, Collective) and not self.is_kernel(step)

    def is_kernel(self, step: Step) -> bool:
        """Whether a step is a sum by rlx's kernel."""
        return isinstance(step, Collective) and self._peers.get(_key(step)) is not None and Peers.takes(step)

    def with_addends(self, steps: Sequence[Step]) -> list[Step]:
        """The steps; where the step after a sum by rlx's kernel adds another array, the kernel adds it instead."""
        result: list[Step] = []
        for step in steps:
            before = result[-1] if result else None
            both = with_addend(before, step) if isinstance(before, Collective) and self.is_kernel(before) else None
            if both is None:
                result.append(step)
            else:
                result[-1] = both
        return result

    def bound(self, step: Collective, address: Callable[[Ref], int]) -> Callable[..., None]:
        """A step bound to addresses, as a function of a stream. That of a sum by rlx's kernel has a second argument:
        whether it may begin before the previous launch has ended."""
        peers = self._peers.get(_key(step))
        if peers is not None and peers.takes(step):
            return peers.bound(step, address)
        group = group_of(step.node.attrs)
        call = getattr(_Bound, step.node.op.name)
        bound = _Bound(self._known[_key(step)], step, address(step.reads[0]), address(step.writes[0]), len(group.ranks))
        device = self._device

        def enqueue(stream: int) -> None:
            with _Calls(device, f"enqueueing {step.label}"):
                call(bound, stream)

        return enqueue

    # -- running

    def begun(self, steps: Sequence[Step]) -> None:
        """Notes that a run of steps was launched, which is to end within the timeout."""
        step = next(s for s in steps if isinstance(s, Collective))
        group = group_of(step.node.attrs)
        if isinstance(group.world, Memory) and self._settle not in group.world.settling:
            group.world.settling.append(self._settle)
        with self._turn:
            self._waiting.append((self._device.mark(), time.monotonic() + group.world.timeout, group, step.label))
            if self._watch is None:
                name = f"rlx ranks of {self._device.info.id}"
                self._watch = threading.Thread(target=self._look, name=name, daemon=True)
                self._watch.start()

    def _look(self) -> None:
        failed = 0.0  # when a rank's failure was seen
        while self._device.usable:
            time.sleep(_EACH)
            try:
                while self._waiting and self._waiting[0][0].done():
                    with self._turn:
                        self._waiting.popleft()
                if not self._waiting:
                    failed = 0.0
                    continue
                _, end, group, label = self._waiting[0]
                text = group.world.ended()
                failed = (failed or time.monotonic()) if text else 0.0
                if text and time.monotonic() - failed > _GRACE:
                    self._abort(text)
                    return
                if time.monotonic() > end:
                    self._abort(_missing(group, label))
                    return
            except RlxError:  # the device is lost or closed: nothing waits for it any more
                return

    def _settle(self) -> None:
        """Returns when all launches are done, or the watch has given them up."""
        while self._waiting and self._device.usable:
            time.sleep(_EACH / 10)

    def check(self) -> None:
        """Marks the device's work as lost if a kernel has given up waiting for another rank."""
        for peers in tuple(self._peers.values()):
            if peers is not None and (text := peers.failure):
                self._abort(text)

    def _abort(self, text: str) -> None:
        self._device.lose_ranks(text)
        for peers in tuple(self._peers.values()):
            if peers is not None:
                peers.abort()
        self._end("abort")

    def wait_for_abort(self) -> None:
        """Returns when the watch has ended, as it does once ranks are lost, and has aborted what waits for them."""
        if self._watch is not None:
            self._watch.join()

    def close(self) -> None:
        """Frees the communicators. Requires: the graphs with calls of them are destroyed."""
        self._end("destroy")

    def _end(self, how: str) -> None:
        """Ends each communicator once, though several threads may call."""
        with suppress(KeyError):
            while True:
                getattr(self._known.popitem()[1], how)()


class _Bound(NamedTuple):
    """A step on addresses: a method for each op, by its name."""

    communicator: Any
    step: Collective
    source: int
    target: int
    n: int

    @property
    def nbytes(self) -> int:
        return self.step.reads[0].nbytes

    @property
    def elements(self) -> int:
        return self.nbytes // self.step.dtype.itemsize

    @property
    def numbers(self) -> tuple[int, int]:
        """NCCL's numbers for the dtype and for the reduction."""
        return _TYPES[self.step.dtype.name], _HOWS[self.step.node.attrs["how"]]

    def all_reduce(self, stream: int) -> None:
        self.communicator.allReduce(self.source, self.target, self.elements, *self.numbers, stream)

    def reduce_scatter(self, stream: int) -> None:
        self.communicator.reduceScatter(self.source, self.target, self.elements // self.n, *self.numbers, stream)

    def all_gather(self, stream: int) -> None:
        self.communicator.allGather(self.source, self.target, self.nbytes, _BYTES, stream)

    def broadcast(self, stream: int) -> None:
        root = self.step.node.attrs["root"]
        self.communicator.broadcast(self.source, self.target, self.nbytes, _BYTES, root, stream)

    def all_to_all(self, stream: int) -> None:
        _exchange(library(), self.communicator, self.source, self.target, self.nbytes // self.n, self.n, stream)


class _Calls:
    """Makes NCCL's errors typed."""

    def __init__(self, device: CudaDevice, what: str) -> None:
        self._device, self._what = device, what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: object) -> None:
        # CuPy has no name for NCCL's newer errors, and raises KeyError for them.
        if isinstance(error, (library().NcclError, KeyError)):
            raise RlxError(f"{self._device.info.id}: {self._what}: NCCL failed: {error}") from error


def _missing(group: Group, label: str) -> str:
    """An error message that names the ranks that do not answer now, or says that all do."""
    world, timeout = group.world, group.world.timeout
    world.timeout = _CALL
    try:
        group.meet(lambda: f"{label}, which is late,")
    except RlxError as error:
        return str(error)
    finally:
        world.timeout = timeout
    return f"{label} did not end within {timeout:g} seconds, though all ranks answer"


def _key(step: Collective) -> Key:
    group = group_of(step.node.attrs)
    return group.world.name, group.ranks


def _exchange(nccl: Any, communicator: Any, source: int, target: int, nbytes: int, n: int, stream: int) -> None:
    """Sends the i-th part to the i-th rank, and takes its part."""
    nccl.groupStart()
    for i in range(n):
        communicator.send(source + i * nbytes, nbytes, _BYTES, i, stream)
        communicator.recv(target + i * nbytes, nbytes, _BYTES, i, stream)
    nccl.groupEnd()

