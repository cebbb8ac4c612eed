"""The engine's part of one executable: binds nodes to kernels, compiles all of them together, runs tables of steps."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from rlx.backends.cpu import runner
from rlx.backends.cpu.arena import LATEST, CpuBuffer
from rlx.backends.cpu.choice import CannotCompile
from rlx.backends.cpu.compile import KernelSpec, addresses, code_bytes
from rlx.backends.cpu.context import Array
from rlx.backends.cpu.elementwise import tree_step
from rlx.backends.cpu.fixed_ranges import Range
from rlx.backends.cpu.layout import in_memory_order
from rlx.backends.cpu.machine import this_machine
from rlx.backends.cpu.movement import RowCopy, copies
from rlx.backends.cpu.step import (
    TAKES_EPILOGUE,
    Declined,
    EngineContext,
    EngineStep,
    Epilogue,
    binders_of,
)
from rlx.backends.cpu.weights import PackedWeights
from rlx.backends.cpu.workers import POOL
from rlx.driver.device import Bytes, address
from rlx.dtypes import HOST_ONLY, as_dtype
from rlx.errors import RlxError, UnsupportedOp
from rlx.ir import Node, Tensor
from rlx.ir import expr as ex
from rlx.records import Record

_LEAD = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
# Less work is not handed to another thread. One that still spins takes 0.3 µs to begin; one that sleeps costs its waker
# 12 µs, once in a run as a rule, since it then spins until the next step comes.
_WORTH_A_THREAD_NS = 2_500.0
_WORTH_IN_A_CROWD_NS = 15_000.0  # others want the cores too
_MAX_TABLE_ROWS = 1 << 17  # they take eight megabytes
_CHUNKS_PER_THREAD = 4  # some chunks of a step end sooner than others
_UNDER_WAY = [runner.STEP, runner.ITEM, runner.SHARED, runner.OWNS]
_NO_KERNELS = (UnsupportedOp, RuntimeError)  # none can be made then: llvmlite raises RuntimeError
_PAUSE_NS = 2_000_000.0  # a thread looks up from its work about as often, to see whether a signal waits


class MovingRow(Record):
    """A copy around each turn of a segment: in turn i, i times the steps are added to the addresses."""

    source: int
    target: int
    nbytes: int
    source_step: int
    target_step: int


class Segment:
    """Consecutive steps of the engine, as one table that one call runs."""

    def __init__(self) -> None:
        self.steps: list[EngineStep] = []
        self.keep: list[Any] = []
        self.nbytes = 0  # the tables' bytes
        self._lead: Callable[[], int] = _unfinished
        self._job = np.zeros(runner.JOB_WORDS, np.int64)

    def __call__(self) -> None:
        # A signal's handler may raise between any two instructions: no other thread may be in the steps then.
        try:
            state = self._lead()
            if state:
                self._on(state)
        except BaseException:
            self.end()
            raise

    def finish(self, places: Sequence[int], lead: int, work: int, threads: int) -> None:
        """Makes the table; `places` are the kernels' addresses, `lead` and `work` the runner's functions."""
        table = np.zeros((len(self.steps), runner.ROW_WORDS), np.int64)
        for row, step, place in zip(table, self.steps, places, strict=True):
            words = np.array([w if w < 1 << 63 else w - (1 << 64) for w in step.words] or [0], np.int64)
            most, cost = min(threads, -(-step.items // step.grain)), step.cost_ns * step.items
            wanted = min(most, int(cost / _WORTH_A_THREAD_NS))
            if wanted > 1:
                size = max(step.grain, -(-step.items // (wanted * _CHUNKS_PER_THREAD)))
            else:
                size = max(step.grain, min(step.items, int(_PAUSE_NS / max(step.cost_ns, 1e-3))), 1)
            row[:6] = place, address(words), step.items, size, max(wanted, 1), -(-step.items // size)
            row[6] = min(most, int(cost / _WORTH_IN_A_CROWD_NS))
            self.keep.append((words, step.keep))
            own = (x for x in step.keep if isinstance(x, np.ndarray) and x.base is None)  # tables of addresses
            self.nbytes += words.nbytes + sum(x.nbytes for x in own)
        self.run_table(table, lead, work, threads)

    def run_table(self, table: Any, lead: int, work: int, threads: int) -> None:
        """What a call runs: the rows of a table. `lead` and `work` are the runner's functions."""
        self.table = table
        self.nbytes += table.nbytes
        job = self._job
        job[runner.STEPS], job[runner.TABLE] = len(table), address(table)
        job[runner.POOL_CELL], job[runner.THREADS] = address(POOL.cell), threads
        call = _LEAD(lead)
        self._lead = partial(call, address(job))
        self._threads, self._work = threads, work

    def leave_empty(self) -> None:
        """Lets calls run nothing, as there are no steps."""
        self._lead = int

    def _on(self, state: int) -> None:
        """Goes on with a run that returned before its end."""
        while state:
            if state == runner.UNFINISHED:
                self.end()
            elif state == runner.NO_POOL:
                POOL.grow(self._threads, self._work)
            if state == runner.PAUSED and self._orphaned():
                raise RlxError("the process was forked within a run: the child cannot finish it")
            self._job[runner.RESUMES] = state != runner.UNFINISHED
            state = self._lead()

    def end(self) -> None:
        """Ends a run that was left, once no thread is in its steps. Idempotent."""
        while self._job[runner.CANCEL] or self._job[_UNDER_WAY].any():
            with suppress(BaseException):  # another signal, while the exception of the first is on its way
                if self._orphaned():
                    self._job[_UNDER_WAY] = 0
                self._job[runner.CANCEL] = 1
                while self._lead():
                    pass
                self._job[runner.CANCEL] = 0

    def _orphaned(self) -> bool:
        """Whether the run that is under way shares a step with threads of the parent, which a fork has left behind."""
        return bool(self._job[runner.OWNS]) and self._job[runner.POOL] != POOL.cell[0]


class EngineProgram:
    """Binds the nodes of one executable, as far as there are kernels. `finish` compiles; no segment runs before.

    `sources` are the buffers that hold weights: where one has been written, weights are packed anew (`refresh`)."""

    def __init__(
        self, acquire: Callable[[int], Bytes], threads: int, is_fixed: Callable[[Tensor], bool],
        sources: Sequence[CpuBuffer], weights: PackedWeights,
    ) -> None:  # fmt: skip
        machine = this_machine()
        assert machine is not None
        self._ctx = EngineContext(machine, threads, acquire, is_fixed, weights)
        self.packed: list[Range] = []  # the weights that the last node that was bound reads in another order
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
        """The segment that this node begins, if it does, and the node's steps; None where NumPy has to run it. With
        `following`, the steps of both nodes, or None where they do not become one.

        Whether the engine runs a node does not depend on where the plan puts its tensors: what it has no steps for
        because a result lies over inputs, it does with copies of those. NumPy's results may have other bits."""
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
        """The inputs, of which those that share memory with a result are copies that lie alike; and the steps that make
        these, none where there are no kernels for it."""
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
        """A segment, and of each of its steps the words and what it keeps; None for a call of NumPy's."""
        return (step, step.keep[: len(step.steps)]) if isinstance(step, Segment) else None

    def runs(self, step: object) -> bool:
        """Whether a call of the executable is one of the engine's."""
        return isinstance(step, Segment) or step == self.refresh

    def cut(self) -> None:
        """Ends the open segment: what follows is NumPy's."""
        self._open = None

    def finish(self) -> None:
        """Compiles and loads all kernels, and packs weights."""
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
        self._prepare(LATEST[0], [b.stamp for b in self._sources])

    @property
    def is_open(self) -> bool:
        """Whether the last step that was bound is the engine's."""
        return self._open is not None

    def along(
        self, segment: Segment, order: Sequence[int], before: Sequence[MovingRow], after: Sequence[MovingRow]
    ) -> Segment | None:
        """All turns of a segment, with the copies of rows around each, as one; None where its table would be long, and
        for a segment without steps, as that of a body that computes no element is."""
        if not segment.steps:
            return None
        own, count = segment.table, len(order)
        kernels = [RowCopy(4 if not row.nbytes % 4 else 1, self._ctx.machine.vector_bytes) for row in (*before, *after)]
        try:
            code = addresses(kernels, self._ctx.machine)
        except _NO_KERNELS:
            return None  # the turns run one by one, without such kernels
        each = len(before) + len(own) + len(after)
        if count * each > _MAX_TABLE_ROWS:
            return None
        table = np.zeros((count, each, runner.ROW_WORDS), np.int64)
        turns = np.asarray(order, np.int64)
        kept = []
        places = (*range(len(before)), *range(each - len(after), each))
        for place, row, kernel, at in zip(places, (*before, *after), kernels, code, strict=True):
            start = np.array(kernel.args(source=row.source, target=row.target, n=row.nbytes // kernel.unit))
            step = np.array(kernel.args(source=row.source_step, target=row.target_step, n=0))
            words = start + turns[:, None] * step
            table[:, place, 0] = at
            table[:, place, 1] = address(words) + words.strides[0] * np.arange(count)
            table[:, place, 2:6] = 1
            kept.append(words)
        table[:, len(before) : each - len(after)] = own
        launched = Segment()
        launched.keep += [segment, *kept]
        launched.run_table(table.reshape(-1, runner.ROW_WORDS), *self._runner, self._ctx.threads)
        self._segments.append(launched)
        return launched

    def close(self) -> None:
        """Ends runs that were left, so that memory can be freed."""
        for segment in self._segments:
            segment.end()
        self._ctx.weights.take_back(0)

    @property
    def nbytes(self) -> int:
        """Bytes of tables, and of the machine code of this program's kernels, which others may use too."""
        return sum(s.nbytes for s in self._segments) + code_bytes(self._specs, self._ctx.machine)

    @property
    def prepares(self) -> bool:
        """Whether steps depend on packed weights: `refresh` has to be called before each run."""
        return bool(self._prepares) or len(self._ctx.weights) > 0

    def refresh(self) -> None:
        """Packs the weights anew if any was written since."""
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


def _unfinished() -> int:
    raise AssertionError("a segment is run before its program is finished")
