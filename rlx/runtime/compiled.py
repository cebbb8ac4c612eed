"""CompiledGraph: a graph optimized and planned for one device, and recorded at its first run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from rlx.driver import Call, Device, DeviceArena, DeviceInfo, Executable, MemoryPlan, Slot
from rlx.driver.closing import Closing, Resources
from rlx.driver.memory.plan import SPARED_BYTES, SPARED_PART, input_segment, output_segment
from rlx.driver.memory.typed import whole
from rlx.dtypes import DType, DTypeLike
from rlx.errors import GraphError, OutOfDeviceMemory, meant
from rlx.host.locks import renewed
from rlx.host.progress import report
from rlx.ir import Graph, Tensor, verify
from rlx.ir.checks import visible
from rlx.ir.graph import TRACING
from rlx.packed import PackedArray
from rlx.runtime import debug
from rlx.runtime.array import Array, stored
from rlx.runtime.bound import Bound
from rlx.runtime.budget import check_memory, out_of_memory
from rlx.runtime.checks import unread
from rlx.runtime.launch import Launch
from rlx.runtime.options import CompileOptions
from rlx.runtime.outs import Out, check_out
from rlx.runtime.ports import Given, accept_inputs, by_name, ports_of, signature
from rlx.runtime.prepare import Prepared, planned, prepare
from rlx.runtime.recorded import Recorded
from rlx.runtime.rows import feed_rows, rows_of
from rlx.runtime.store import State, Store, on_host

if TYPE_CHECKING:
    from rlx.runtime.report import Report
    from rlx.runtime.timings import Timings

_KEPT_NODES = 256  # the passes over a smaller graph take about as long as reading it from the disk's cache


def _roomy(info: DeviceInfo, plan: MemoryPlan) -> bool:
    """Whether a plan leaves a GPU so much memory that time counts more."""
    return info.kind != "cpu" and plan.arena_bytes < info.memory_bytes // SPARED_PART


class CompiledGraph(Closing):
    """A graph ready to run on one device, made by `Session.compile`.

    Any thread may call `run`; calls take turns, also with those of other programs that bind the same State. `clone()`
    gives a copy with its own memory, for parallel use. Weights are in `weights`, shared with other executables that
    were given the same store. A `with` block closes it.
    """

    instead = (
        "`save` writes it to a file for rlx.load_program, `clone()` gives a second one here; or pickle its `graph`, "
        "which `Session.compile` compiles again"
    )

    def __init__(
        self, graph: Graph, device: Device, weights: Store, state: Store, options: CompileOptions,
        donate: Mapping[str, str] | None = None, prepared: Prepared | None = None,
    ) -> None:  # fmt: skip
        self.graph = graph
        self.donated = dict(donate or {})  # the states that are donated inputs, each with the output that replaces it
        self.device = device
        self.weights = weights
        self.state = state
        self.options = options
        self._ports, self._changes = ports_of(graph), graph._changes
        # Programs of one State share its lock: a donated input and the result in the state's slot belong to one run.
        # A forked child makes its locks anew in the order in which they were made, so the State's before this one.
        self._lock = renewed(self, "_lock", (lambda: state.turn) if graph.states else threading.RLock)
        self._building = renewed(self, "_building", threading.RLock)  # a thread that takes both takes `_lock` first
        self._closed = False
        self._busy = 0  # calls in progress that use the program; all are of the thread that holds the lock
        self._program: Recorded | None = None
        self._bound: WeakSet[Callable[[], None]] = WeakSet()  # `run` of each Bound, which may outlive it
        self._gone = ""  # why the outputs of the last run are gone
        self.room_bytes = self.last_used = 0
        params = {name: t.type for name, t in graph.params.items()}
        states = {name: t.type for name, t in graph.states.items()}
        weights.check(params)
        state.check(states, states=True)
        # Inputs, weights and states need their bytes in any case. This is checked before the passes, whose constants
        # may be as large as the tensors that they rewrite.
        stores = weights.need(params) + state.need(states)
        undo = Resources()
        undo.callback(options.room.unbind, *options.room.bind(weights, state))
        with undo.unwound():
            inputs = sum(t.type.nbytes for t in graph.inputs.values())
            check_memory(stores + inputs, graph, graph.name, device, options.room)
            self._prepared = prepared
            self._version = -1
            self._last_plan: tuple[tuple[Prepared, str, list[Slot | None]], MemoryPlan] | None = None
            prepared = self._prepare()
            self._planned = self._planned_by(prepared)
            self._plan = self._make_plan(prepared)
            check_memory(stores + self._plan.total_bytes, prepared.graph, graph.name, device, options.room)
            weights.declare(params)  # the stores learn of this graph once it is known to fit
            state.reserve(states)
        self._replaced = [n for n, t in graph.updates.items() if t is not graph.states[n]]

    def __repr__(self) -> str:
        from rlx.ir.picture import listed

        inputs, outputs = (listed(types) for types in signature(self.graph))
        return f"CompiledGraph({self.graph.name!r} on {self.device.info.id}: ({inputs}) -> ({outputs}))"

    def _repr_html_(self) -> str:
        """What notebooks show: the signature, and the memory plan as a picture."""
        from rlx.runtime.plan_svg import program_html

        title = f"{self.graph.name} on {self.device.info.id}"
        return program_html(title, *signature(self.graph), self.program, self.plan)

    # -- weights and state

    def set_param(self, name: str, data: npt.ArrayLike | PackedArray, dtype: DTypeLike | None = None) -> None:
        """Writes a weight; `dtype="bf16"` or "f16" stores an f32 weight in half precision (rounded to nearest even).

        A change of dtype makes this program, and every other that shares the weights, record itself anew before its
        next run; otherwise the weight is written in place. Memory: see `Weights`.
        Raises: GraphError for an unknown name, ShapeError, DTypeError; nothing is changed then.
        """
        if name not in self.graph.params:
            raise GraphError(
                f"set_param: the graph has no parameter {name!r}; it has "
                f"{sorted(self.graph.params)}{meant(name, self.graph.params)}"
            )
        with self._lock:
            self._open()
            self.weights.set(name, data, dtype)

    def set_params(
        self, arrays: Mapping[str, npt.ArrayLike | PackedArray], dtype: DTypeLike | None = None
    ) -> None:
        """Writes several weights. Raises: GraphError naming every unknown one, before any is written."""
        unknown = sorted(set(arrays) - set(self.graph.params))
        if unknown:
            raise GraphError(
                f"set_params: no such parameters: {unknown}; there are "
                f"{sorted(self.graph.params)}{meant(unknown[0], self.graph.params)}"
            )
        for name, data in arrays.items():
            self.set_param(name, data, dtype)

    def get_state(self, name: str, out: Out = "host") -> Any:
        """A copy of a state: a NumPy array, or with `out="device"` an rlx.Array."""
        with self._lock:
            return self.state.get(name, out)

    def set_state(self, name: str, data: npt.ArrayLike) -> None:
        """Writes a state; all its rows are valid then. Raises: GraphError, ShapeError, DTypeError."""
        with self._lock:
            self.state.set(name, data)

    def valid_rows(self, name: str) -> int:
        """The number of leading rows of a state that are valid.

        All rows are, unless `set_valid_rows` or `feed_rows` set another number."""
        with self._lock:
            arena = self._ready().arena
            node, row = rows_of(self._prepare().graph, name)
            return arena.len_of(node) // row

    def set_valid_rows(self, name: str, rows: int) -> None:
        """Sets how many leading rows of a state are valid; 0 empties a cache.

        `feed_rows` appends to these and `clone` copies them; programs read all rows.
        Raises: GraphError, ShapeError for a state without rows, ArenaError for too many."""
        with self._lock:
            arena = self._ready().arena
            node, row = rows_of(self._prepare().graph, name)
            arena.set_actual_len(node, whole(rows, "set_valid_rows") * row)

    def feed_rows(self, state: str, output: str, at: int | None = None) -> int:
        """Copies the rows that the last run returned as `output` into a state, on the device.

        A KV cache grows by them without a transfer to the host. Returns how many rows of the state are valid then.
        `at` is the row at which writing begins: by default, and at most, the first row that is not valid.

        Shape: output (n, …), state (m, …). Raises: GraphError for unknown names, ShapeError for other rows,
        DTypeError, ArenaError where the rows do not fit; nothing is changed then.
        """
        with self._lock:
            arena = self._ready().arena
            self._still_there()
            self.state.reclaim(state)
            return feed_rows(arena, self._prepare().graph, state, output, at)

    # -- running

    def run(self, inputs: Mapping[str, Any] | None = None, out: Out = "host") -> dict[str, Any]:
        """Runs the graph once: arrays in by name, NumPy's or rlx.Arrays of this device; fresh arrays out by name.

        `out="device"` leaves the outputs on the device, as rlx.Arrays, which feed the next run without the host.
        Raises: GraphError (names, weights not set, an Array of another device), ShapeError, DTypeError, ArenaError for
        an Array that was closed, before anything is written.
        """
        check_out("run", out)
        if TRACING.graph is not None:
            TRACING.runs += 1
        with self._lock:
            self._busy += 1
            try:
                program = self._ready()
                values = accept_inputs(program.inputs, inputs if inputs is not None else {}, self.device)
                feeds, checks, earlier = program.checks_of(values)
                for launch in earlier:
                    launch.read()
                self._feed(program, values)
                before = debug.before_run(self)
                program.executable.run()
                self.state.replaced(self._replaced)
                for check in checks:
                    check.after(feeds)
                if out == "device":
                    results = program.give()
                else:
                    results = {port.name: port.take() for port in program.outputs}
                program.broken_off = False
                debug.show_run(self, before)
                return results
            finally:
                self._busy -= 1

    def __call__(self, *args: Any, out: Out = "host", **inputs: Any) -> Any:
        """A run on inputs in the order in which the graph declares them, or by name: `exe(x)`, `exe(x, at=3)`. Returns
        the only output as it is, several as a dict by name. Raises: as `run`."""
        names = [n for n in (*self.graph.inputs, *self.donated) if n not in inputs]
        outputs = self.run(by_name(self.graph.name, names, args, inputs), out)
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    def launch(self, inputs: Mapping[str, Any] | None = None) -> Launch[dict[str, Any]]:
        """Begins a run and returns while the device is at work; inputs as in `run`.

        NumPy arrays may be changed once this returns. Memory of another library on the device (a torch tensor) is read
        by the device later: it must stay as it is until the run is done, unless the session has the `stream` on which
        the caller changes it.
        The device does all its work in the order in which runs were begun: those of one program, of several, and of
        several threads. A run waits for the host only where this one does: before a host step or a control op; on
        Vulkan also where its program's last run is not done, since its memory is still in use. On the CPU the run is
        complete when this returns. `close` waits for runs under way.
        Raises: as `run`, before anything is written; all later errors are those of the Launch and its results.
        """
        with self._lock:
            self._busy += 1
            try:
                program = self._ready()
                values = accept_inputs(program.inputs, inputs if inputs is not None else {}, self.device)
                feeds, checks, earlier = program.checks_of(values)
                try:
                    self._feed(program, values)
                    before = debug.before_run(self)
                    program.executable.begin()
                    self.state.replaced(self._replaced)
                    results = program.give()
                    later = unread(checks, feeds, earlier, self.device)
                    if later is not None:
                        for result in results.values():
                            result._unread = later
                        if self.graph.states:
                            self.state.unread = later
                    mark = self.device.mark()
                    program.broken_off = False
                except Exception as error:  # noqa: BLE001 errors of user functions also become the launch's error
                    kept = stored(error)
                    failed = {p.name: Array._of(self.device, p.declared, None, kept) for p in program.outputs}
                    return Launch(failed, None, kept)
                debug.show_run(self, before)
                return Launch(results, mark, unread=later)
            finally:
                self._busy -= 1

    def _feed(self, program: Recorded, values: Sequence[Given]) -> None:
        program.begin()
        self.last_used, self._gone = self.options.room.now(), ""
        program.feed(values)

    def bind(self) -> Bound:
        """The program with its inputs and outputs in place, for runs that copy nothing.

        >>> bound = exe.bind()
        >>> x, y = bound.inputs["x"], bound.outputs["y"]  # NumPy arrays in the program's memory
        >>> x[...] = 1.0
        >>> bound.run()  # y holds the result
        """
        with self._lock:
            result = Bound(self)
            self._bound.add(result.run)
            return result

    def build_call(self, names: Sequence[str]) -> tuple[Call, int] | str:
        """The program as a call that is given its memory: the inputs' in the order of `names`, then the outputs'.

        Returns it with the bytes of its own memory, or the reason why it cannot be built. The caller closes it."""
        prepared = self._prepare()
        graph = prepared.graph
        if graph.params or graph.states or len(names) != len(graph.inputs):
            return "it has memory besides its arguments'"
        if len(visible(self.graph.outputs)) != len(self.graph.outputs):
            return "its indices are checked"
        plan = self._make_plan(prepared, names)
        for name, t in visible(self.graph.outputs).items():
            if graph.outputs[name].dtype != t.dtype:
                return f"its result {name!r} is stored as {graph.outputs[name].dtype}"
        if any(graph.inputs[n].dtype != t.dtype for n, t in self.graph.inputs.items()):
            return "an argument is stored in another dtype"
        segments = [*map(input_segment, names), *map(output_segment, visible(self.graph.outputs))]
        built = self.device.build_call(graph, plan, {}, self.options.build, segments)
        return built if isinstance(built, str) else (built, plan.total_bytes + built.own_bytes)

    def prepare(self) -> Self:
        """Allocates and records now instead of at the first run. Other programs of its State may run meanwhile."""
        with self._building:
            first = self._program is None
            if first:
                self._open()
                self._build()
        if first:
            debug.show_built(self)
        else:  # recording anew would close a program that another thread may be running
            with self._lock:
                self._ready()
        return self

    def clone(self) -> CompiledGraph:
        """A copy with its own arena and its own copy of the state, contents included; the weights stay shared.

        Only the valid rows of a state are copied; the others are zero."""
        return self._clone(self.options)

    def chosen_by(self, choices: Mapping[str, str] | None, *, timed: bool = False) -> CompiledGraph:
        """As `clone`, with these choices of algorithms; with `timed` each step of its runs is timed."""
        build = self.options.build._replace(choices=choices, timed=timed)
        return self._clone(self.options._replace(build=build, smaller=None))

    def _clone(self, options: CompileOptions) -> CompiledGraph:
        with self._lock:
            self._open()
            self._unchanged()
            resources = Resources()
            self._busy += 1  # so that the program does not give its memory to its copy
            try:
                with resources.unwound():
                    state = State(self.device)
                    resources.callback(state.close)
                    self.options.room.bind(state)
                    self.state.copy_to(state, self.graph.states)
                    twin = CompiledGraph(
                        self.graph, self.device, self.weights, state, options, self.donated,
                        self._prepared,
                    )
                    resources.callback(twin.close)
                    if self._program is not None and self._version == self.weights.version:
                        copy = twin._ready()
                        with self.weights.lock:  # so that no weight moves between the version check and the copy
                            if self._version == twin._version == self.weights.version:
                                self._program.arena.copy_into(copy.arena)
            finally:
                self._busy -= 1
            return twin

    def save(self, path: str | os.PathLike[str], *, weights: bool = True) -> None:
        """Writes the program to a file, whole or not at all, for `rlx.load_program` on the same kind of device.

        The file holds the optimized graph, the weights (with `weights=False` none: `load_program` is then given a
        store, or `set_param` sets them), what the states hold now, and compiled kernels.
        Raises: GraphError for weights not set, UnsupportedOp for a node of a user's own op, OSError."""
        from rlx.runtime.saved.program import save  # imported where it is used, not by `import rlx`

        with self._lock:
            self._open()
            self._unchanged()
            self._busy += 1  # so that it does not give its memory to another program
            try:
                if not self.weights.missing(list(self.graph.params)):
                    self._ready()
                with self.weights.lock:
                    prepared = self._prepare()
                    save(self, prepared, self._plan if self._program else self._make_plan(prepared), path, weights)
            finally:
                self._busy -= 1

    def close(self) -> None:
        """Frees the recording and the arena; the weights remain. Idempotent."""
        with self._lock, self._building:
            self._closed = True
            self._drop()

    # -- inspection

    @property
    def plan(self) -> MemoryPlan:
        """The memory plan: the slot of every tensor."""
        return self._plan

    @property
    def program(self) -> Graph:
        """The optimized graph that a run executes."""
        return self._prepare().graph

    @property
    def arena(self) -> DeviceArena:
        """The recorded program's memory."""
        with self._lock:
            return self._ready().arena

    @property
    def executable(self) -> Executable:
        """The backend's recorded program."""
        with self._lock:
            return self._ready().executable

    def value(self, tensor: Tensor) -> Any:
        """The value of a tensor of `program` after the last run; complete only with `planner="bump"`."""
        if tensor.graph is not self.program:
            raise GraphError(f"value: {tensor} is of graph {tensor.graph!r}; expected a tensor of `program`")
        with self._lock:
            ready = self._ready()
            self._still_there()
            raw = ready.arena.read_bytes(tensor.id, tensor.type.nbytes)
            # The CPU's compiled engine keeps some images with their channels last.
            lies = getattr(ready.executable, "channels_last", {}).get(tensor.id)
        array = on_host(tensor.type, raw)
        return array if lies is None else np.moveaxis(array.reshape(lies), -1, 1)

    def report(self) -> Report:
        """How each node runs: native, decomposed, host; and the memory plan."""
        from rlx.runtime.report import report_of

        with self._lock:
            program = self._ready()
            return report_of(program, self._prepare().decomposed, self.device.info.id, self.plan, self.weights)

    def timings(self) -> Timings:
        """The time of each step of the last run, with the bytes and operations of each; printing it shows a table,
        `save` writes a trace for Perfetto. A timed run waits for each of its pieces.

        Raises: UnsupportedOp unless it was compiled in `Session(..., timings=True)`; ArenaError before a run."""
        from rlx.runtime.timings import Timings

        steps = self.executable.timings(launches=True)
        device = tuple(step for step in steps if step.track != "launch")
        launches = tuple(step for step in steps if step.track == "launch")
        return Timings(self.device.info.id, device, launches)

    # -- stages

    def _prepare(self) -> Prepared:
        """The optimized graph for the current dtypes of the weights."""
        if self.graph._changes != self._changes:
            self._unchanged()
        declared = self.graph.params
        kept = {n: d for n, d in self.weights.dtypes().items() if n in declared and d != declared[n].dtype}
        if self._prepared is None or kept != self._prepared.param_dtypes:
            make = partial(self._optimized, kept)
            if len(self.graph.nodes) < _KEPT_NODES or self.options.build.debug:  # then each pass is verified, too
                self._prepared = make()
            else:
                from rlx.runtime.kept import prepared  # few programs are large

                self._prepared = prepared(self.graph, self.device, self.options, kept, make)
        return self._prepared

    def _optimized(self, param_dtypes: Mapping[str, DType]) -> Prepared:
        """The graph after the passes, with nodes repeated where that saves memory. Raises: GraphError for an invalid
        graph."""
        verify(self.graph)
        o = self.options
        report("optimizing")
        return self._with_repeats(prepare(
            self.graph, support=self.device.support, param_dtypes=param_dtypes, storage=o.storage,
            packed=self.device.info.packed, optimize=o.optimize, fallback=o.fallback, precision=o.build.precision,
            launches=self.device.info.kind != "cpu",
        ))  # fmt: skip

    def _with_repeats(self, prepared: Prepared) -> Prepared:
        """The graph with nodes recomputed to save memory, if it has a budget or a large arena; unchanged for the "bump"
        planner, which reuses no memory."""
        budget = self.graph.budget
        if self.options.planner != "reuse" or (budget is None and not self.options.optimize):
            return prepared

        def plan_of(graph: Graph) -> MemoryPlan:
            return self._make_plan(prepared._replace(graph=graph))

        plan = plan_of(prepared.graph)
        if budget is None and plan.arena_bytes < SPARED_BYTES:
            return prepared
        from rlx.driver.memory.planner import recompute, spare  # few programs need them

        if budget is not None:
            return prepared._replace(graph=recompute.fit(prepared.graph, budget, plan_of).graph)
        smaller = spare.spared(prepared.graph, plan, plan_of, _roomy(self.device.info, plan))
        return prepared._replace(graph=smaller)

    def _make_plan(self, prepared: Prepared, outside: Container[str] | None = None) -> MemoryPlan:
        """The plan of a prepared graph with weights and states at their current slots. The last one is cached."""
        wanted = None if outside is not None else self._planned_by(prepared)
        before: MemoryPlan | None = None
        if wanted is not None and self._last_plan is not None:
            (last, planner, slots), made = self._last_plan
            if last.graph is prepared.graph and planner == self.options.planner:
                if slots == wanted[2]:
                    return made
                before = made
        report("planning")
        limit = self.device.limits.max_alloc_bytes
        plan = planned(prepared.graph, self.options.planner, self.weights.find, self.state.find, limit, outside, before)
        if wanted is not None:
            self._last_plan = wanted, plan
        return plan

    def _planned_by(self, prepared: Prepared) -> tuple[Prepared, str, list[Slot | None]]:
        """What a plan depends on: the graph, the planner, and the current slots of weights and states."""
        graph = prepared.graph
        slots = [*map(self.weights.find, graph.params), *map(self.state.find, graph.states)]
        return prepared, self.options.planner, slots

    def _open(self) -> None:
        if self._closed:
            raise GraphError(f"the compiled graph {self.graph.name!r} is closed")
        if self.graph._changes != self._changes:
            self._unchanged()

    def _unchanged(self) -> None:
        if ports_of(self.graph) != self._ports:
            raise GraphError(
                f"graph {self.graph.name!r} was given other inputs, params, states or outputs after it was compiled; "
                "compile it again, or add to a copy of it (copy.deepcopy)"
            )

    def _drop(self, why: str = "the program was recorded anew since a weight changed; run it again first") -> None:
        program, self._program = self._program, None
        if program is not None:
            self._gone = why
            self.options.room.leave(self)
            program.close()

    @property
    def in_use(self) -> bool:
        """Whether it is running or bound: then it does not give its memory to other programs."""
        return self._busy > 0 or len(self._bound) > 0

    def give_way(self) -> bool:
        """Closes the recording until the next run, to give its memory to another program. Returns whether it could."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self.in_use or self._program is None:
                return False
            self._drop(
                "the program gave its memory to another of the session (memory_limit); run it again first, or bind() "
                "it, so that it does not give way"
            )
            return True
        finally:
            self._lock.release()

    def _still_there(self) -> None:
        """Raises: GraphError with the reason if the last run's outputs are gone because its recording was closed."""
        if self._gone:
            raise GraphError(f"the outputs of {self.graph.name!r} are gone: {self._gone}")

    def _let_go(self) -> None:
        """Closes the program if a weight has moved and it is not running; this frees the weights' old slots. It never
        waits for `_lock`, since the store that calls it holds its own lock."""
        if self._lock.acquire(blocking=False):
            try:
                if not self._busy and self._version != self.weights.version:
                    self._drop()
            finally:
                self._lock.release()

    def _keep(self, name: str, data: npt.ArrayLike, dtype: DTypeLike) -> None:
        """`set_param` called through the arena, which must stay open until the next run."""
        with self._lock:
            self._busy += 1
            try:
                self.set_param(name, data, dtype)
            finally:
                self._busy -= 1

    def _ready(self) -> Recorded:
        """The recorded program. Requires: the caller holds `_lock`."""
        self._open()
        if self._program is not None and self._version == self.weights.version:
            return self._program
        with self._building:
            result = self._build()
        debug.show_built(self)
        return result

    def _build(self) -> Recorded:
        """Records the program. Requires: the caller holds `_building`, and `_lock` too if it was recorded before."""
        self._unchanged()
        missing = self.weights.missing(list(self.graph.params))
        if missing:
            raise GraphError(
                f"graph {self.graph.name!r}: weights not set: {missing[:8]}; set_param sets them"
            )
        self._drop()
        with self.weights.lock:
            prepared = self._prepare()
            planned = self._planned_by(prepared)
            if planned[0] is not self._planned[0] or planned[1:] != self._planned[1:]:
                self._planned, self._plan = planned, self._make_plan(prepared)
            self._version = self.weights.version
        room = self.options.room
        self.last_used = room.now()
        room.admit(self, self._plan.total_bytes)  # called without a store's lock: other programs may give way
        failed: OutOfDeviceMemory | None = None
        result: Recorded | None = None
        with self.weights.lock:
            if self._version == self.weights.version:
                try:
                    result = Recorded(self, prepared, self._plan)
                except OutOfDeviceMemory as error:
                    failed = error  # others have taken the memory that was free when this was compiled
                except BaseException:
                    room.leave(self)
                    raise
        if result is None:
            room.leave(self)
            if failed is None or room.evict(self):
                return self._build()
            if self.options.smaller is not None:
                debug.say(f"RLX_DEBUG: results are not compared: {failed}")
                self.options = self.options.smaller
                return self._build()
            need = f"needs {self._plan.total_bytes:,} bytes now, and got an error: {failed}"
            raise out_of_memory(need, prepared.graph, self.graph.name, room) from failed
        self._program = result
        self._count_own(result)
        return result

    def _count_own(self, program: Recorded) -> None:
        """Counts the executable's memory beside the plan's. Raises: OutOfDeviceMemory if it does not fit."""
        own = program.own_bytes
        if own or self.options.room.limit is not None:  # weights reordered for its matrix products may be larger
            self._busy += 1
            try:
                self.options.room.admit(self, self._plan.total_bytes + own)
            except OutOfDeviceMemory:
                self._drop()
                raise
            finally:
                self._busy -= 1
