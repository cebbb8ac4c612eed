"""The nodes after a cut: the host runs them one by one; from the first large node on, the rest is a model of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Container, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnx

from rlx.errors import ModelFormatError, ShapeError, UnsupportedOp
from rlx.host.locks import renewed
from rlx.ir import Graph, Tensor
from rlx.onnx.program import Part
from rlx.onnx.reader.build import Frame, GraphBuilder
from rlx.onnx.reader.call import NeedsValues, Value, constant
from rlx.onnx.reader.draws import Draw, Draws, generator_of, numbers
from rlx.onnx.reader.elements import NAMES, Array, element
from rlx.onnx.reader.held import Held
from rlx.onnx.reader.read import called, label_of, node_name, reads, subgraphs
from rlx.onnx.reader.schemas import schema_of
from rlx.onnx.reader.structure import assembled, flattened, held, proto_of, structure_of
from rlx.onnx.reader.tensors import to_array
from rlx.onnx.stages.counts import COUNTS, Count, array_of, count_of, is_count, shape_of
from rlx.onnx.stages.operators import FUNCTIONS
from rlx.onnx.stages.picked import PICKS, Picked, picked
from rlx.onnx.stages.rows import find_rows
from rlx.ops.control.steps import spend
from rlx.runtime.array import Array as DeviceArray
from rlx.runtime.report import Report
from rlx.runtime.session import Target

# A node that reads this many bytes, inputs and weights, begins a program: the first for a layer, the second for others.
LAYER = 1 << 16
LARGE = 1 << 24
_LAYERS = (
    "Conv",
    "MatMul",
    "Gemm",
    "Attention",
    "LSTM",
    "GRU",
    "RNN",
    "Einsum",
    "Roi",
    "GridSample",
    "Resize",
)
_Attribute = onnx.AttributeProto
_I64 = np.dtype(np.int64)


class Values(dict[str, Any]):
    """The values of a run by name: arrays, counts (`counts.py`) in place of a few integers, arrays that are not yet
    made (`picked.py`), lists of arrays, None for an empty optional. `kinds` has the types of those that are no tensors,
    `parts` what ran so far."""

    def __init__(self, values: Mapping[str, Any], kinds: Mapping[str, str], parts: list[Part]) -> None:
        super().__init__(values)
        self.kinds = dict(kinds)
        self.parts = parts

    def inner(self) -> Values:
        """A copy for the graph of a node, whose names do not leave it."""
        return Values(self, self.kinds, self.parts)

    def kind(self, name: str) -> str:
        """The type of a value, as ONNX writes it."""
        value = self[name]
        if is_count(value):
            return NAMES[_I64]
        dtype = value.dtype.np if isinstance(value, DeviceArray) else getattr(value, "dtype", None)
        return self.kinds.get(name) or NAMES[dtype]

    def made(self, name: str) -> Any:
        """A value as an array, where it is one, of the host or of the device."""
        result = self[name]
        if is_count(result):
            result = self[name] = array_of(result)
        elif type(result) is Picked:
            result = self[name] = result.array()
        return result

    def host(self, name: str) -> Any:
        """A value on the host as NumPy's array, read from the device once."""
        result = self[name]
        if type(result) is not np.ndarray:
            result = self.made(name)
            if isinstance(result, DeviceArray | list):
                result = self[name] = _hosted(result)
        return result


def _hosted(value: Any) -> Any:
    if isinstance(value, list):
        return [_hosted(v) for v in value]
    return np.asarray(value) if isinstance(value, DeviceArray) else value


def _fed(value: Any) -> Any:
    """A value as an input of a model, which asks for its shape and NumPy's dtype."""
    if isinstance(value, list):
        return [_fed(v) for v in value]
    return Held(value) if isinstance(value, DeviceArray) else value


class Rest(Protocol):
    """A model of the nodes from one on."""

    def run_part(
        self, arrays: Mapping[str, Any], device: Target, precision: str, parts: list[Part]
    ) -> dict[str, Any]: ...

    def close(self) -> None: ...

    def reports(self) -> list[Report]: ...


class Around(Protocol):
    """The model that a block belongs to."""

    _proto: Any
    _folder: Any
    _own: int
    _strict: bool

    def rest(
        self,
        nodes: Sequence[Any],
        kinds: Mapping[str, str],
        wanted: Sequence[str],
        constants: Mapping[str, Array],
    ) -> Rest: ...


class _Drawn(Draws):
    """Random numbers drawn while a node is run; its next run continues the same generators."""

    def __init__(self, generators: list[np.random.Generator]) -> None:
        super().__init__()
        self._generators = generators
        self._next = 0

    def add(self, graph: Graph, draw: Draw, where: str) -> Tensor:
        super().count(draw, where)
        if self._next == len(self._generators):
            self._generators.append(generator_of(draw.seed))
        self._next += 1
        return constant(graph, numbers(self._generators[self._next - 1], draw))


class Step:
    """A node as the host runs it. `asks`: it needs the value of a tensor, so it cannot be in a program."""

    def __init__(self, model: Around, node: Any, index: int, imports: Mapping[str, int], asks: bool) -> None:
        self.node = node
        self.kind = str(node.op_type)
        self.where = node_name(node, index)
        self.inputs = tuple(node.input)
        self.outputs = tuple(node.output)
        self.n_outputs = len(self.outputs)
        self.reads = sorted(reads(node))
        self.asks = asks
        self.label = label_of(node, 0)
        self.generators: list[np.random.Generator] = []
        self.blocks: dict[str, Block] = {}
        self.attrs: dict[str, Any] = {}
        domain = "" if node.domain == "ai.onnx" else node.domain
        schema = schema_of(domain, node.op_type, imports.get(domain, 0))
        self.version = 0 if schema is None else int(schema.since_version)
        own = {called(f) for f in model._proto.functions}
        self.plain = not domain and schema is not None and called(node) not in own
        self.layer = any(word in self.kind for word in _LAYERS)
        known = self.plain and self.kind in FUNCTIONS and self._read(model, schema)
        self.function = FUNCTIONS[self.kind] if known else None
        self.count = COUNTS.get(self.kind) if known and self.n_outputs == 1 else None
        self.known: tuple[tuple[str, Any, Count | None], ...] = ()  # each input's name, constant, its count
        self.picks = known and self.kind in PICKS
        self.twin: Step | None = None  # an earlier node of the same kind, attributes and inputs
        # For each output, how many of its first rows are read (None: all); a node need not compute more.
        self.rows: tuple[int | None, ...] = (None,) * self.n_outputs

    def _read(self, model: Around, schema: Any) -> bool:
        """Reads the attributes that a function may ask for. Returns: whether there are no others, nor any fault that
        the builder would report."""
        if not schema.min_output <= self.n_outputs <= schema.max_output:
            return False
        for a in self.node.attribute:
            declared = schema.attributes.get(a.name)
            if a.ref_attr_name or declared is None or int(declared.type.value) != a.type:
                return False
            if a.type == _Attribute.INT:
                self.attrs[a.name] = int(a.i)
            elif a.type == _Attribute.INTS:
                self.attrs[a.name] = [int(v) for v in a.ints]
            elif a.type == _Attribute.TENSOR:
                self.attrs[a.name] = to_array(a.t, self.where, model._folder)
            else:
                return False
        return True


class Block:
    """Nodes in order, from a model after its cut or from the graph of a control operator; `wanted` are the names that
    are read after them, each with how many first rows (None: all). `run` adds the nodes' results to the values of a
    run. A value of the run counts as one of `constants` if it is the same object; `run` itself adds those in `own`."""

    def __init__(
        self,
        model: Around,
        nodes: Sequence[Any],
        wanted: Mapping[str, int | None],
        device: Target,
        precision: str,
        constants: dict[str, Array],
        asking: Container[int] = (),
    ) -> None:
        self._model = model
        self._nodes = nodes
        self._wanted = list(wanted)
        self._device = device
        self._precision = precision
        self.constants = constants
        self.own: dict[str, Array] = {}
        builder = self._builder()
        self.steps = [Step(model, n, k, builder.imports, k in asking) for k, n in enumerate(nodes)]
        for step in self.steps:
            step.known = tuple((n, constants.get(n), count_of(constants.get(n))) for n in step.inputs)
        _find_twins(self.steps)
        self._assumed = find_rows(self.steps, wanted, constants)
        self.reached = 0  # how many nodes the host has run
        self._rests: dict[tuple[int, tuple[str, ...]], Rest] = {}
        self._lock = renewed(self, "_lock", threading.RLock)  # guards the rests, and the graphs in the steps

    def close(self) -> None:
        """Closes the programs of the rests."""
        for part in self._parts():
            part.close()

    def _parts(self) -> list[Rest | Block]:
        with self._lock:
            return [*self._rests.values(), *(b for step in self.steps for b in step.blocks.values())]

    def reports(self) -> list[Report]:
        """The reports of the programs that follow the nodes that the host runs."""
        return [r for part in self._parts() for r in part.reports()]

    def run(self, values: Values) -> None:
        """Raises: as Model.run."""
        begin, before = time.perf_counter(), len(values.parts)
        if any(values.get(n) is not self.constants[n] for n in self._assumed):
            self._read_whole()
        for k, step in enumerate(self.steps):
            spend(step.where, 1)
            twin = step.twin
            if twin is not None:
                for name, other in zip(step.outputs, twin.outputs, strict=True):
                    values[name] = values[other]
                continue
            count = None if step.count is None else _counted(step, values)
            if count is not None:
                values[step.outputs[0]] = count
                continue
            results: Any = _picked(step, values) if step.picks else None
            if results is None:
                results = self._made(step, values)
            if results is NotImplemented and step.plain and step.kind in ("If", "Loop"):
                results = self._branch(step, values) if step.kind == "If" else self._loop(step, values)
            if results is NotImplemented:
                if not step.asks and _large(step, values):
                    self._ran(values, k, begin, before)
                    values.update(self._from(k, values))
                    return
                results = self._built(step, values)
            for name, value in zip(step.outputs, results, strict=False):
                if name:
                    values[name] = value
        self._ran(values, len(self.steps), begin, before)

    def _read_whole(self) -> None:
        """Makes every node compute all of its rows, since a count that limited them has another value in this run."""
        with self._lock:
            self._assumed = ()
            for step in self.steps:
                step.rows = (None,) * step.n_outputs
                for block in step.blocks.values():
                    block._read_whole()

    def _ran(self, values: Values, count: int, begin: float, before: int) -> None:
        """Records that the host has run the first `count` nodes; the parts from `before` on ran for their inner graphs.
        """
        self.reached = max(self.reached, count)
        if count:
            seconds = time.perf_counter() - begin - sum(p.seconds for p in values.parts[before:])
            values.parts.insert(before, Part("host", count, seconds, None, self.steps[0].label))

    def _made(self, step: Step, values: Values) -> Any:
        """The results by NumPy; NotImplemented where the node's builder is needed."""
        if step.function is None:
            return NotImplemented
        try:
            result = step.function(step, *[values.host(n) if n else None for n in step.inputs])
        except (
            ValueError,
            TypeError,
            IndexError,
            KeyError,
            AttributeError,
            OverflowError,
            ZeroDivisionError,
        ):
            return NotImplemented  # the builder then reports the fault
        if type(result) is np.ndarray:
            return (result,)
        if result is NotImplemented or isinstance(result, tuple):
            return result
        return (result if isinstance(result, np.ndarray | list) or result is None else np.asarray(result),)

    # -- nodes without a function

    def _builder(self) -> GraphBuilder:
        model = self._model
        return GraphBuilder(model._proto, {}, model._folder, model._own, model._own + 1024, model._strict)

    def _built(self, step: Step, values: Values) -> list[Any]:
        """The results of a node that is built for these values and evaluated at once."""
        builder = self._builder()
        builder.known.draws = _Drawn(step.generators)
        scope: Any = {}
        for name in step.reads:
            if name not in values:
                raise ModelFormatError(f"{step.where}: reads {name!r}, which nothing makes")
            leaves, nests = flattened({name: values.host(name)}, ())
            tensors = {n: builder.constant(a) for n, a in leaves.items()}
            scope[name] = held(nests[name], tensors, values.kind(name))
        try:
            builder.nodes([step.node], Frame(scope, builder.imports, {}, 1))
            return [self._out(builder, name, scope.get(name), values) for name in step.outputs]
        except NeedsValues as need:
            raise UnsupportedOp(f"{need.what} is unknown before a step of its loop is run") from need

    def _out(self, builder: GraphBuilder, name: str, result: Any, values: Values) -> Any:
        if result is None:
            return None
        arrays: dict[str, Array] = {}

        def leaf(label: str, value: Value) -> None:
            arrays[label] = builder.value_of(value, label)

        nest = structure_of(name, result, leaf)
        if not isinstance(result, Value):
            values.kinds[name] = result.kind
        return assembled(nest, arrays.__getitem__)

    # -- the rest as a model

    def _from(self, k: int, values: Values) -> dict[str, Any]:
        """The wanted results of the nodes from index k on, by programs for the shapes of the values that they read."""
        nodes = self._nodes[k:]
        produced = {n for node in nodes for n in node.output}
        read = {n for step in self.steps[k:] for n in step.reads} - produced
        constants = {n: values[n] for n in read if n in self.constants and values[n] is self.constants[n]}
        names = sorted(read - set(constants))
        kinds = {n: values.kind(n) for n in names}
        key = (k, tuple(kinds.values()))
        with self._lock:
            if key not in self._rests:
                wanted = [n for n in self._wanted if n in produced]
                self._rests[key] = self._model.rest(nodes, kinds, wanted, constants)
            rest = self._rests[key]
        feeds = {n: _fed(values.made(n)) for n in names}
        return rest.run_part(feeds, self._device, self._precision, values.parts)

    # -- control operators

    def _graph(self, step: Step, name: str) -> tuple[Any, Block]:
        graph = next(a.g for a in step.node.attribute if a.name == name)
        with self._lock:
            if name not in step.blocks:
                model = self._model
                held = {i.name: to_array(i, f"{step.where}: {i.name}", model._folder) for i in graph.initializer}
                own = {called(f) for f in model._proto.functions}
                nodes = []
                for node in graph.node:
                    proto = None if called(node) in own else _constant(node)
                    if proto is None:
                        nodes.append(node)
                    else:
                        held[node.output[0]] = to_array(proto, f"{step.where}: {node.output[0]}", model._folder)
                for array in held.values():
                    array.flags.writeable = False  # a result that is one of them is copied
                wanted: dict[str, int | None] = {}
                for k, o in enumerate(graph.output):
                    rows = step.rows[k] if step.kind == "If" and k < step.n_outputs else None
                    wanted[o.name] = rows if o.name not in wanted else None
                block = Block(model, nodes, wanted, self._device, self._precision, {**self.constants, **held})
                block.own = held
                step.blocks[name] = block
            return graph, step.blocks[name]

    def _inside(
        self, step: Step, name: str, arguments: Sequence[Any], kinds: Sequence[str], values: Values
    ) -> Values:
        """The values after one run of a node's graph."""
        graph, block = self._graph(step, name)
        if len(graph.input) != len(arguments):
            raise ModelFormatError(
                f"{step.where}: its graph takes {len(graph.input)} inputs, {len(arguments)} come"
            )
        inner = values.inner()
        inner.update(block.own)
        for info, value, kind in zip(graph.input, arguments, kinds, strict=True):
            inner[info.name] = value
            inner.kinds.pop(info.name, None)
            if kind and not kind.startswith("tensor("):
                inner.kinds[info.name] = kind
        parts, inner.parts = inner.parts, []
        block.run(inner)
        parts.extend(p for p in inner.parts if p.device != "host")
        for info in graph.output:
            if info.name not in inner:
                raise ModelFormatError(f"{step.where}: nothing makes {info.name!r}, an output of its graph")
        return inner

    def _branch(self, step: Step, values: Values) -> Any:
        condition = values.host(step.inputs[0])
        if condition.size != 1:
            return NotImplemented
        name = "then_branch" if condition.reshape(())[()] else "else_branch"
        inner = self._inside(step, name, (), (), values)
        wanted = [o.name for o in self._graph(step, name)[0].output]
        return _passed(step, step.outputs, wanted, inner, values)

    def _loop(self, step: Step, values: Values) -> Any:
        state = [values.host(n) if n else None for n in step.inputs]
        limit, going, *state = (state + [None, None])[:2] + state[2:]
        if any(not n for n in step.inputs[2:]) or any(v is not None and v.size != 1 for v in (limit, going)):
            return NotImplemented
        graph = next(a.g for a in step.node.attribute if a.name == "body")
        wanted, kinds = [o.name for o in graph.output], [values.kind(n) for n in step.inputs[2:]]
        if len(graph.input) != 2 + len(state) or len(wanted) != 1 + len(step.outputs):
            return NotImplemented
        on = going is None or bool(going.reshape(())[()])
        collected: list[list[Array]] = [[] for _ in wanted[1 + len(state) :]]
        k = 0
        while on and (limit is None or k < limit):
            spend(step.where, 1)
            arguments = [np.array(k, np.int64), np.array(True), *state]
            inner = self._inside(step, "body", arguments, ["", "", *kinds], values)
            going = inner.host(wanted[0])
            if getattr(going, "size", 0) != 1:
                raise ShapeError(f"{step.where}: {wanted[0]!r}, whether it goes on, is no single boolean")
            on = bool(going.reshape(())[()])
            state = [inner[n] for n in wanted[1 : 1 + len(state)]]
            kinds = [inner.kind(n) for n in wanted[1 : 1 + len(state)]]
            for rows, name in zip(collected, wanted[1 + len(state) :], strict=True):
                rows.append(inner.host(name))
            k += 1
        for name, kind in zip(step.outputs, kinds, strict=False):
            if not kind.startswith("tensor("):
                values.kinds[name] = kind
        outs = zip(collected, graph.output[1 + len(state) :], strict=True)
        return (*state, *(_stacked(step, rows, info) for rows, info in outs))


def _find_twins(steps: Sequence[Step]) -> None:
    """Notes which nodes repeat an earlier one: exporters write NonZero twice for a mask that is read twice."""
    first: dict[Any, Step] = {}
    same: dict[str, str] = {}
    for step in steps:
        if step.function is None or not all(step.outputs):
            continue
        node = step.node
        read = tuple(same.get(n, n) for n in step.inputs)
        key = (step.kind, read, tuple(a.SerializeToString() for a in node.attribute), step.n_outputs)
        twin = first.setdefault(key, step)
        if twin is not step:
            step.twin = twin
            same.update(zip(step.outputs, twin.outputs, strict=True))


def _counted(step: Step, values: Values) -> Count | None:
    """The result of a node on counts; None where its inputs or its result are none."""
    if step.kind == "Shape":
        counted = values[step.inputs[0]]
        shape = getattr(array_of(counted) if is_count(counted) else counted, "shape", None)
        return None if shape is None else shape_of(step, tuple(shape))
    counts = []
    for name, always, known in step.known:
        value = values[name] if name else None
        count = known if value is always else count_of(value)
        if count is None and name:
            return None
        counts.append(count)
    try:
        return None if step.count is None else step.count(step, *counts)
    except TypeError:
        return None  # the builder says in its own words what is wrong


def _picked(step: Step, values: Values) -> tuple[Any, ...] | None:
    """The results of a node that reads or makes arrays that are not yet computed; None if it needs arrays."""
    if step.kind == "NonZero":
        return picked(step, [values.host(step.inputs[0])])
    arguments = [values[n] if n else None for n in step.inputs]
    if not any(type(v) is Picked for v in arguments):
        return None
    for k, (name, value) in enumerate(zip(step.inputs, arguments, strict=True)):
        if name and type(value) is not Picked and not is_count(value):
            arguments[k] = values.host(name)
    try:
        return picked(step, arguments)
    except (ValueError, TypeError, IndexError):
        return None  # the builder says in its own words what is wrong


def _constant(node: Any) -> Any:
    """The tensor that a node Constant holds; None for other nodes."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx") or len(node.output) != 1:
        return None
    protos = [a.t for a in node.attribute if a.name == "value" and a.type == _Attribute.TENSOR]
    return protos[0] if len(protos) == len(node.attribute) == 1 else None


def _large(step: Step, values: Values) -> bool:
    """Whether a node reads enough bytes to begin a program."""
    nbytes = sum(_nbytes(values.get(n)) for n in step.reads)
    if any(True for _ in subgraphs(step.node)):
        return False
    return nbytes >= (LAYER if step.layer or not step.plain else LARGE)


def _nbytes(value: Any) -> int:
    if isinstance(value, list):
        return sum(_nbytes(v) for v in value)
    return value.nbytes if isinstance(value, np.ndarray | DeviceArray | Picked) else 0


def _passed(
    step: Step, names: Sequence[str], results: Sequence[str], inner: Values, values: Values
) -> list[Any]:
    if len(results) < len(names):
        raise ModelFormatError(f"{step.where}: has {len(names)} outputs, its graph makes {len(results)}")
    for name, other in zip(names, results, strict=False):
        values.kinds.pop(name, None)
        if other in inner.kinds:
            values.kinds[name] = inner.kinds[other]
    return [inner[n] for n in results[: len(names)]]


def _stacked(step: Step, rows: list[Array], info: Any) -> Array:
    shapes = {np.shape(row) if isinstance(row, np.ndarray) else None for row in rows}
    if len(shapes) > 1 or None in shapes:
        raise ShapeError(
            f"{step.where}: its scan output {info.name!r} has shapes {sorted(map(str, shapes))}; expected arrays of "
            "one shape in every step"
        )
    if rows:
        return np.stack(rows)
    dtype = element(info.type.tensor_type.elem_type, step.where)
    return np.zeros((0, *(d.dim_value for d in info.type.tensor_type.shape.dim)), dtype)


def infos(kinds: Mapping[str, str]) -> list[Any]:
    """Declarations of inputs of these types, of any shapes."""
    return [onnx.ValueInfoProto(name=n, type=proto_of(kind)) for n, kind in kinds.items()]
