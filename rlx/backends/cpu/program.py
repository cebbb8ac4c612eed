"""The engine's part of one executable: binds nodes to kernels, compiles all kernels together, runs tables of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from rlx.backends.cpu import runner
from rlx.backends.cpu.arena import LATEST, CpuBuffer
from rlx.backends.cpu.choice import CannotCompile
from rlx.backends.cpu.compile import KernelSpec, addresses, code_bytes
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.elementwise import tree_step
from rlx.backends.cpu.fixed_ranges import Range
from rlx.backends.cpu.job import ROW_WORDS
from rlx.backends.cpu.layout import in_memory_order
from rlx.backends.cpu.machine import this_machine
from rlx.backends.cpu.movement import RowCopy, copies
from rlx.backends.cpu.segment import Segment
from rlx.backends.cpu.step import (
    TAKES_EPILOGUE,
    Declined,
    EngineContext,
    EngineStep,
    Epilogue,
    binders_of,
)
from rlx.backends.cpu.weights import PackedWeights
from rlx.driver.device import Bytes, address
from rlx.dtypes import HOST_ONLY, as_dtype
from rlx.errors import UnsupportedOp
from rlx.ir import Node, Tensor
from rlx.ir import expr as ex
from rlx.records import Record

_MAX_TABLE_ROWS = 1 << 14  # they take a megabyte, which stays in a cache
_NO_KERNELS = (UnsupportedOp, RuntimeError)  # raised where no kernel can be made; RuntimeError is llvmlite's


class MovingRow(Record):
    """A copy before or after each iteration of a segment: in iteration i, i times the steps are added to its
    addresses."""

    source: int
    target: int
    nbytes: int
    source_step: int
    target_step: int


class EngineProgram:
    """Binds the nodes of one executable that have kernels. `finish` compiles the kernels; before it no segment may run.

    `sources` are the buffers that hold weights: where one has been written, weights are packed anew (`refresh`)."""

    def __init__(
        self, acquire: Callable[[int], Bytes], threads: int, is_fixed: Callable[[Tensor], bool],
        sources: Sequence[CpuBuffer], weights: PackedWeights,
    ) -> None:  # fmt: skip
        machine = this_machine()
        assert machine is not None
        self._ctx = EngineContext(machine, threads, acquire, is_fixed, weights)
        self.packed: list[Range] = []  # the weights that the last bound node reads as packed copies
        self._segments: list[Segment] = []
        self._open: Segment | None = None
        self._prepares: list[Callable[[], object]] = []
        self._sources = list(sources)
        self._seen: tuple[int, list[int]] = (0, [])
        self._runner = 0, 0
        self._specs: list[KernelSpec] = []
        self._exposed = False

    def bind(
        self, node: Node, ins: Sequence[Array], outs: Sequence[Array], batch_invariant: bool = False,
        following: Epilogue | None = None,
    ) -> tuple[list[Segment], list[EngineStep]] | None:  # fmt: skip
        """The segment that this node begins (empty if none), and the node's steps; None where NumPy has to run it. With
        `following`, the steps that compute both nodes, or None where they cannot be fused.

        Whether the engine runs a node does not depend on where the plan puts its tensors, since NumPy's results may
        differ in their last bits: where a result overlaps inputs and there are no steps for that, the inputs are copied
        first."""
        self._ctx.batch_invariant, self._ctx.epilogue = batch_invariant, following
        self._ctx.next_node()
        count = len(self._ctx.weights)
        self.packed = []
        bound = self._steps_of(node, ins, outs)
        if bound is None and following is None:
            apart, before = self._apart(ins, outs)
            steps_apart = self._steps_of(node, apart, outs) if before else None
            bound = None if steps_apart is None else [*before, *steps_apart]
        if bound is None:
            return None
        self.packed = self._ctx.weights.since(count, [x for step in bound for x in step.keep])
        begun: list[Segment] = []
        if self._open is None:
            self._open = Segment()
            self._segments.append(self._open)
            begun = [self._open]
        self._open.steps += bound
        return begun, bound

    def _steps_of(self, node: Node, ins: Sequence[Array], outs: Sequence[Array]) -> list[EngineStep] | None:
        """The steps of the first binder that does not decline; None where all do."""
        if not HOST_ONLY.isdisjoint(t.dtype for t in (*node.inputs, *node.outputs)):
            return None
        following, count = self._ctx.epilogue, len(self._ctx.weights)
        for binder in binders_of(node.op):
            if following is not None and binder not in TAKES_EPILOGUE:
                continue
            steps = None
            with suppress(Declined):
                steps = binder(*in_memory_order(node, ins), outs, self._ctx)
            if steps is not None:
                return steps
            self._ctx.weights.take_back(count)
        return None

    def _apart(self, ins: Sequence[Array], outs: Sequence[Array]) -> tuple[list[Array], list[EngineStep]]:
        """The inputs, where those that share memory with a result are replaced by copies of the same layout, and the
        steps that copy them; no steps where there are no kernels for the copies."""
        arrays, steps = list(ins), list[EngineStep]()
        for i, x in enumerate(ins):
            if any(np.may_share_memory(x, o) for o in outs):
                order = sorted(range(x.ndim), key=lambda axis: -x.strides[axis])
                dense = self._ctx.borrow(x.nbytes)[: x.nbytes].view(x.dtype)
                arrays[i] = dense.reshape([x.shape[axis] for axis in order]).transpose(np.argsort(order))
                copied = copies(x, arrays[i], self._ctx)
                if copied is None:
                    return arrays, []
                steps += copied
        return arrays, steps

    def copy(self, source: Array, target: Array) -> None:
        """Adds a copy between arrays of one dtype to the open segment."""
        step = tree_step([ex.arg(0, as_dtype(source.dtype))], [source], [target], self._ctx)
        assert step is not None and self._open is not None
        self._open.steps.append(step)

    def table_of(self, step: object) -> tuple[Segment, list[tuple[Array, tuple[object, ...]]]] | None:
        """The segment that is this call, and for each of its steps the words and the objects it keeps; None for a NumPy
        call."""
        return (step, step.keep[: len(step.steps)]) if isinstance(step, Segment) else None

    def runs(self, step: object) -> bool:
        """Whether a call of the executable is one of the engine's."""
        return isinstance(step, Segment) or step == self.refresh

    def cut(self) -> None:
        """Ends the open segment: NumPy runs the next node."""
        self._open = None

    def finish(self, pack: bool = True) -> None:
        """Compiles and loads all kernels, and packs weights; without `pack`, the program must not run."""
        steps = [step for segment in self._segments for step in segment.steps]
        if not steps:  # no node computes an element
            for segment in self._segments:
                segment.leave_empty()
            return
        machine, threads, weights = self._ctx.machine, self._ctx.threads, self._ctx.weights.made
        packing = [step for packed in weights for step in packed.steps]
        try:
            lead, work, *places = addresses([*runner.specs(machine), *(s.spec for s in (*steps, *packing))], machine)
        except _NO_KERNELS as error:
            raise CannotCompile(f"a kernel of the compiled engine cannot be made: {error}") from error
        at, self._runner = 0, (lead, work)
        self._specs = [s.spec for s in steps]
        segments = list(self._segments)
        for packed in weights:
            packed.pack = segment = Segment()
            segment.steps = list(packed.steps)
            segments.append(segment)
        for segment in segments:
            segment.finish(places[at : at + len(segment.steps)], lead, work, threads)
            at += len(segment.steps)
        self._prepares = [s.prepare for s in steps if s.prepare is not None]
        if pack:
            self._prepare(LATEST[0], [b.stamp for b in self._sources])

    @property
    def is_open(self) -> bool:
        """Whether the last step that was bound is the engine's."""
        return self._open is not None

    def along(
        self, segment: Segment, order: Sequence[int], before: Sequence[MovingRow], after: Sequence[MovingRow]
    ) -> Callable[[], None] | None:
        """All iterations of a segment as one call, with the row copies before and after each; None where a table has no
        room for two, and for a segment without steps (of a body that computes no elements)."""
        if not segment.steps:
            return None
        own, each = segment.table, len(before) + len(segment.table) + len(after)
        count = min(len(order), _MAX_TABLE_ROWS // each)
        if count < min(len(order), 2):
            return None
        kernels = [RowCopy(4 if not row.nbytes % 4 else 1, self._ctx.machine.vector_bytes) for row in (*before, *after)]
        try:
            code = addresses(kernels, self._ctx.machine)
        except _NO_KERNELS:
            return None  # the iterations run one by one where there are no kernels for it
        table = np.zeros((count, each, ROW_WORDS), np.int64)
        moving = []
        places = (*range(len(before)), *range(each - len(after), each))
        for place, row, kernel, at in zip(places, (*before, *after), kernels, code, strict=True):
            start = np.array(kernel.args(source=row.source, target=row.target, n=row.nbytes // kernel.unit))
            step = np.array(kernel.args(source=row.source_step, target=row.target_step, n=0))
            words = np.zeros((count, len(start)), np.int64)
            table[:, place, 0] = at
            table[:, place, 1] = address(words) + words.strides[0] * np.arange(count)
            table[:, place, 2:6] = 1
            moving.append((words, start, step))
        table[:, len(before) : each - len(after)] = own
        launched = Segment()
        launched.keep += [segment, *moving]
        launched.run_table(table.reshape(-1, ROW_WORDS), *self._runner, self._ctx.threads)
        self._segments.append(launched)
        turns = np.asarray(order, np.int64)

        def point(first: int, some: int) -> None:
            """Sets the addresses that the copies use to those of `some` iterations from number `first` on."""
            for words, start, step in moving:
                np.multiply(turns[first : first + some, None], step, words[:some])
                words[:some] += start

        point(0, count)
        if count == len(order):
            return launched

        def in_parts() -> None:
            for first in range(0, len(order), count):
                some = min(count, len(order) - first)
                point(first, some)
                launched.shorten(some * each)
                launched()

        return in_parts

    def close(self) -> None:
        """Ends unfinished runs, so that memory can be freed."""
        for segment in self._segments:
            segment.end()
        self._ctx.weights.take_back(0)

    @property
    def nbytes(self) -> int:
        """Bytes of tables, and of the machine code of this program's kernels, which other programs may share."""
        return sum(s.nbytes for s in self._segments) + code_bytes(self._specs, self._ctx.machine)

    @property
    def prepares(self) -> bool:
        """Whether steps depend on packed weights: `refresh` has to be called before each run."""
        return bool(self._prepares) or len(self._ctx.weights) > 0

    @property
    def packing(self) -> list[Segment]:
        """The segments that pack the weights."""
        packs = [packed.pack for packed in self._ctx.weights.made]
        return [pack for pack in packs if isinstance(pack, Segment)]

    @property
    def reads_weights(self) -> bool:
        """Whether Python code computes something that steps read from the values of the weights."""
        return bool(self._prepares)

    def refresh(self) -> None:
        """Packs the weights again if any has been written since."""
        latest = LATEST[0]
        if latest != self._seen[0] or self._exposed:
            stamps = [b.stamp for b in self._sources]
            self._exposed = any(b.exposed for b in self._sources)
            if stamps != self._seen[1] or self._exposed:
                self._prepare(latest, stamps)
            else:
                self._seen = latest, stamps

    def _prepare(self, latest: int, stamps: list[int]) -> None:
        self._ctx.weights.refresh(self._exposed)
        for prepare in self._prepares:
            prepare()
        self._seen = latest, stamps
