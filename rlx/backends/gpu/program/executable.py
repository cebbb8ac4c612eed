"""GpuExecutable: lowered steps, cut at host calls and control ops, each piece recorded once and replayed each run."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from rlx.backends.gpu import rules
from rlx.backends.gpu.program.batches import batched, find_batches
from rlx.backends.gpu.program.candidates import Chooser, Decision
from rlx.backends.gpu.program.images import set_channels_last
from rlx.backends.gpu.program.lowering import (
    ARGS,
    LOWERINGS,
    SCRATCH,
    Lowering,
    kernel_name,
    runs_natively,
)
from rlx.backends.gpu.program.steps import (
    ControlCall,
    Copy,
    FileKernel,
    Gemm,
    HostCall,
    Launch,
    Ref,
    Step,
    TreeKernel,
)
from rlx.backends.gpu.program.target import Target
from rlx.backends.gpu.rules.rows import load_printed
from rlx.driver import Buffer, BuildOptions, DeviceArena, Dispatch, MemoryPlan
from rlx.driver.closing import Resources
from rlx.driver.control import ControlRun, Row, body_plans
from rlx.driver.memory.plan import BodyPlan
from rlx.driver.memory.views import is_alias
from rlx.driver.times import StepTime, Times, Track, credited, operations
from rlx.errors import UnsupportedOp
from rlx.host.collector import paused
from rlx.host.locks import renewed
from rlx.ir import REGISTRY, Graph, Node, Op, Tensor, bodies
from rlx.ir.text import expr_text
from rlx.passes.bodies import body_name

_loading = renewed(sys.modules[__name__], "_loading", threading.Lock)
_loaded: set[str] = set()  # ops whose rules are loaded, if they have one
MAX_STEPS = 8192  # steps of a scan in one recording, at most: recording a step takes some 12 µs, once


class Recorded(Protocol):
    """A recorded piece: one CUDA graph or command buffer."""

    @property
    def schedule(self) -> tuple[Sequence[Step], frozenset[int]]:
        """The steps, and the indices of those with a full barrier before them (all indices if a stream runs the steps
        in order)."""
        ...

    def launch(self) -> None: ...
    def wait(self) -> None: ...
    def timings(self) -> list[float]:
        """µs of each step in the last run. Raises: UnsupportedOp where the device has no clock for them."""
        ...

    def close(self) -> None: ...


class Records(Protocol):
    """The methods of a GPU device that the shared executable needs beyond those of `Device`."""

    target: Target

    def acquire(self, nbytes: int) -> Buffer: ...
    def arena(self, plan: MemoryPlan, bound: Mapping[str, Buffer]) -> DeviceArena: ...
    def record(self, steps: Sequence[Step], arena: DeviceArena, timings: bool = False) -> Recorded: ...
    def settle(self) -> None:
        """Waits for copies under way in memory that the host addresses: a host step would not wait for them."""
        ...


def load_rules() -> None:
    """Loads the lowering rules of all ops."""
    for module in pkgutil.walk_packages(rules.__path__, f"{rules.__name__}."):
        importlib.import_module(module.name)
    for op in REGISTRY.values():
        load_rule(op)


@functools.cache
def _load_family(family: str) -> None:
    """Imports the lowering rules of one family, which register themselves."""
    name = f"{rules.__name__}.{family}"
    if importlib.util.find_spec(name) is not None:
        module = importlib.import_module(name)
        for part in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
            importlib.import_module(part.name)


def load_rule(op: Op) -> None:
    """Loads the lowering rule of an op, if it has one: that in a module of its family, else that of elementwise ops, or
    that of ops whose kernels are printed from a row program."""
    if op.name in _loaded:  # a rule alone may be of a module that another thread still imports
        return
    with _loading:
        _load_family(op.family)
        if op.name not in LOWERINGS:
            if op.elementwise:
                from rlx.backends.gpu.rules.elementwise import load_elementwise

                load_elementwise(op)
            else:
                load_printed(op)
        _loaded.add(op.name)


def support(device: Records, node: Node) -> Literal["native", "host"]:
    """Whether a node runs natively on this device."""
    load_rule(node.op)
    return "native" if node.op.leaf or runs_natively(node, device.target) else "host"


def lower_graph(
    graph: Graph, plan: MemoryPlan, target: Target, precision: str, batches: bool = True,
    chooser: Chooser | None = None,
) -> tuple[Lowering, list[Dispatch]]:  # fmt: skip
    """Lowers every node in order, then the state updates, and the bodies of control ops into `Lowering.bodies`. This
    needs no device, only its target. `batches`: steps may be joined into batches, if the target allows it. `chooser`:
    chooses instead of the target."""
    lowering = Lowering(graph, plan, target, precision, chooser)
    for op in {node.op.name: node.op for node in graph.nodes if not node.op.leaf}.values():
        load_rule(op)
    set_channels_last(lowering, lambda node: runs_natively(node, target))
    dispatch: list[Dispatch] = []
    own: dict[int, range] = {}  # the indices of a node's steps, by the node's index in `dispatch`
    for node in graph.nodes:
        if node.op.leaf:
            continue
        name = node.name
        if is_alias(node, plan):
            dispatch.append(Dispatch(name, node.op.name, "alias"))
            continue
        count = lowering.lower(node)
        steps = lowering.steps[len(lowering.steps) - count :]
        how: Literal["native", "host", "control"] = "control" if bodies(node) else "native"
        if any(isinstance(s, HostCall) for s in steps):
            how = "host"
        own[len(dispatch)] = range(len(lowering.steps) - count, len(lowering.steps))
        within = lowering.within.get(node.outputs[0].id, "")
        dispatch.append(Dispatch(name, node.op.name, how, tuple(kernel_name(s) for s in steps), within))
        for key, body in body_plans(node, plan):
            inner, entries = lower_graph(
                body.program.graph, body.plan, target, precision, chooser=lowering.chooser
            )
            lowering.chooser.node = name
            lowering.bodies[node.outputs[0].id, key] = inner
            dispatch += [d._replace(node=f"{body_name(node, key)}/{d.node}") for d in entries]
    lowering.lower_updates()
    if batches and target.batches:
        _batch(lowering, dispatch, own)
    return lowering, dispatch


def _batch(lowering: Lowering, dispatch: list[Dispatch], own: Mapping[int, range]) -> None:
    """Replaces each batch of steps by one step, which belongs to the first node; the other nodes' dispatches refer to
    that node."""
    steps = lowering.steps
    batches = find_batches(steps, lowering.target.limits.max_groups[2])
    lowering.steps = []
    for batch in batches:
        parts = [steps[i] for i in batch]
        lowering.steps.append(batched(lowering, parts) if len(parts) > 1 else parts[0])
    names = {batch[0]: kernel_name(step) for batch, step in zip(batches, lowering.steps, strict=True)}
    leader = {i: batch[0] for batch in batches for i in batch[1:]}
    for place, numbers in own.items():
        if any(i in leader or names[i] != kernel_name(steps[i]) for i in numbers):
            left = tuple(names[i] for i in numbers if i not in leader)
            outside = [steps[leader[i]].label for i in numbers if i in leader and leader[i] not in numbers]
            within = ", ".join(dict.fromkeys(outside))
            dispatch[place] = dispatch[place]._replace(steps=left, within=within)


def build(
    device: Records, graph: Graph, plan: MemoryPlan, arena: DeviceArena, options: BuildOptions
) -> GpuExecutable:
    """Lowers and records a graph over an arena of its plan; writes the graph's constants."""
    # "int8" has its own ops (`passes/integers.py`); the remaining products are plain f32.
    precision = "f32" if options.precision == "int8" else options.precision
    with paused():
        chooser = Chooser(device.target.choose, options.choices)
        lowering, dispatch = lower_graph(graph, plan, device.target, precision, chooser=chooser)
    return _assemble(device, lowering, dispatch, arena, options)


def _assemble(
    device: Records,
    lowering: Lowering,
    dispatch: Sequence[Dispatch],
    arena: DeviceArena,
    options: BuildOptions,
) -> GpuExecutable:
    plan = lowering.plan

    def control(node: Node) -> ControlRun:
        def inner(key: str, body: BodyPlan, arena: DeviceArena) -> GpuExecutable:
            # A control op is timed as a whole.
            return _assemble(
                device, lowering.bodies[node.outputs[0].id, key], (), arena, options._replace(timed=False)
            )

        return ControlRun(node, plan, arena, device.arena, inner)

    owned = Resources()
    with owned.unwound():
        fill_memory(device, lowering, arena, owned)
        work = operations(lowering.graph) if options.timed else None
        executable = GpuExecutable(device, lowering.steps, arena, plan, dispatch, owned, options.timed, control, work)
        executable.choices = lowering.chooser.applied
        executable.decisions = lowering.chooser.decisions if options.timed else ()
        return executable


def fill_memory(device: Records, lowering: Lowering, arena: DeviceArena, owned: Resources) -> None:
    """Acquires the program's memory outside its plan (`owned` closes it), and writes argument blocks and constants."""
    for segment, size in ((ARGS, len(lowering.args)), (SCRATCH, lowering.scratch_bytes)):
        if size:
            buffer = device.acquire(size)
            owned.callback(buffer.close)
            arena.bind(segment, buffer)
    if lowering.args:
        block = np.frombuffer(bytes(lowering.args), np.uint8).copy()
        for at, ref in lowering.addresses:
            block[at : at + 8].view(np.uint64)[0] = arena.buffer(ref.segment).address + ref.offset
        arena.buffer(ARGS).write(0, block)
    for node in lowering.graph.nodes:
        if node.op.is_constant and node.output.id in lowering.plan.slots:
            arena.write_bytes(node.output.id, node.attrs["value"])


def _no_control(node: Node) -> ControlRun:
    raise UnsupportedOp(f"{node}: a control op needs its bodies lowered; build the executable from its graph")


class GpuExecutable:
    """A program recorded on a GPU: pieces of device work with host calls and control ops between them."""

    def __init__(
        self,
        device: Records,
        steps: Sequence[Step],
        arena: DeviceArena,
        plan: MemoryPlan,
        dispatch: Sequence[Dispatch],
        owned: Resources | None = None,
        timed: bool = False,
        control: Callable[[Node], ControlRun] = _no_control,
        work: Mapping[str, int] | None = None,
    ) -> None:
        """`work`: the number of operations of each node, by its name, for the step times."""
        self.choices: Mapping[str, str] = {}  # the program's given choices that were applied
        self.decisions: Sequence[Decision] = ()  # what was chosen for each node, where steps are timed
        self.dispatch = dispatch
        self._work = work or {}
        self.steps = steps
        self._device = device
        self._arena = arena
        self._along: Recorded | None = None
        self._times = Times(timed)
        self._held = owned or Resources()  # the memory, then the recordings that refer to it
        self._pieces: list[Recorded | _HostPiece | ControlRun] = []
        self._pending: Recorded | None = None
        with self._held.unwound():
            for part in _cut(steps):
                piece: Recorded | _HostPiece | ControlRun
                if isinstance(part, HostCall):
                    piece = _HostPiece(part, arena, plan)
                elif isinstance(part, ControlCall):
                    piece = control(part.node)
                else:
                    piece = device.record(part, arena, timings=timed)
                self._pieces.append(piece)
                self._held.callback(piece.close)

    @property
    def recorded(self) -> list[Recorded]:
        """The device pieces, for the hazard checker and the timings."""
        return [p for p in self._pieces if not isinstance(p, _HostPiece | ControlRun)]

    @property
    def recordings(self) -> list[tuple[Recorded, DeviceArena]]:
        """The device pieces, those of control ops' bodies included, each with the arena it is recorded over."""
        own = self.recorded + ([] if self._along is None else [self._along])
        return [(r, self._arena) for r in own] + [x for e in self._bodies() for x in e.recordings]

    def along(self, order: Sequence[int], before: Sequence[Row], after: Sequence[Row]) -> Recorded | None:
        """A single recording of the steps, repeated for each index of `order` with that index's copies of rows before
        and after. None if it would be too long, or if host calls or control ops cut the steps."""
        each = len(self.steps) + len(before) + len(after)
        if not 0 < len(order) * each <= MAX_STEPS or len(self.recorded) != len(self._pieces):
            return None
        steps: list[Step] = []
        for i in order:
            steps += [_row_copy(row, i) for row in before if row.nbytes]
            steps += self.steps
            steps += [_row_copy(row, i) for row in after if row.nbytes]
        self._along = self._device.record(steps, self._arena)
        self._held.callback(self._along.close)
        return self._along

    def _bodies(self) -> Iterator[GpuExecutable]:
        for piece in self._pieces:
            if isinstance(piece, ControlRun):
                yield from (
                    b.executable for b in piece.bodies.values() if isinstance(b.executable, GpuExecutable)
                )

    def arenas(self) -> Iterator[DeviceArena]:
        for piece in self._pieces:
            if isinstance(piece, ControlRun):
                yield from piece.arenas()

    def run(self) -> None:
        if self._times.wanted:
            self._times.measure(self._run_timed)
        else:
            self.launch()
            self.wait()

    def quick(self) -> Callable[[], None]:
        return self.run

    def begin(self) -> None:
        """Begins a run; a timed one is complete when this returns."""
        if self._times.wanted:
            self._times.measure(self._run_timed)
        else:
            self.launch()

    def launch(self) -> None:
        """Begins a run. The device may still be at work when this returns; `wait`, or the next launch, follows it."""
        for piece in self._pieces:
            if isinstance(piece, _HostPiece | ControlRun):
                self.wait()
                self._device.settle()
                piece.launch()
            else:
                self._pending = piece  # set before: a launch that is interrupted may have begun
                piece.launch()

    def wait(self) -> None:
        """Returns when every run launched so far is done."""
        if self._pending is not None:
            self._pending.wait()
            self._pending = None  # cleared after: where an interrupt ends the wait, the next run waits for this piece

    def listing(self) -> list[str]:
        lines = [f"{step_text(step):64} {step.label}" for step in self.steps]
        return lines + [f"  {line}" for body in self._bodies() for line in body.listing()]

    def _run_timed(self) -> list[StepTime]:
        """Runs piece by piece, and gives the time of each step."""
        begun = time.perf_counter()
        return credited((pair for piece in self._pieces for pair in self._piece_timed(piece, begun)), self._work)

    def _piece_timed(
        self, piece: Recorded | _HostPiece | ControlRun, begun: float
    ) -> Iterator[tuple[str, StepTime]]:
        """Runs a piece, and yields the name of each step's node with the step's time."""
        self._device.settle()
        start = time.perf_counter()
        at = 1e6 * (start - begun)
        piece.launch()
        launched = 1e6 * (time.perf_counter() - start)
        if isinstance(piece, _HostPiece | ControlRun):
            node = piece.node if isinstance(piece, ControlRun) else piece.call.node
            kind = "control" if isinstance(piece, ControlRun) else "host"
            nbytes = sum(t.type.nbytes for t in (*node.inputs, *node.outputs))
            track: Track = "device" if kind == "control" else "host"
            yield node.name, StepTime(f"{kind}:{node.op.name} {node.name}", launched, at, nbytes, 0, track)
            return
        piece.wait()
        together = 1e6 * (time.perf_counter() - start)
        steps = piece.schedule[0]
        yield "", StepTime(f"launching {len(steps)} steps", launched, at, track="launch")
        try:
            each = piece.timings()
        except UnsupportedOp:  # no clock on this device's queue
            yield "", StepTime(f"{len(steps)} steps together", together, at, sum(map(_moved, steps)))
            return
        for step, us in zip(steps, each, strict=True):
            yield step.label, StepTime(f"{kernel_name(step)} {step.label}", us, at, _moved(step))
            at += us

    def timings(self, launches: bool = False) -> list[StepTime]:
        return self._times.last(launches)

    def close(self) -> None:
        """Frees the recordings, then the memory they refer to. Idempotent."""
        self._held.close()
        self._pieces.clear()
        self._along = None


def _moved(step: Step) -> int:
    """The bytes that a step reads and writes."""
    return sum(ref.nbytes for ref in {*step.reads, *step.writes})


def step_text(step: Step) -> str:
    """The text of a step in a listing: kernel, variant, workgroups."""
    name = kernel_name(step)
    if isinstance(step, Launch):
        constants = step.kernel.constants if isinstance(step.kernel, FileKernel) else ()
        grid = "x".join(map(str, step.groups))
        if isinstance(step.kernel, TreeKernel):
            name = "tree " + "; ".join(expr_text(t) for t in step.kernel.trees)[:48]
        return f"{name} {constants or ''} grid {grid}"
    if isinstance(step, Gemm):
        return f"gemm {step.m}x{step.n}x{step.k} batch {step.batch} {step.a_dtype} {step.precision}"
    return name


def _row_copy(row: Row, i: int) -> Copy:
    source, target = row.source, row.target
    return Copy(
        Ref(source.segment, source.offset + i * row.source_step, row.nbytes),
        Ref(target.segment, target.offset + i * row.target_step, row.nbytes),
        f"row {i}",
    )


def _cut(steps: Sequence[Step]) -> list[Sequence[Step] | HostCall | ControlCall]:
    parts: list[Sequence[Step] | HostCall | ControlCall] = []
    run: list[Step] = []
    for step in steps:
        if isinstance(step, HostCall | ControlCall):
            if run:
                parts.append(run)
            parts.append(step)
            run = []
        else:
            run.append(step)
    if run:
        parts.append(run)
    return parts


class _HostPiece:
    """One node run on the host: only the slots that it reads are copied there, and only those that it writes back.
    Where the host can address the memory, nothing is copied."""

    def __init__(self, call: HostCall, arena: DeviceArena, plan: MemoryPlan) -> None:
        from rlx.backends.cpu.executable import bind_node  # few programs have host steps

        self.call = call
        self._loads: list[Callable[[], None]] = []
        self._stores: list[Callable[[], None]] = []
        self._views: list[Callable[[], object]] = []
        staged: dict[Ref, npt.NDArray[np.uint8]] = {}

        def host(tensor: Tensor, write: bool) -> npt.NDArray[np.generic]:
            slot = plan.slots[tensor.id]
            ref = Ref(slot.segment, slot.offset, slot.nbytes)
            buffer = arena.buffer(slot.segment)
            whole = buffer.view()
            if whole is not None:
                self._views.append(buffer.view)
                raw = whole[slot.offset : slot.end]
            else:
                fresh = ref not in staged
                raw = staged.setdefault(ref, np.zeros(slot.nbytes, np.uint8))
                if write:
                    self._stores.append(lambda: buffer.write(ref.offset, raw))
                elif fresh and slot.nbytes:
                    self._loads.append(lambda: buffer.read(ref.offset, raw))
            return raw[: tensor.type.nbytes].view(slot.dtype.np).reshape(tensor.type.array_shape)

        ins = [host(t, write=False) for t in call.node.inputs]
        outs = [host(t, write=True) for t in call.node.outputs]
        self._work = bind_node(call.node, ins, outs)

    def launch(self) -> None:
        for view in self._views:
            view()  # raises if the memory was closed
        for load in self._loads:
            load()
        self._work()
        for store in self._stores:
            store()

    def close(self) -> None:
        self._loads.clear()
        self._stores.clear()
