"""Model: a loaded ONNX model, compiled for the shapes that come and run on any device."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np

from rlx.errors import GraphError, ModelFormatError, ShapeError, UnsupportedOp
from rlx.formats.files import shown
from rlx.formats.onnx import families as families
from rlx.formats.onnx.build import GraphBuilder
from rlx.formats.onnx.call import NeedsValues
from rlx.formats.onnx.control import CONTROL
from rlx.formats.onnx.elements import Array, ElementType, from_carrier, to_carrier
from rlx.formats.onnx.infos import TensorInfo as TensorInfo
from rlx.formats.onnx.infos import fit, fits, info_of
from rlx.formats.onnx.nests import Nest, arrays_in, assembled, flattened
from rlx.formats.onnx.patterns import put_together
from rlx.formats.onnx.read import all_nodes, check_model, node_name, opsets, parse
from rlx.formats.onnx.schemas import schema_of, type_of
from rlx.formats.onnx.shared import share_weights
from rlx.formats.onnx.table import find
from rlx.formats.onnx.tensors import to_array
from rlx.ir import Graph
from rlx.runtime import CompiledGraph, Session, Weights
from rlx.runtime.report import Report

CACHE = 16  # compiled graphs that a model keeps, the least recently used goes first


class Program:
    """A model compiled for given input shapes on one device. `run` takes arrays of these shapes."""

    def __init__(
        self,
        graph: CompiledGraph,
        inputs: Mapping[str, Nest],
        fixed: Mapping[str, Array],
        outputs: Mapping[str, Nest],
        types: Mapping[str, ElementType],
    ) -> None:
        self.graph = graph
        self._inputs = dict(inputs)
        self._fixed = dict(fixed)
        self._outputs = dict(outputs)
        self._types = dict(types)

    def close(self) -> None:
        """Frees the program's memory; the weights stay with the model. Idempotent."""
        self.graph.close()

    def report(self) -> Report:
        """How each node runs on the device: native, decomposed, host."""
        return self.graph.report()

    @property
    def fixed(self) -> tuple[str, ...]:
        """The inputs whose values are compiled in, since shapes depend on them."""
        return tuple(self._fixed)

    def run(self, inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Runs once. Raises: GraphError, ShapeError, DTypeError; ShapeError when an input whose value was compiled in
        has another value, or a sequence another number of items."""
        wanted = self._inputs
        arrays = {n: arrays_in(v, not isinstance(wanted.get(n, n), str)) for n, v in (inputs or {}).items()}
        given, nests = flattened(arrays, wanted)
        for name, nest in nests.items():
            if name in wanted and nest != wanted[name]:
                raise ShapeError(
                    f"input {name!r}: the program was compiled for {shown(wanted[name])}, {shown(nest)} came"
                )
        for name, value in self._fixed.items():
            if name in given and not np.array_equal(
                np.asarray(given.pop(name)), value, equal_nan=value.dtype.kind == "f"
            ):
                raise ShapeError(
                    f"input {name!r}: the program was compiled for its value {shown(value.tolist())}"
                )
        made = self.graph.run({n: to_carrier(np.asarray(v)) for n, v in given.items()})
        arrays = {n: from_carrier(made[n], dtype) for n, dtype in self._types.items()}
        return {n: assembled(nest, arrays.__getitem__) for n, nest in self._outputs.items()}


class Model:
    """An ONNX model, made by `load`.

    `inputs` and `outputs` say what it takes and gives. `run` compiles for the shapes that come, once for each, and
    keeps the latest programs; weights are on a device once. Any thread may call.
    """

    def __init__(self, source: Any) -> None:
        self._proto, self._folder = parse(source)
        check_model(self._proto)
        graph = self._proto.graph
        unsupported = missing_operators(self._proto)
        if unsupported:
            raise UnsupportedOp(
                f"rlx cannot run {len(unsupported)} operators of this model: {'; '.join(unsupported)}"
            )
        self._initializers = {
            i.name: to_array(i, f"initializer {shown(i.name)}", self._folder) for i in graph.initializer
        }
        self._declared = {i.name: info_of(i) for i in graph.input}
        self.inputs = [t for n, t in self._declared.items() if n not in self._initializers]
        self.outputs = [info_of(o) for o in graph.output]
        self._fixed: set[str] = set()
        self._programs: OrderedDict[Any, Program] = OrderedDict()
        self._sessions: dict[tuple[str, str], tuple[Session, Weights]] = {}
        self._running: Counter[int] = Counter()  # how many runs are under way, by the program's identity
        self._lock = threading.RLock()

    def run(
        self, inputs: Mapping[str, Any] | None = None, device: str = "auto", precision: str = "f32"
    ) -> dict[str, Any]:
        """Outputs by name for arrays by name; NumPy scalars and lists are arrays too. A sequence is a list of arrays,
        an optional that is empty None.

        Raises: GraphError for names, DTypeError and ShapeError for what does not fit the declaration,
        ModelFormatError for a model that contradicts itself, UnsupportedOp.
        """
        arrays = self.accept(inputs or {})
        with self._lock:
            program = self._program(*flattened(arrays, self._declared), device, precision)
            self._running[id(program)] += 1
        try:
            return program.run(arrays)
        finally:
            with self._lock:
                self._running[id(program)] -= 1
                self._drop(program)

    def compile(
        self, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Any] | None = None, *, device: str = "auto",
        precision: str = "f32",
    ) -> Program:  # fmt: skip
        """The model compiled for the given shapes of its inputs: a list of shapes for a sequence, None for an optional
        that is empty. `values` are those on whose values shapes depend.

        Raises: as run; GraphError naming the inputs whose values are needed.
        """
        fixed = self.accept(values or {}, partly=True)
        shaped = {name: _of_shape(self._info(name), shape) for name, shape in shapes.items()}
        leaves, nests = flattened(self.accept({**shaped, **fixed}), self._declared)
        try:
            return self._compile(leaves, nests, flattened(fixed, self._declared)[0], device, precision)
        except NeedsValues as need:
            raise GraphError(
                f"compile: the values of the inputs {sorted(need.names)} are needed, since {need.what}"
            ) from need

    @property
    def operators(self) -> Counter[str]:
        """How often each operator occurs in the graph itself, functions not looked into."""
        nodes = self._proto.graph.node
        return Counter(f"{n.domain}::{n.op_type}" if n.domain else str(n.op_type) for n in nodes)

    @property
    def weights(self) -> dict[str, Array]:
        """The initializers by name; not to be written to."""
        return dict(self._initializers)

    @property
    def programs(self) -> list[Program]:
        """The programs compiled so far, the latest used last."""
        with self._lock:
            return list(self._programs.values())

    # -- inputs

    def _info(self, name: str) -> TensorInfo:
        if name not in self._declared:
            raise GraphError(f"the model has no input {name!r}; it takes {[i.name for i in self.inputs]}")
        return self._declared[name]

    def accept(self, given: Mapping[str, Any], partly: bool = False) -> dict[str, Any]:
        """The inputs as arrays, and lists of them, that fit the declaration.

        Raises: GraphError, DTypeError, ShapeError."""
        missing = [i.name for i in self.inputs if i.name not in given]
        if missing and not partly:
            raise GraphError(
                f"the inputs {missing} are missing; the model takes {[i.name for i in self.inputs]}"
            )
        symbols: dict[str, int] = {}
        return {name: fit(self._info(name), value, symbols) for name, value in given.items()}

    # -- programs

    def _program(
        self, arrays: Mapping[str, Array], nests: Mapping[str, Nest], device: str, precision: str
    ) -> Program:
        """The program for these inputs, compiled when there is none; inputs become constants while one is needed."""
        while True:
            fixed = {n: arrays[n] for n in sorted(self._fixed & set(arrays))}
            types = tuple((n, a.shape, a.dtype.name) for n, a in sorted(arrays.items()))
            shape = repr(sorted(nests.items()))
            key = (device, precision, shape, types, tuple(_key(a) for a in fixed.values()))
            if key in self._programs:
                self._programs.move_to_end(key)
                return self._programs[key]
            try:
                program = self._compile(arrays, nests, fixed, device, precision)
            except NeedsValues as need:
                if need.names <= self._fixed:
                    raise GraphError(f"values are still unknown: {need.what}") from need
                self._fixed |= need.names
                continue
            self._programs[key] = program
            while len(self._programs) > CACHE:
                self._drop(self._programs.popitem(last=False)[1])
            return program

    def _drop(self, program: Program) -> None:
        """Frees a program that the cache does not hold any more, once nobody runs it."""
        if not self._running[id(program)]:
            del self._running[id(program)]
            if all(p is not program for p in self._programs.values()):
                program.close()

    def close(self) -> None:
        """Frees the programs and the weights on every device; the model can be run again, and is then compiled anew.
        Programs made by `compile` must be closed before, and no run be under way."""
        with self._lock:
            for program in self._programs.values():
                program.close()
            self._programs.clear()
            for _, weights in self._sessions.values():
                weights.close()
            self._sessions.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def build(
        self, arrays: Mapping[str, Array], fixed: Mapping[str, Array], nests: Mapping[str, Nest] | None = None
    ) -> tuple[Graph, GraphBuilder]:
        """The rlx graph for tensors of these shapes, those in `fixed` as constants, and its builder, which knows the
        outputs. `nests` are the inputs they make up; without it, each is one.

        Raises: NeedsValues, ModelFormatError, UnsupportedOp.
        """
        builder = GraphBuilder(self._proto, self._initializers, self._folder)
        graph = builder.build(
            {n: fixed[n] if n in fixed else type_of(a) for n, a in arrays.items()},
            {n: a.dtype for n, a in arrays.items()},
            {n: n for n in arrays} if nests is None else nests,
        )
        for info in self.outputs:
            made = builder.outputs[info.name]
            if info.shape is None or not isinstance(made, str):
                continue
            if not fits(graph.outputs[made].shape, info.shape):
                raise ModelFormatError(
                    f"output {shown(info.name)}: is declared {list(info.shape)}, but comes out "
                    f"{graph.outputs[made].shape}"
                )
        return graph, builder

    def _compile(
        self, arrays: Mapping[str, Array], nests: Mapping[str, Nest], fixed: Mapping[str, Array], device: str,
        precision: str,
    ) -> Program:  # fmt: skip
        graph, builder = self.build(arrays, fixed, nests)
        graph, constants = share_weights(put_together(graph))
        if (device, precision) not in self._sessions:
            session = Session(device, precision=precision)
            self._sessions[device, precision] = (session, Weights(session.device))
        session, weights = self._sessions[device, precision]
        compiled = session.compile(graph, weights=weights)
        for name in weights.missing(list(constants)):
            weights.set(name, constants[name])
        return Program(compiled, nests, fixed, builder.outputs, builder.output_types)


def missing_operators(model: Any) -> list[str]:
    """Every operator of the model that has neither a builder nor a definition: domain, name, version, node."""
    functions = {(f.domain, f.name) for f in model.functions}
    found: dict[tuple[str, str, int | None], str] = {}
    parts = [(model.graph.node, opsets(model.opset_import, "the model"))]
    parts += [(f.node, opsets(f.opset_import, f"function {shown(f.name)}")) for f in model.functions]
    for nodes, imports in parts:
        for node in all_nodes(nodes):
            domain = "" if node.domain == "ai.onnx" else node.domain
            if (node.domain, node.op_type) in functions:
                continue
            opset = imports.get(domain)
            schema = schema_of(domain, node.op_type, opset) if opset is not None else None
            version = schema.since_version if schema is not None else opset
            key = (domain, node.op_type, version)
            if key in found or (schema is not None and _runs(schema, domain, node.op_type)):
                continue
            found[key] = f"{domain or 'ai.onnx'} {shown(node.op_type)} version {version} at {node_name(node)}"
    return list(found.values())


def _runs(schema: Any, domain: str, name: str) -> bool:
    found = find(domain, name, schema.since_version) is not None or (not domain and name in CONTROL)
    return found or schema.has_function or schema.has_context_dependent_function


def _of_shape(info: TensorInfo, shape: Any, around: int = 0) -> Any:
    """Arrays of these shapes without memory: only their types are used."""
    if around < len(info.around):
        if shape is None and info.around[around] == "optional":
            return None
        if info.around[around] == "seq":
            return [_of_shape(info, s, around + 1) for s in shape]
        return _of_shape(info, shape, around + 1)
    dtype = info.dtype if info.dtype is not None else np.dtype(np.float32)
    return np.broadcast_to(np.zeros((), dtype), tuple(shape))


def _key(array: Array) -> tuple[Any, ...]:
    raw = np.ascontiguousarray(array)
    return array.shape, array.dtype.str, hashlib.blake2b(raw.tobytes(), digest_size=16).digest()
