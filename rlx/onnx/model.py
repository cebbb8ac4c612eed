"""Model: a loaded ONNX model, compiled for the shapes of each run's inputs, and run on any device."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from rlx.driver.closing import Closing
from rlx.errors import ByteLimitExceeded, GraphError, ShapeError, StepLimitExceeded, UnsupportedOp, meant
from rlx.formats.files import shown
from rlx.host.locks import renewed
from rlx.host.other_attributes import explain
from rlx.host.progress import Listener, listening, report
from rlx.ir import Graph, TensorType
from rlx.ir.picture import listed, port_tables, table
from rlx.ir.values import is_foreign
from rlx.onnx.blocks import place_of
from rlx.onnx.buckets import Axes, at_lengths, axes_of, lengths_of, parted, shapes_but
from rlx.onnx.program import Built, Part
from rlx.onnx.program import Program as Program
from rlx.onnx.reader.budget import Budget, budget_of, building, check_limit, refused_memory
from rlx.onnx.reader.build import GraphBuilder
from rlx.onnx.reader.call import NeedsValues
from rlx.onnx.reader.dims import bound, check_bound, check_dims, given_shape, lengths_in, shape_of, symbols_of
from rlx.onnx.reader.draws import Sampler
from rlx.onnx.reader.elements import STRING, Array
from rlx.onnx.reader.infos import TensorInfo as TensorInfo
from rlx.onnx.reader.infos import fit, fits, info_of
from rlx.onnx.reader.lenient import departs, import_used, put_in_order
from rlx.onnx.reader.metadata import metadata_of
from rlx.onnx.reader.missing import missing_operators
from rlx.onnx.reader.patterns import F64, put_together
from rlx.onnx.reader.read import all_nodes, check_model, parse, reads, without_initializers
from rlx.onnx.reader.schemas import type_of
from rlx.onnx.reader.shared import share_weights
from rlx.onnx.reader.string_table import StringTable
from rlx.onnx.reader.structure import Structure, assembled, flattened
from rlx.onnx.reader.tensors import to_array
from rlx.onnx.stages.block import Block, infos
from rlx.onnx.stages.seen_lengths import SeenLengths
from rlx.onnx.stages.staged import Staged as Staged
from rlx.ops.pytree import is_array
from rlx.packed import PackedArray
from rlx.runtime import CompiledGraph, Session, Weights
from rlx.runtime.array import Array as DeviceArray
from rlx.runtime.buckets import Buckets, LengthReport
from rlx.runtime.dims import Dim, Otherwise
from rlx.runtime.launch import Launch
from rlx.runtime.outs import Out
from rlx.runtime.ports import by_name, refuse_traced
from rlx.runtime.report import Report
from rlx.runtime.session import Target, precision_for
from rlx.runtime.warm import warmed

if TYPE_CHECKING:
    from rlx.onnx.function import OnnxFunction
    from rlx.onnx.ready import Keeper

KEPT_PROGRAMS = 16  # how many programs a model keeps; the least recently used is closed first
KEPT_BUCKETS = 64  # how many programs of rounded lengths a model keeps after a cut, or where lengths are not bound
# An input that a shape depends on is compiled in as a constant if it has so few elements, for up to so many different
# values. Otherwise the graph is cut, and always before operators whose result's length depends on the data.
FEW_NUMBERS = 64
FEW_VALUES = 8
COUNTING = ("NonZero", "Compress", "Unique", "NonMaxSuppression")


class Model(Closing):
    """An ONNX model, made by `load`.

    `inputs` and `outputs` describe its ports, `defaults` the inputs that have a value in the file; `metadata` is what
    the file says of itself. `run` compiles once for each set of input shapes and keeps the latest
    programs; weights are on a device once. `dims` are the lengths that symbolic dimensions are bound to; those given as
    an rlx.Dim vary, and are run in buckets. `max_bytes` and `max_steps` limit the memory and the time of a program, as
    rlx.onnx.load says. Any thread may call. A `with`
    block closes it.
    """

    def __init__(
        self,
        source: Any,
        *,
        dims: Mapping[str, int | Dim] | None = None,
        threads: int | None = None,
        progress: Listener | None = None,
        strict: bool = False,
        max_bytes: int | None = None,
        max_steps: int | None = None,
        otherwise: Otherwise = "error",
    ) -> None:
        self.max_bytes = check_limit("max_bytes", max_bytes)
        self.max_steps = check_limit("max_steps", max_steps)
        self._strict = strict
        with listening(progress), refused_memory("reading the model"):
            self._read(source)
        self.defaults = [t for n, t in self._declared.items() if n in self._initializers]
        self._otherwise: Otherwise = otherwise
        self.bind({} if dims is None else dims)
        self._threads = threads
        self._progress = progress
        self._constants: dict[str, Array] = {}
        self._sessions: dict[tuple[Target, str], tuple[Session, Weights]] = {}
        self._around = self
        self.keeper: Keeper | None = None
        self._begin()

    def _begin(self) -> None:
        self._fixed: set[str] = set()
        self._values: set[Any] = set()  # the values of fixed inputs for which programs were compiled
        self._bakes = True
        self._seen: SeenLengths | None = None  # the lengths after a cut, while its programs may be padded
        self._blocks: dict[Any, Block] = {}  # the blocks after the cut, which programs of varying lengths share
        self._programs: OrderedDict[Any, Program | Staged] = OrderedDict()
        self._running: Counter[int] = Counter()  # the number of active runs, by the program's identity
        self._lock = renewed(self, "_lock", threading.RLock)

    def __repr__(self) -> str:
        inputs, outputs = (listed({t.name: t.typed_shape for t in ports}) for ports in (self.inputs, self.outputs))
        return f"Model({self._proto.graph.name!r}: {self._own:,} nodes, ({inputs}) -> ({outputs}))"

    def _repr_html_(self) -> str:
        """What notebooks show: the ports, and the numbers of nodes by operator."""
        kinds = Counter(n.op_type for part in (self._proto.graph, *self._proto.functions) for n in all_nodes(part.node))
        ports = {what: {t.name: t.typed_shape for t in infos}
                 for what, infos in (("inputs", self.inputs), ("outputs", self.outputs))}  # fmt: skip
        counts = table(["operator", "nodes"], ((op, f"{n:,}") for op, n in kinds.most_common()))
        return f"<div>{port_tables(ports)}{counts}</div>"

    def _read(self, source: Any) -> None:
        report("reading")
        blocks: dict[int, memoryview] = {}  # long initializers; protobuf's copies would take most of the time
        model, self._folder = parse(source, blocks)
        self._proto = without_initializers(model)
        put_in_order(self._proto)
        import_used(self._proto, self._strict)
        check_model(self._proto, model)
        self.metadata = metadata_of(model)
        graph = model.graph
        unsupported = missing_operators(self._proto)
        if unsupported:
            raise UnsupportedOp(
                f"{len(unsupported)} of this model's operators are not in rlx: {'; '.join(unsupported)}"
            )
        self._initializers: dict[str, Array] = {}
        self._scales: dict[str, F64] = {}  # scales of weights with a normalization folded in, by label
        self.places: dict[str, tuple[int, int]] = {}  # offset in the file and bytes of long initializers
        for done, i in enumerate(graph.initializer):
            report("reading", done, len(graph.initializer))
            if done in blocks:
                self.places[i.name] = place_of(blocks[done])
            self._initializers[i.name] = to_array(
                i, f"initializer {shown(i.name)}", self._folder, blocks.get(done)
            )
        self._declared = {i.name: info_of(i, fed=True) for i in graph.input}
        parts = (graph, *model.functions)
        self._own = sum(1 for part in parts for _ in all_nodes(part.node))
        self._multiplies = any(n.op_type in ("MatMul", "Gemm", "Conv") for n in graph.node)
        self._held = sum(a.nbytes for a in self._initializers.values()) + int(self._proto.ByteSize())

    def bind(self, dims: Mapping[str, int | Dim]) -> None:
        """Binds symbolic dimensions to lengths, or says between which lengths they vary, in place of what was bound
        before. Raises: GraphError, ShapeError."""
        self.dims, self._varying = parted(dims, self._declared.values())
        self._axes: Axes = axes_of(self._declared)
        # Programs for each length of a dimension that is neither bound nor declared would be without end.
        named = {*self.dims, *self._varying}
        free = any(not isinstance(d, int) and d not in named for axes in self._axes.values() for d in axes)
        self._buckets: Buckets[tuple[Program, GraphBuilder]] = Buckets(
            "the model", tuple(self._varying.values()), self._otherwise, KEPT_BUCKETS if free else None
        )
        self.inputs = [bound(t, self.dims) for n, t in self._declared.items() if n not in self._initializers]
        self.outputs = [bound(info_of(o), self.dims) for o in self._proto.graph.output]

    def run(
        self, inputs: Mapping[str, Any] | None = None, device: Target = "auto", precision: str | None = None,
        out: Out = "host",
    ) -> dict[str, Any]:
        """Outputs by name for arrays by name; NumPy scalars and lists are arrays too. A sequence is a list of arrays,
        an empty optional None. rlx.Arrays of the device are fed without the host, and `out="device"` gives them.

        `device` is a name, or an rlx.Session, whose options then apply in place of `precision` and the model's
        `threads`: models that are run in one session share its `memory_limit`.

        Raises: GraphError for names, DTypeError and ShapeError for arrays that do not fit the declaration,
        ModelFormatError for a model that contradicts itself, UnsupportedOp.
        """
        if isinstance(device, Mapping):
            raise GraphError(
                "run: the inputs come first, and every output is given: model.run({name: array})[output]; "
                "rlx.onnx.InferenceSession takes the outputs' names before them"
            )
        precision = precision_for(device, precision)
        return self.run_part(self.accept({} if inputs is None else inputs), device, precision, [], out)

    def __call__(
        self, *args: Any, device: Target = "auto", precision: str | None = None, out: Out = "host", **inputs: Any
    ) -> Any:
        """A run on inputs in the order in which the model declares them, or by name: `model(x)`, `model(ids, mask=m)`.
        Returns the only output as it is, several as a dict by name. Options and errors: as `run`."""
        names = [t.name for t in self.inputs if t.name not in inputs]
        results = self.run(by_name("the model", names, args, inputs), device, precision, out)
        return next(iter(results.values())) if len(results) == 1 else results

    def launch(
        self, inputs: Mapping[str, Any] | None = None, device: Target = "auto", precision: str | None = None
    ) -> Launch[dict[str, Any]]:
        """Begins a run and returns while the device is at work, as `CompiledGraph.launch` does; arguments and results
        as in `run` with `out="device"`.

        It waits where a model is cut, since nodes run on the host between its programs, and for results of a type that
        rlx does not have. Raises: as `run`; GraphError for a dimension that varies."""
        arrays, precision = self.accept({} if inputs is None else inputs), precision_for(device, precision)
        with self._used(arrays, device, precision) as (program, _):
            if not isinstance(program, Staged):
                return program.launch(arrays)
            leaves, nests = flattened(program.run_in(arrays, [], None, "device"), ())
            feeds: dict[str, Any] = dict(leaves)
            held = {n: a for n, a in feeds.items() if isinstance(a, DeviceArray)}

            def arrange(results: Mapping[str, Any]) -> dict[str, Any]:
                return {n: assembled(nest, {**feeds, **results}.__getitem__) for n, nest in nests.items()}

            return Launch(held, None, arrange=arrange)

    @contextmanager
    def _used(
        self, arrays: Mapping[str, Any], device: Target, precision: str
    ) -> Iterator[tuple[Program | Staged, float | None]]:
        """Holds the program for accepted inputs open. Yields: it, and the seconds of compiling it, None if it was
        compiled before."""
        begin = time.perf_counter()
        with self._lock:
            program, new = self._program(*flattened(arrays, self._declared), device, precision)
            self._running[id(program)] += 1
        try:
            yield program, time.perf_counter() - begin if new else None
        finally:
            with self._lock:
                self._running[id(program)] -= 1
                self._drop(program)

    def prepare(self, inputs: Mapping[str, Any], device: Target, precision: str) -> None:
        """Compiles the program for inputs of these types, where there is none. Raises: as run."""
        with self._used(self.accept(inputs), device, precision):
            pass

    def run_part(
        self, arrays: Mapping[str, Any], device: Target, precision: str, parts: list[Part], out: Out = "host"
    ) -> dict[str, Any]:
        """The outputs for accepted inputs; adds to `parts` what was run."""
        with self._used(arrays, device, precision) as (program, compiled):
            if isinstance(program, Staged):
                return program.run_in(arrays, parts, compiled, out)
            start = time.perf_counter()
            result = program.run(arrays, out)
            parts.append(program.part(time.perf_counter() - start, compiled))
            if compiled is not None and self.keeper is not None:
                self.keeper.keep(program, self.session(device, precision)[0], arrays, self._initializers, self._scales)
            return result

    def compile(
        self, shapes: Mapping[str, Sequence[int]] | None = None, values: Mapping[str, Any] | None = None, *,
        dims: Mapping[str, int] | None = None, device: Target = "auto", precision: str | None = None,
    ) -> Program | Staged:  # fmt: skip
        """The model compiled ahead, and recorded on the device. `shapes` are those of its inputs: a list of shapes for
        a sequence, None for an empty optional. Inputs left out have their declared shapes, with the symbols' lengths
        from `dims`. `values` are the values of inputs on which shapes depend.

        Raises: as run; GraphError naming the dimension whose length, or the inputs whose values, are needed.
        """
        precision = precision_for(device, precision)
        lengths = {**self.dims, **check_dims(dims or {}, self._declared.values())}
        fixed = self.accept({} if values is None else values, partly=True, dims=lengths)
        shapes_by_name = dict(self._by_name({} if shapes is None else shapes, "shapes"))
        symbols = {*symbols_of(self.inputs)} - {*self._declared}
        if shapes_by_name and shapes_by_name.keys() <= symbols:
            raise GraphError(f"compile: lengths of dimensions are given as dims={shapes_by_name}")
        for name, shape in shapes_by_name.items():
            lengths = {**lengths_in(self._info(name), shape), **lengths}
        for info in self.inputs:
            if info.name not in shapes_by_name and info.name not in fixed:
                shapes_by_name[info.name] = shape_of(info, lengths)
        shaped = {name: _of_shape(self._info(name), shape) for name, shape in shapes_by_name.items()}
        leaves, nests = flattened(self.accept({**shaped, **fixed}, dims=lengths), self._declared)
        try:
            given_values = flattened(fixed, self._declared)[0]
            return self._compile(leaves, nests, given_values, device, precision, self._cuts(leaves))
        except NeedsValues as need:
            raise GraphError(
                f"compile: the values of the inputs {sorted(need.names)} are needed, since {need.what}"
            ) from need

    @property
    def operators(self) -> Counter[str]:
        """How often each operator occurs in the graph itself, without the nodes of functions."""
        nodes = self._proto.graph.node
        return Counter(f"{n.domain}::{n.op_type}" if n.domain else str(n.op_type) for n in nodes)

    def function(self, dims: Mapping[str, int] | None = None) -> tuple[OnnxFunction, dict[str, Array]]:
        """(function, weights) of the model, to differentiate and to train: as `rlx.models.trainable` of its file.

        Raises: as `OnnxFunction`."""
        from rlx.onnx.function import OnnxFunction  # few programs call a model within a function

        return OnnxFunction.of(self, dims or {})

    @property
    def weights(self) -> dict[str, Array]:
        """The initializers by name; not to be written to."""
        return dict(self._initializers)

    @property
    def programs(self) -> list[Program | Staged]:
        """The programs compiled so far, the latest used last."""
        with self._lock:
            return list(self._programs.values())

    # -- inputs

    def _info(self, name: str) -> TensorInfo:
        if name not in self._declared:
            known = [i.name for i in self.inputs]
            raise GraphError(f"the model has no input {name!r}; it takes {known}{meant(name, known)}")
        return self._declared[name]

    def _by_name(self, values: Any, what: str) -> Mapping[str, Any]:
        if not isinstance(values, Mapping):
            names = [i.name for i in self.inputs]
            raise GraphError(
                f"the {what} came as a {type(values).__name__}; expected a dict by name, of {names}"
            )
        return values

    def accept(
        self, given: Mapping[str, Any], partly: bool = False, dims: Mapping[str, int] | None = None
    ) -> dict[str, Any]:
        """The inputs as arrays, and lists of them, that fit the declaration and `dims`, by default the model's.

        Raises: GraphError, DTypeError, ShapeError."""
        if len(self.inputs) == 1 and (is_array(given) or is_foreign(given)):
            given = {self.inputs[0].name: given}
        for name in self._by_name(given, "inputs"):
            self._info(name)
        missing = [i.name for i in self.inputs if i.name not in given]
        if missing and not partly:
            raise GraphError(
                f"the inputs {missing} are missing; the model takes {[i.name for i in self.inputs]}"
            )
        symbols: dict[str, int] = {}
        result = {}
        for name, value in given.items():
            info = self._info(name)
            refuse_traced(f"input {name!r}", value)
            result[name] = fit(info, value, symbols, self._strict)
            check_bound(info, result[name], self.dims if dims is None else dims)
        return result

    # -- programs

    def _program(
        self, arrays: Mapping[str, Array], nests: Mapping[str, Structure], device: Target, precision: str
    ) -> tuple[Program | Staged, bool]:
        """The program for these inputs, and whether it was compiled now. The graph is cut where a shape depends on
        values; inputs of few elements are compiled in as constants instead."""
        if self._seen is not None and self._seen.add(arrays):
            self._axes, self._varying = self._seen.dims()
            self._buckets = Buckets("the rest of the model", tuple(self._varying.values()), kept=KEPT_BUCKETS)
        while True:
            fixed = self._constant_inputs(arrays)
            types = tuple((n, a.shape, a.dtype.name) for n, a in sorted(arrays.items()))
            shape = repr(sorted(nests.items()))
            values = tuple(_key(a) for a in fixed.values())
            key = (device, precision, shape, types, values)
            if key in self._programs:
                self._programs.move_to_end(key)
                return self._programs[key], False
            if values:
                self._values.add(values)
            if len(self._values) > FEW_VALUES and self._bakes:
                self._bakes = False  # the values vary from run to run: from now on the graph is cut there too
                self._fixed.clear()
                continue
            try:
                if not self._varying:
                    program, new = self._exact(arrays, nests, fixed, device, precision), True
                elif self._seen is None:
                    program, new = self._fitted(arrays, nests, fixed, device, precision)
                else:
                    program, new = self._rounded(arrays, nests, fixed, device, precision)
            except NeedsValues as need:
                if self._varying and self._seen is None and (need.local or need.names <= self._fixed):
                    raise UnsupportedOp(
                        f"{need.what} depends on values; a model that is cut there has no buckets: leave dims out"
                    ) from need
                self._fixed |= need.names
                continue
            self._programs[key] = program
            while len(self._programs) > KEPT_PROGRAMS:
                self._drop(self._programs.popitem(last=False)[1])
            return program, new

    def _constant_inputs(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """The inputs whose values are compiled in: those for which some run needed it, if they are small in this."""
        names = sorted(n for n in self._fixed & set(arrays) if arrays[n].size <= FEW_NUMBERS)
        return {n: np.asarray(arrays[n]) for n in names}

    def _cuts(self, arrays: Mapping[str, Array]) -> Callable[[NeedsValues, Any], bool]:
        """The rule that says whether the graph is cut before a node that needs a value (else the inputs that the value
        depends on become constants)."""

        def cuts(need: NeedsValues, node: Any) -> bool:
            few = sum(arrays[n].size for n in need.names) <= FEW_NUMBERS
            return need.local or not self._bakes or not few or node.op_type in COUNTING

        return cuts

    def built(self, inputs: Mapping[str, Any]) -> Built:
        """The graph that `run` compiles for these inputs. Raises: as run."""
        arrays, nests = flattened(self.accept(inputs), self._declared)
        with self._lock, listening(self._progress), refused_memory("building the model"):
            while True:
                fixed = self._constant_inputs(arrays)
                try:
                    graph, weights, builder = self._build(arrays, nests, fixed, self._cuts(arrays))
                except NeedsValues as need:
                    self._fixed |= need.names
                    continue
                words, drawn = StringTable(builder.known.words), Sampler(builder.known.draws.wanted)()
                feeds = {n: words.to_carrier(arrays[n]) for n in graph.inputs if n not in drawn}
                return Built(graph, weights, feeds | drawn, fixed, builder, self.budget(arrays))

    def _drop(self, program: Program | Staged) -> None:
        """Closes a program that the cache no longer holds, once no run of it is active."""
        if not self._running[id(program)]:
            del self._running[id(program)]
            if all(p is not program for p in self._programs.values()):
                program.close()

    def close(self) -> None:
        """Frees the programs and the weights on every device; the model can be run again, and is then compiled anew.
        Programs made by `compile` must be closed before, and no run may be active."""
        with self._lock:
            for program in self._programs.values():
                program.close()
            self._programs.clear()
            self._buckets.close()
            for block in self._blocks.values():
                block.close()
            self._blocks.clear()
            if self._around is not self:  # the sessions are the whole model's
                return
            for _, weights in self._sessions.values():
                weights.close()
            self._sessions.clear()

    def build(
        self, arrays: Mapping[str, Array], fixed: Mapping[str, Array], nests: Mapping[str, Structure] | None = None,
        cuts: Callable[[NeedsValues, Any], bool] | None = None,
    ) -> tuple[Graph, GraphBuilder]:  # fmt: skip
        """The rlx graph for tensors of these shapes, those in `fixed` as constants, and its builder, which knows the
        outputs. `nests` says which tensors each input consists of; without it, each tensor is an input. `cuts` says
        where the graph ends before a node that asks for a value.

        Raises: NeedsValues, ModelFormatError, UnsupportedOp.
        """
        limit = self._own + self.budget(arrays).written_out(self._own)
        builder = GraphBuilder(self._proto, self._initializers, self._folder, self._own, limit, self._strict)
        graph = builder.build(
            {n: fixed[n] if n in fixed else type_of(a) for n, a in arrays.items()},
            {n: a.dtype for n, a in arrays.items()},
            {n: n for n in arrays} if nests is None else nests,
            self._constants,
            cuts,
        )
        for info in self.outputs:
            structure = builder.outputs.get(info.name)
            if isinstance(structure, str):
                self._fits(info, graph.outputs[structure].shape)
        return graph, builder

    def as_graph(self, types: Mapping[str, TensorType]) -> tuple[Graph, dict[str, str]]:
        """The graph for tensors of these types, in place of inputs and of initializers, and the names in it of the
        model's outputs. Raises: NeedsValues where it depends on values of tensors; UnsupportedOp for random numbers,
        and for outputs that are no tensors."""
        nbytes = sum(t.nbytes for t in types.values())
        budget = budget_of(self.max_bytes, self.max_steps, nbytes, self._held, self._own)
        limit = self._own + budget.written_out(self._own)
        builder = GraphBuilder(self._proto, self._initializers, self._folder, self._own, limit, self._strict)
        with building(budget), refused_memory("building the model"):
            graph = builder.build(types, {n: t.dtype.np for n, t in types.items()}, {n: n for n in types})
        if builder.known.draws.wanted:
            raise UnsupportedOp(f"{self!r} draws random numbers, which a function of its inputs does not")
        names = {}
        for info in self.outputs:
            made = builder.outputs.get(info.name)
            if not isinstance(made, str):
                raise UnsupportedOp(f"output {info.name!r} is {info.type}; a function gives tensors")
            names[info.name] = made
        return graph, names

    def _fits(self, info: TensorInfo, shape: Sequence[int]) -> None:
        if info.shape is not None and not fits(shape, info.shape):
            departs(
                f"output {shown(info.name)}: is declared {list(info.shape)}, but comes out {tuple(shape)}",
                "takes it so", self._strict,
            )  # fmt: skip

    def _check(self, results: Mapping[str, Any]) -> None:
        """Checks the results of a model that is cut against their declarations."""
        for info in self.outputs:
            if isinstance(results[info.name], np.ndarray):
                self._fits(info, results[info.name].shape)

    def _compile(
        self, arrays: Mapping[str, Array], nests: Mapping[str, Structure], fixed: Mapping[str, Array], device: Target,
        precision: str, cuts: Callable[[NeedsValues, Any], bool] | None = None,
    ) -> Program | Staged:  # fmt: skip
        with listening(self._progress), refused_memory("compiling the model"):
            budget = self.budget(arrays)
            with warmed(self._around.session(device, precision)[0].device, self._multiplies):
                graph, held, builder = self._build(arrays, nests, fixed, cuts, packs=True)
            compiled = self._loaded(graph, held, budget, device, precision)
        program = Program(compiled, nests, fixed, builder, budget.steps, self._progress)
        return self._staged(program, builder, budget, device, precision, None) if builder.later else program

    def _staged(
        self, program: Program, builder: GraphBuilder, budget: Budget, device: Target, precision: str,
        shared: dict[Any, Block] | None,
    ) -> Staged:  # fmt: skip
        """The program with the nodes after its cut. Blocks in `shared` serve the programs of several lengths."""
        nodes = [self._proto.graph.node[k] for k in builder.later]
        read = {name for node in nodes for name in reads(node)}
        constants = {n: self._initializers[n] for n in read if n in self._initializers}
        constants |= {n: a for n, a in self._constants.items() if n in read} | builder.constants
        asking = [k for k, asks in enumerate(builder.later.values()) if asks]
        wanted = [o.name for o in self._proto.graph.output]
        key = (device, precision, *builder.later.items())
        block = None if shared is None else shared.get(key)
        if block is None:
            block = Block(self, nodes, dict.fromkeys(wanted), device, precision, constants, asking)
            if shared is not None:
                shared[key] = block
        else:  # equal arrays become the block's own, since it tells its constants by identity
            known = block.constants
            constants = {n: known[n] if n in known and _key(known[n]) == _key(a) else a for n, a in constants.items()}
        run = Budget(budget.nbytes, budget.steps, budget.steps + len(nodes))
        return Staged(program, block, builder.kinds, constants, wanted, run, self._check, shared is None)

    def session(self, device: Target, precision: str) -> tuple[Session, Weights]:
        """The session for a device and the weights there, which all programs share."""
        with self._lock:
            if (device, precision) not in self._sessions:
                if isinstance(device, Session):
                    session = device
                else:
                    session = Session(device, precision=precision, threads=self._threads)
                self._sessions[device, precision] = (session, Weights(session.device))
            return self._sessions[device, precision]

    def rest(
        self, nodes: Sequence[Any], kinds: Mapping[str, str], wanted: Sequence[str], constants: Mapping[str, Array]
    ) -> Model:
        """A model of these nodes, from after a cut, for inputs of these types. It has programs of its own, which share
        this model's weights."""
        result = Model.__new__(Model)
        for name in (
            "max_bytes", "max_steps", "_folder", "_initializers", "_own", "_held", "_multiplies", "_threads",
            "_progress", "_strict", "_scales",
        ):  # fmt: skip
            setattr(result, name, getattr(self, name))
        result._proto = onnx.ModelProto()
        result._proto.CopyFrom(self._proto)
        del result._proto.graph.node[:], result._proto.graph.input[:], result._proto.graph.output[:]
        result._proto.graph.node.extend(nodes)
        result._proto.graph.input.extend(infos(kinds))
        result._proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted)
        result._declared = {i.name: info_of(i, fed=True) for i in result._proto.graph.input}
        result.dims, result.inputs, result.outputs = {}, list(result._declared.values()), []
        result._varying, result._axes, result._buckets = {}, {}, Buckets("the rest of the model", ())
        result._constants = dict(constants)
        result._around, result._sessions, result.keeper = self._around, {}, None
        result._begin()
        result._seen = SeenLengths()
        return result

    def reports(self) -> list[Report]:
        """The report of each program; those of several lengths may be one."""
        return [program.report() for program in {id(p.graph): p for p in self.programs}.values()]

    def _loaded(
        self, graph: Graph, held: Mapping[str, Array | PackedArray], budget: Budget, device: Target, precision: str
    ) -> CompiledGraph:
        """The graph compiled and recorded, with its weights on the device."""
        session, weights = self._around.session(device, precision)
        compiled = session.compile(graph, weights=weights)
        budget.hold(compiled)
        missing = weights.missing(list(held))
        for done, name in enumerate(missing):
            report("weights", done, len(missing))
            weights.set(name, held[name])
        if self.keeper is not None:
            self.keeper.compare(weights, {name: value for name, value in held.items() if name not in missing})
        return compiled.prepare()

    def _exact(
        self, arrays: Mapping[str, Array], nests: Mapping[str, Structure], fixed: Mapping[str, Array], device: Target,
        precision: str,
    ) -> Program | Staged:  # fmt: skip
        return self._compile(arrays, nests, fixed, device, precision, self._cuts(arrays))

    def _rounded(
        self, arrays: Mapping[str, Array], nests: Mapping[str, Structure], fixed: Mapping[str, Array], device: Target,
        precision: str,
    ) -> tuple[Program | Staged, bool]:  # fmt: skip
        """The program after a cut for varying lengths: that of their bucket; if it cannot be padded, that of the exact
        lengths, now and in all later runs. So nothing is refused that works with exact lengths."""
        if 0 not in (n for a in arrays.values() for n in a.shape):
            try:
                return self._fitted(arrays, nests, fixed, device, precision, self._cuts(arrays))
            except (UnsupportedOp, ByteLimitExceeded, StepLimitExceeded):
                self._seen, self._varying = None, {}
        return self._exact(arrays, nests, fixed, device, precision), True

    def _fitted(
        self, arrays: Mapping[str, Array], nests: Mapping[str, Structure], fixed: Mapping[str, Array], device: Target,
        precision: str, cuts: Callable[[NeedsValues, Any], bool] | None = None,
    ) -> tuple[Program | Staged, bool]:  # fmt: skip
        """The program of the bucket that holds the lengths of these inputs, and whether it was compiled now."""
        dims, axes = self._varying, self._axes
        lengths = lengths_of(arrays, axes, dims)
        sizes = tuple(d.bucket(n) for d, n in zip(dims.values(), lengths, strict=True))
        budget = self.budget(at_lengths(arrays, axes, dims, sizes))
        new = False

        def build(at: tuple[int, ...]) -> tuple[Graph, tuple[Program, GraphBuilder]]:
            arrays_here = at_lengths(arrays, axes, dims, at)
            with building(budget):
                graph, builder = self.build(arrays_here, fixed, nests, cuts)
            program = Program(None, nests, fixed, builder, budget.steps, self._progress)
            return put_together(graph, self._scales), (program, builder)

        def compile(graph: Graph, _: object) -> CompiledGraph:
            nonlocal new
            new = True
            with building(budget):
                program, held = share_weights(graph)
            budget.check_few(program, self._own)
            return self._loaded(program, held, budget, device, precision)

        shapes = shapes_but(arrays, axes, dims)
        types = tuple((n, shapes[n], a.dtype.name) for n, a in sorted(arrays.items()))
        key = (device, precision, repr(sorted(nests.items())), types, tuple((n, _key(a)) for n, a in fixed.items()))
        with listening(self._progress), refused_memory("compiling the model"):
            fitted, (program, builder) = self._buckets.program(key, lengths, build, compile)
        program.fit(fitted)
        if builder.later:
            return self._staged(program, builder, budget, device, precision, self._blocks), new
        return program, new

    def lengths(self) -> LengthReport:
        """The programs for the buckets of dimensions given as an rlx.Dim: how often each ran, and what the padding
        cost. Raises: GraphError where no dimension varies."""
        if not self._varying:
            raise GraphError("lengths counts the buckets of dimensions that dims gives as an rlx.Dim; it gives none")
        return self._buckets.report()

    def budget(self, arrays: Mapping[str, Array]) -> Budget:
        """The limits of memory and time for a program with these inputs."""
        inputs = sum(a.nbytes for a in arrays.values())
        return budget_of(self.max_bytes, self.max_steps, inputs, self._held, self._own)

    def _build(
        self, arrays: Mapping[str, Array], nests: Mapping[str, Structure], fixed: Mapping[str, Array],
        cuts: Callable[[NeedsValues, Any], bool] | None = None, packs: bool = False,
    ) -> tuple[Graph, dict[str, Array | PackedArray], GraphBuilder]:  # fmt: skip
        """The graph to compile, with large constants as parameters, and their values; with `packs` the small tensors
        that the host reads after a cut are joined into few outputs."""
        budget = self.budget(arrays)
        with building(budget):
            graph, builder = self.build(arrays, fixed, nests, cuts)
            if packs and builder.later:
                builder.pack()
            report("optimizing")
            shared, weights = share_weights(put_together(graph, self._scales))
        budget.check_few(shared, self._own)
        return shared, weights, builder


explain(Model)


def _of_shape(info: TensorInfo, shape: Any, around: int = 0) -> Any:
    """Placeholder arrays of these shapes that take no memory: only their types are used."""
    if around < len(info.around):
        if shape is None and info.around[around] == "optional":
            return None
        if info.around[around] == "seq":
            if not isinstance(shape, list | tuple):
                raise ShapeError(
                    f"input {info.name!r}: {shape!r} came; expected a list of shapes, for {info.type}"
                )
            return [_of_shape(info, s, around + 1) for s in shape]
        return _of_shape(info, shape, around + 1)
    dtype = info.dtype if info.dtype is not None else np.dtype(np.float32)
    one = np.array("", dtype) if dtype == STRING else np.zeros((), dtype)
    return np.broadcast_to(one, given_shape(info, shape))


def _key(array: Array) -> tuple[Any, ...]:
    raw = repr(array.tolist()).encode() if array.dtype == STRING else np.ascontiguousarray(array).tobytes()
    return array.shape, array.dtype.name, hashlib.blake2b(raw, digest_size=16).digest()
