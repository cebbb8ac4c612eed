"""CpuExecutable: a graph as a list of bound calls. `bind_node` binds one node alone, for the GPUs' host steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rlx.backends.cpu.arena import CpuBuffer
from rlx.backends.cpu.choice import ASKED, CannotCompile, usable, why_numpy
from rlx.backends.cpu.context import Array, ArrayMemory, BindContext, Step, in_order
from rlx.backends.cpu.fixed_ranges import FixedRanges, memory_of
from rlx.backends.cpu.host.conv.last import last_convolutions
from rlx.backends.cpu.host.elementwise.bind import bind_elementwise, trees_of
from rlx.backends.cpu.host.elementwise.evaluate import same_place
from rlx.backends.cpu.host.kernels import bind_reference, binder_of
from rlx.backends.cpu.quiet import quiet_call, quietly
from rlx.driver import Buffer, BuildOptions, DeviceArena, Dispatch, MemoryPlan, Slot
from rlx.driver.device import Bytes, address
from rlx.driver.memory.plan import CONST, BodyPlan
from rlx.driver.memory.views import is_alias, update_copies
from rlx.driver.times import StepTime, Times, credited, operations
from rlx.dtypes import HOST_ONLY, as_dtype
from rlx.host.processors import available_threads
from rlx.ir import Graph, Node, Tensor, bodies
from rlx.ir import expr as ex
from rlx.ir.expr import substitute
from rlx.passes.bodies import body_name
from rlx.passes.rewriting import use_counts

if TYPE_CHECKING:
    from rlx.backends.cpu.program import EngineProgram
    from rlx.backends.cpu.segment import Segment
    from rlx.driver.control import ControlRun, Row

_REFERENCE = "reference:"  # before the name of an op that has no kernel


class Acquires(Protocol):
    """The part of the device that an executable needs."""

    def acquire(self, nbytes: int) -> Buffer: ...
    def acquire_lasting(self, nbytes: int) -> Buffer: ...
    def arena(self, plan: MemoryPlan, bound: Mapping[str, Buffer]) -> DeviceArena: ...


class Launched:
    """Work that is done when `launch` returns."""

    def __init__(self, run: Step) -> None:
        self.launch = run

    def wait(self) -> None:
        """Returns at once."""


class CpuExecutable:
    """A program on the CPU: calls on views of the arena. All are bound when it is built; `run` only calls them."""

    def __init__(
        self, device: Acquires, graph: Graph, plan: MemoryPlan, arena: DeviceArena, options: BuildOptions,
        body: bool = False, runs: bool = True,
    ) -> None:  # fmt: skip
        """`body`: the graph is the body of a control op, whose params are captured tensors, which change between runs.
        `runs`: the program may be run, so weights are packed; otherwise only its tables are wanted."""
        self._owned: list[Buffer] = []
        self._controls: list[ControlRun] = []
        self._times = Times(options.timed)
        self._work = operations(graph) if options.timed else {}
        self._device, self._arena, self._plan, self._options = device, arena, plan, options
        self._reads, self._runs = FixedRanges(plan, arena), runs
        try:
            compiled = usable(options.engine)
            why = why_numpy(options.engine)
            if compiled:
                try:
                    self._bind_all(graph, body, True)
                except CannotCompile as error:
                    import logging  # only a fault needs it

                    logging.getLogger(__name__).warning("%s; NumPy runs this program", error)
                    self.close()
                    compiled, why = False, str(error)
            if not compiled:
                self._bind_all(graph, body, False)
            self.remark = self._without_engine(why) if why else ""
        except BaseException:
            self.close()
            raise

    def _without_engine(self, why: str) -> str:
        slow = sum(step.startswith(_REFERENCE) for d in self.dispatch for step in d.steps)
        if why == ASKED and not slow:
            return ""
        return f"NumPy runs all nodes, {slow} of them by their references, which are slow: {why}"

    def _bind_all(self, graph: Graph, body: bool, compiled: bool) -> None:
        plan, arena, device = self._plan, self._arena, self._device
        self._steps: list[Step] = []
        self._updates: list[Step] = []
        self._written: list[Step] = []  # each notes that a state was written; also called where a run is broken off
        self.dispatch: list[Dispatch] = []
        self.node_steps: list[tuple[Node, list[Step]]] = []
        self._engine: EngineProgram | None = None

        owned = self._owned  # not self: the engine's program refers to this function, and self to that program

        def acquire(nbytes: int) -> Bytes:
            buffer = device.acquire(nbytes)
            owned.append(buffer)
            return memory_of(buffer)

        ctx = BindContext(acquire, self._options.threads)
        last = last_convolutions(graph)

        order: dict[int, tuple[int, ...]] = {}  # the memory order of each tensor where it is not that of its shape

        self.channels_last = order

        def array(t: Tensor, place: Tensor | None = None) -> Array:
            """A tensor's array; with `place`, the same array in the memory of another tensor."""
            array = _array(t, plan, arena, place)
            return np.moveaxis(array.reshape(order[t.id]), -1, 1) if t.id in order else array

        if compiled:  # a program on NumPy needs none of these modules, which some systems cannot import
            from rlx.backends.cpu.layout import channels_last_tensors
            from rlx.backends.cpu.program import EngineProgram

            order.update(channels_last_tensors(graph, plan))
            from rlx.backends.cpu.weights import PackedWeights

            fixed = set() if body else {t.id for t in graph.params.values()}
            constant = {n.output.id for n in graph.nodes if n.op.is_constant}
            sources, others = (
                [b for b in map(arena.buffer, {plan.slots[t].segment for t in some if t in plan.slots})
                 if isinstance(b, CpuBuffer)]
                for some in (fixed, constant)
            )  # fmt: skip
            self._engine = EngineProgram(
                acquire, ctx.threads, lambda t: t.id in fixed or t.id in constant, sources,
                PackedWeights([*sources, *others], device.acquire_lasting),
            )  # fmt: skip
        for node in graph.nodes:
            if node.op.is_constant and node.output.id in plan.slots:
                arena.write_bytes(node.output.id, node.attrs["value"])
        todo = [node for node in graph.nodes if not node.op.leaf]
        uses = use_counts(graph) if compiled else {}
        # A plan without reuse is made to look at intermediate values, which one step for two nodes would not write.
        joins = compiled and plan.planner != "bump"
        taken = False
        for node, following in zip_longest(todo, todo[1:]):
            if taken:
                taken = False
                continue
            batch_invariant = node.outputs[0].id in last
            taken = following is not None and joins and self._add_both(node, following, array, uses, batch_invariant)
            if not taken:
                self._add(node, array, plan, ctx, batch_invariant)
        # Tensors that the host or another program's steps may read or write through addresses.
        ports = (graph.inputs, graph.outputs, graph.states, graph.updates)
        self._reads.keep([t for ts in ports for t in ts.values()])
        # Updates come last, after every read of the old values.
        updates = [(array(s), array(t)) for t, s in update_copies(graph, plan)]
        if self._engine is not None:
            if self._engine.is_open and not self._times.wanted:
                for target, source in updates:
                    if as_dtype(target.dtype) not in HOST_ONLY:
                        self._engine.copy(source, target)
                updates = [pair for pair in updates if as_dtype(pair[0].dtype) in HOST_ONLY]
            self._engine.finish(self._runs)
        self._updates = [partial(np.copyto, target, source) for target, source in updates]
        self._steps += self._updates
        states = [arena.buffer(plan.slots[t.id].segment) for t in graph.states.values()]
        if graph.updates and not body:
            # Other programs may have packed these tensors as weights.
            written = {id(b): b for b in states if isinstance(b, CpuBuffer)}
            self._written = [b.written for b in written.values()]

    def _add_both(
        self,
        node: Node,
        following: Node,
        array: Callable[..., Array],
        uses: Mapping[int, int],
        batch_invariant: bool,
    ) -> bool:
        """Binds a node and the elementwise node that follows it as one step of the engine. False where that is not
        possible."""
        from rlx.backends.cpu.step import Epilogue

        assert self._engine is not None
        product, out = node.outputs[0], following.outputs[0]
        alone = uses[product.id] == sum(t is product for t in following.inputs)
        if not (following.op.elementwise and alone and len(node.outputs) == len(following.outputs) == 1):
            return False
        if out.shape != product.shape or is_alias(following, self._plan) or bodies(node) or not out.size:
            return False
        result, ins = array(out), [array(t) for t in node.inputs]
        others = [t for t in following.inputs if t is not product]
        beside = [array(t) for t in others]
        # The result is written while the product reads its inputs, so it must not overlap these; it may lie over an
        # input of the epilogue. Otherwise a narrow result is computed in the product's own memory and copied, which
        # takes less time than writing the product.
        covered = any(np.may_share_memory(result, x) for x in ins) or any(
            np.may_share_memory(result, x) and not same_place(x, result) for x in beside
        )
        if covered and result.itemsize >= product.dtype.itemsize:
            return False
        target = array(out, product) if covered else result
        places = iter(range(1, len(others) + 1))
        args = [ex.arg(0 if t is product else next(places), t.dtype) for t in following.inputs]
        tree = substitute(trees_of(following)[0], args)
        bound = self._engine.bind(node, ins, [array(product)], batch_invariant, Epilogue(tree, tuple(beside), target))
        if bound is None:
            return False
        begun, kernels = bound
        self._reads.keep([*node.inputs, *others], self._engine.packed)
        if covered:
            self._engine.copy(target, result)
        self._steps += begun
        self.node_steps += [(node, [*begun]), (following, [])]
        names = tuple(k.name or type(k.spec).__name__ for k in kernels)
        self.dispatch.append(Dispatch(node.name, node.op.name, "native", names, by="engine"))
        self.dispatch.append(
            Dispatch(following.name, following.op.name, "native", names[-1:], within=node.name, by="engine")
        )
        if self._times.wanted:
            self._engine.cut()
        return True

    def _add(
        self, node: Node, array: Callable[[Tensor], Array], plan: MemoryPlan, ctx: BindContext, batch_invariant: bool
    ) -> None:
        name = node.name
        if is_alias(node, plan):
            self.dispatch.append(Dispatch(name, node.op.name, "alias"))
            return
        if bodies(node):
            self._add_control(node)
            return
        ins, outs = [array(t) for t in node.inputs], [array(t) for t in node.outputs]
        if self._engine is not None and any(o.size for o in outs):
            bound = self._engine.bind(node, ins, outs, batch_invariant)
            if bound is not None:
                begun, kernels = bound
                self._reads.keep(node.inputs, self._engine.packed)
                self._steps += begun
                self.node_steps.append((node, [*begun]))
                names = tuple(k.name or type(k.spec).__name__ for k in kernels)
                self.dispatch.append(Dispatch(name, node.op.name, "native", names, by="engine"))
                if self._times.wanted:
                    self._engine.cut()
                return
            self._engine.cut()
        self._reads.keep(node.inputs)
        steps = self._bind_in_order(node, ins, outs, ctx, batch_invariant)
        self._steps += steps
        self.node_steps.append((node, steps))
        kernel = node.op.name if _has_kernel(node) else f"{_REFERENCE}{node.op.name}"
        self.dispatch.append(Dispatch(name, node.op.name, "native", (kernel,), by="numpy"))

    def _bind_in_order(
        self, node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext, batch_invariant: bool
    ) -> list[Step]:
        """NumPy's calls. Its binders take arrays whose memory order is that of their shapes: others are copied."""
        before: list[Step] = []
        after: list[Step] = []
        inputs, outputs = list(ins), list(outs)
        for arrays, written in ((inputs, False), (outputs, True)):
            for i, x in enumerate(arrays):
                if not x.flags.c_contiguous:
                    arrays[i] = ctx.kept(x.shape, x.dtype)
                    (after if written else before).append(
                        partial(np.copyto, x, arrays[i]) if written else partial(np.copyto, arrays[i], x)
                    )
        return [*before, *_bind(node, inputs, outputs, ctx, batch_invariant), *after]

    def _add_control(self, node: Node) -> None:
        self._reads.keep(node.inputs)
        self.dispatch.append(Dispatch(node.name, node.op.name, "control"))
        if self._engine is not None:
            self._engine.cut()

        def build(key: str, body: BodyPlan, arena: DeviceArena) -> CpuExecutable:
            inner = CpuExecutable(self._device, body.program.graph, body.plan, arena, self._options, body=True)
            name = body_name(node, key)
            self.dispatch += [d._replace(node=f"{name}/{d.node}") for d in inner.dispatch]
            return inner

        from rlx.driver.control import ControlRun, carried_copies  # few programs have control ops

        run = ControlRun(node, self._plan, self._arena, self._device.arena, build)
        self._controls.append(run)
        steps: list[Step] = [
            partial(self._arena.copy_prefix, start.id, out.id, self._plan.slots[out.id].nbytes)
            for start, out in carried_copies(node, self._plan)
        ]
        steps.append(run.launch)
        self._steps += steps
        self.node_steps.append((node, steps))

    def run(self) -> None:
        quietly(partial(self._times.measure, self._run_timed) if self._times.wanted else self.launch)

    def quick(self) -> Callable[[], None]:
        steps = tuple(self._steps)
        if self._times.wanted:
            return self.run
        if self._written:
            return quiet_call(self.launch)
        if self._engine is not None:
            if self._engine.prepares:
                steps = (self._engine.refresh, *steps)
            if all(map(self._engine.runs, steps)):  # no NumPy in any of them, so none of its warnings
                return steps[0] if len(steps) == 1 else in_order(steps)

        def work() -> None:
            for step in steps:
                step()

        return quiet_call(work)

    def one_table(self) -> tuple[Callable[[], None], list[tuple[Array, tuple[object, ...]]]] | None:
        """The call that is a whole run, and for each of its steps the words and the objects it keeps; None unless the
        engine runs all steps as one table and packs no weights."""
        if self._engine is None or self._times.wanted or self._written or self._engine.prepares:
            return None
        (step,) = self._steps if len(self._steps) == 1 else (None,)
        return None if step is None else self._engine.table_of(step)

    def whole_run(self) -> tuple[Segment, list[Segment]] | None:
        """The segment that is a whole run, and those that pack the weights before it; None where NumPy runs a part of
        it."""
        (step,) = self._steps if len(self._steps) == 1 else (None,)
        if self._engine is None or self._times.wanted or self._written:
            return None
        table = self._engine.table_of(step)
        return None if table is None or not table[0].steps else (table[0], self._engine.packing)

    @property
    def device(self) -> Any:
        """The device that it was built on."""
        return self._device

    def reads(self, slot: Slot) -> bool:
        """Whether steps read any byte of a weight's slot in place, not from a packed copy."""
        return self._reads.reads(slot)

    @property
    def reads_weights(self) -> bool:
        """Whether building it read the values of weights."""
        return self._engine is not None and self._engine.reads_weights

    begin = run  # the work of a run is done when it returns

    def launch(self) -> None:
        """Runs the calls; unlike `run`, it leaves NumPy's warnings as the caller set them."""
        try:
            if self._engine is not None and self._engine.prepares:
                self._engine.refresh()
            for step in self._steps:
                step()
        finally:
            for note in self._written:
                note()

    def wait(self) -> None:
        """Returns at once: `launch` returns when the work is done."""

    def along(self, order: Sequence[int], before: Sequence[Row], after: Sequence[Row]) -> Launched | None:
        """All iterations of a scan as one call, where the engine runs the whole body; None elsewhere, since NumPy would
        gain nothing from it."""
        if self._engine is None or self._times.wanted or len(self._steps) != 1 or not order:
            return None
        from rlx.backends.cpu.program import MovingRow
        from rlx.backends.cpu.segment import Segment

        (segment,) = self._steps
        if not isinstance(segment, Segment):
            return None

        def moving(row: Row) -> MovingRow:
            places = []
            for slot in (row.source, row.target):
                places.append(address(memory_of(self._arena.buffer(slot.segment))) + slot.offset)
            return MovingRow(places[0], places[1], row.nbytes, row.source_step, row.target_step)

        launch = self._engine.along(segment, order, [moving(r) for r in before], [moving(r) for r in after])
        return None if launch is None else Launched(launch)

    def arenas(self) -> Iterator[DeviceArena]:
        for run in self._controls:
            yield from run.arenas()

    @property
    def own_bytes(self) -> int:
        """Bytes of the compiled engine outside the arena and the stores: scratch between steps, tables, machine code,
        and constants in another order; 0 without the engine."""
        if self._engine is None:
            return 0
        nbytes, plan = self._engine.nbytes, self._plan
        if CONST in plan.segments and isinstance(constants := self._arena.buffer(CONST), CpuBuffer):
            nbytes += constants.extra_bytes
        for run in self._controls:
            inner = (body.executable for body in run.bodies.values())
            nbytes += sum(e.own_bytes for e in inner if isinstance(e, CpuExecutable))
        return nbytes + sum(buffer.nbytes for buffer in self._owned)

    def listing(self) -> list[str]:
        return [f"{node.op.name:16} {len(steps)} calls  {node.name}" for node, steps in self.node_steps]

    def timings(self, launches: bool = False) -> list[StepTime]:
        return self._times.last(launches)

    def _run_timed(self) -> list[StepTime]:
        """Runs the steps, and gives the time of each node."""
        begun = time.perf_counter()
        return credited(self._nodes_timed(begun), self._work)

    def _nodes_timed(self, begun: float) -> Iterator[tuple[str, StepTime]]:
        try:
            if self._engine is not None and self._engine.prepares:
                self._engine.refresh()
            parts = [
                (node.name, f"{node.op.name} {node.name}", steps, _moved(node))
                for node, steps in self.node_steps
                if steps  # otherwise the step of another node computes it too
            ]
            if self._updates:
                parts.append(("", "updates of states", self._updates, 0))
            for node, name, steps, nbytes in parts:
                start = time.perf_counter()
                for step in steps:
                    step()
                end = time.perf_counter()
                yield node, StepTime(name, 1e6 * (end - start), 1e6 * (start - begun), nbytes)
        finally:
            for note in self._written:
                note()

    def close(self) -> None:
        self._steps = []
        self._written = []
        self.node_steps = []
        engine, self._engine = getattr(self, "_engine", None), None
        if engine is not None:
            engine.close()
        for run in self._controls:
            run.close()
        for buffer in self._owned:
            buffer.close()
        self._owned = []
        self._controls = []
        self._reads.close()


def _moved(node: Node) -> int:
    """The bytes that a node reads and writes."""
    return sum(t.type.nbytes for t in {*node.inputs, *node.outputs})


def _array(t: Tensor, plan: MemoryPlan, arena: DeviceArena, place: Tensor | None = None) -> Array:
    slot = plan.slots[(t if place is None else place).id]
    whole = memory_of(arena.buffer(slot.segment))  # no pin is needed, since an executable does not outlive its arena
    kind = slot.dtype if place is None else t.dtype
    return whole[slot.offset :][: t.type.nbytes].view(kind.np).reshape(t.type.array_shape)


def _has_kernel(node: Node) -> bool:
    return binder_of(node.op.name) is not None or node.op.elementwise


def _bind(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext, batch_invariant: bool = False
) -> list[Step]:
    ctx.begin(batch_invariant)
    if all(o.size == 0 for o in outs):
        return []
    binder = binder_of(node.op.name)
    if binder is None:
        binder = bind_elementwise if node.op.elementwise else bind_reference
    return binder(node, ins, outs, ctx)


def bind_node(node: Node, ins: Sequence[Array], outs: Sequence[Array]) -> Callable[[], None]:
    """One node on given host arrays: a function that computes the outputs from the inputs' contents at each call.

    The engine runs an op that has no NumPy kernel. The others keep theirs: for one product of matrices that change
    between calls BLAS is faster.

    Requires: arrays of the node's shapes and dtypes that outlive the call; outputs do not overlap inputs.
    """
    steps = None
    if binder_of(node.op.name) is None and usable(None) and any(o.size for o in outs):
        steps = _on_engine(node, ins, outs)
    if steps is None:
        steps = _bind(node, ins, outs, BindContext(ArrayMemory()))

    def run() -> None:
        for step in steps:
            step()

    return partial(quietly, run)


def _on_engine(node: Node, ins: Sequence[Array], outs: Sequence[Array]) -> list[Step] | None:
    """The calls of a node that the engine runs; None where it has no kernels for it."""
    from rlx.backends.cpu.program import EngineProgram
    from rlx.backends.cpu.weights import PackedWeights

    def nothing(nbytes: int) -> Buffer:
        raise AssertionError("a host step packs no weights")

    engine = EngineProgram(ArrayMemory(), available_threads(), lambda t: False, [], PackedWeights([], nothing))
    bound = engine.bind(node, ins, outs)
    if bound is None:
        return None
    try:
        engine.finish()
    except CannotCompile as error:
        import logging  # only a fault needs it

        logging.getLogger(__name__).warning("%s; NumPy runs %s", error, node.name)
        return None
    (segment,) = bound[0]
    segment.keep.append(engine)  # it owns the scratch between its steps
    return [segment]
