"""From a checked ONNX model and concrete inputs to an rlx graph: inlines functions, checks types against schemas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from rlx.errors import ByteLimitExceeded, ModelFormatError, RlxError, StepLimitExceeded, UnsupportedOp
from rlx.formats.files import shown
from rlx.host.progress import report
from rlx.ir import Attrs, Graph, Node, Op, Tensor, TensorType
from rlx.ir.graph import traced_into
from rlx.onnx.reader.call import (
    AnyValue,
    Call,
    ConstantEvaluator,
    NeedsValues,
    Result,
    Value,
    WriteOut,
    constant,
)
from rlx.onnx.reader.control import CONTROL, build_control
from rlx.onnx.reader.elements import STRING, Array, ElementType, carried, carrier, wrapped
from rlx.onnx.reader.infos import info_of
from rlx.onnx.reader.read import MAX_DEPTH, called, label_of, node_name, opsets, reads
from rlx.onnx.reader.schemas import Schema, Schemas, check_call, check_strings
from rlx.onnx.reader.shapes import check_shapes
from rlx.onnx.reader.structure import (
    BY_NAME,
    Structure,
    accepted,
    held,
    kind_of,
    proto_of,
    structure_of,
)
from rlx.onnx.reader.table import find
from rlx.onnx.reader.tensors import to_array
from rlx.onnx.reader.wire import MAX_NODES
from rlx.ops.control.steps import spend
from rlx.ops.elementwise.select import cast
from rlx.records import Record

Attribute = onnx.AttributeProto
Scope = dict[str, "AnyValue | None"]

UNCHECKED = "holds numbers that cannot be computed with"
PACKED_BYTES, PACKED_FROM = 1 << 16, 4  # outputs at a cut of at most so many bytes are joined, if at least so many
ADDED_STEPS = 4  # the steps that adding one node to the graph costs


class Frame(Record):
    """The scope of nodes: the named values, the opsets, the attributes that references in a function refer to, the
    nesting depth of functions and graphs, and whether the nodes are `defined` by onnx instead of in the file."""

    scope: Scope
    imports: Mapping[str, int]
    attributes: Mapping[str, Any]
    depth: int
    defined: bool = False


class Counted(Graph):
    """The graph that is built: adding a node takes steps from the budget."""

    def _append(self, record: Op, ins: tuple[Tensor, ...], attrs: Attrs, label: str) -> tuple[Tensor, ...]:
        if not record.leaf:
            spend(record.name, ADDED_STEPS)
        return super()._append(record, ins, attrs, label)


class GraphBuilder:
    """Builds the rlx graph of a model that lists `own` nodes, of at most `limit` nodes with those of functions and
    loops; `strict` refuses unknown attributes. Afterwards `outputs` holds the structure of each output, `output_types`
    the element types of its tensors.

    If the graph is cut, `later` has the indices of the nodes after the cut: True for those that need the value of a
    tensor, False for those that read results of such nodes. `outputs` are then the model's outputs before the cut and
    the tensors that later nodes read; those that depend on no input are in `constants` instead. `kinds` has the types
    of outputs that are not plain tensors."""

    def __init__(
        self, model: Any, initializers: Mapping[str, Array], folder: Path | None, own: int, limit: int,
        strict: bool = False,
    ) -> None:  # fmt: skip
        self.model = model
        self.folder = folder
        self.initializers = initializers
        self.functions = {called(f): f for f in model.functions}
        self.imports = opsets(model.opset_import, "the model")
        self.graph = Counted(model.graph.name or "onnx")
        self.known = ConstantEvaluator()
        self._schemas = Schemas()
        self._built = 0
        self._given: set[int] = set()  # the tensors that are outputs
        self.own = own
        self._strict = strict
        self._limit = min(MAX_NODES, limit)
        self.outputs: dict[str, Structure] = {}
        self.output_types: dict[str, ElementType] = {}
        self.kinds: dict[str, str] = {}
        self.constants: dict[str, Array] = {}
        self.later: dict[int, bool] = {}
        self.packs: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
        self._absent: set[str] = set()  # the names of the later nodes' results
        self._cuts: Callable[[NeedsValues, Any], bool] = _never

    def build(
        self,
        fed: Mapping[str, TensorType | Array],
        dtypes: Mapping[str, ElementType],
        nests: Mapping[str, Structure],
        constants: Mapping[str, Array] | None = None,
        cuts: Callable[[NeedsValues, Any], bool] | None = None,
    ) -> Graph:
        """`fed` are the tensors that a run is given: arrays for those that become constants, types for the others;
        `nests` says which of them each input consists of; `constants` are further named tensors. `cuts` says whether
        the graph is cut before a node that asks for a value; by default it never is.

        Raises: NeedsValues, ModelFormatError, UnsupportedOp."""
        leaves: dict[str, Value] = {}
        for name, feed in fed.items():
            if isinstance(feed, TensorType):
                leaves[name] = Value(self.graph.input(name, feed.shape, feed.dtype), dtypes[name])
            else:
                leaves[name] = held_value = self.constant(feed)
                self.known.fed[held_value.tensor.graph, held_value.tensor.id] = name
        kinds = {i.name: info_of(i).type for i in self.model.graph.input}
        scope: Scope = {n: held(nest, leaves, kinds[n]) if n in kinds else leaves[n] for n, nest in nests.items()}
        for name, array in self.initializers.items():
            if name not in scope:
                scope[name] = self.constant(array, name)
        for name, array in (constants or {}).items():
            scope[name] = self.constant(array)
        self._cuts = cuts or _never
        self.nodes(self.model.graph.node, Frame(scope, self.imports, {}, 0))
        for info in self.model.graph.output:
            if info.name not in self._absent:
                self._output(info, scope)
        for name in self._read_later():
            if name not in nests and name not in self.initializers and scope.get(name) is not None:
                self._pass_on(name, scope)
        return self.graph

    def _read_later(self) -> list[str]:
        nodes = self.model.graph.node
        return sorted({name for index in self.later for name in reads(nodes[index])} - self._absent)

    def _pass_on(self, name: str, scope: Scope) -> None:
        """Keeps a value that a later node reads: as a constant if it is known, else as an output."""
        value = scope[name]
        if isinstance(value, Value):
            try:
                self.constants[name] = self.value_of(value, name)
                return
            except NeedsValues:
                pass
        self._output(onnx.ValueInfoProto(name=name), scope)

    def pack(self) -> None:
        """Joins small tensors that only nodes after the cut read into one output per dtype: a detector with 90 classes
        has 180 of them, and the host would wait for each. `packs` lists the parts of such an output."""
        wanted = {o.name for o in self.model.graph.output}
        by_dtype: dict[Any, list[str]] = {}
        for name, t in self.graph.outputs.items():
            if name in self.outputs and name not in wanted and 0 < t.type.nbytes <= PACKED_BYTES:
                by_dtype.setdefault(t.dtype, []).append(name)
        for dtype, names in by_dtype.items():
            if len(names) < PACKED_FROM:
                continue
            parts = [self.graph.outputs.pop(n) for n in names]
            flat = [self.graph.add("reshape", (t,), {"shape": (t.size,)})[0] for t in parts]
            joined = f"what is read behind the cut, {dtype}"
            self.packs[joined] = [(n, t.shape) for n, t in zip(names, parts, strict=True)]
            self.graph.output(joined, self.graph.add("concat", tuple(flat), {"axis": 0})[0])

    def value_of(self, value: Value, what: str) -> Array:
        """The value of a tensor. Raises: NeedsValues."""
        return self.known.words.from_carrier(self.known(value.tensor, what), value.dtype)

    def _waits(self, index: int, node: Any) -> bool:
        """Whether a node comes after the cut because it reads a result from there."""
        if self._absent.isdisjoint(reads(node)):
            return False
        self.later[index] = False
        self._absent.update(node.output)
        return True

    def constant(self, array: Array, label: str = "") -> Value:
        """A tensor of the graph with this value."""
        # String numbers differ between programs, so a constant of strings cannot be shared as a weight by name.
        name = "" if array.dtype == STRING else label
        return Value(constant(self.graph, self.known.words.to_carrier(array), name), array.dtype)

    def _output(self, info: Any, scope: Scope) -> None:
        value = scope[info.name]
        if value is None:
            raise ModelFormatError(f"output {shown(info.name)}: is left out by the node that should make it")
        value = accepted(value, info.type)
        declared = kind_of(info.type)
        if declared not in (None, value.kind):
            raise ModelFormatError(f"output {shown(info.name)}: is declared {declared}, but is {value.kind}")
        if info.name in self.outputs:  # listed twice
            return
        self.outputs[info.name] = structure_of(info.name, value, self._leaf)
        if not isinstance(value, Value):
            self.kinds[info.name] = value.kind

    def _leaf(self, name: str, value: Value) -> None:
        if name in self.output_types:
            raise ModelFormatError(f"output {shown(name)}: is also the name of an item of a sequence")
        self.output_types[name] = value.dtype
        t = value.tensor
        leaf = t.node.op.leaf or t.id in self._given
        self._given.add(t.id)
        self.graph.output(name, self.graph.add("copy", (t,))[0] if leaf else t)

    # -- nodes

    def nodes(self, nodes: Any, frame: Frame) -> None:
        """Builds nodes in order; their results are entered into the frame's scope by name."""
        if frame.depth > MAX_DEPTH:
            raise ModelFormatError(f"functions are nested more than {MAX_DEPTH} deep")
        for index, node in enumerate(nodes):
            where = node_name(node, index)
            if not frame.depth:
                report("building", index, len(nodes))
                if self._absent and self._waits(index, node):
                    continue
            self._built += 1
            if self._built > self._limit:
                raise ModelFormatError(
                    f"{where}: functions and loops written out make more than {self._limit:,} nodes; max_steps= "
                    f"(--max-steps on the command line) allows more, up to {MAX_NODES:,}"
                )
            if self._built > self.own:
                spend(where, 1)
            known = traced_into(self.graph).nodes  # the nodes of the body, while that of a compiled loop is built
            start = len(known)
            try:
                self._node(node, where, frame)
            except NeedsValues as need:
                if frame.depth or not self._cuts(need, node):
                    raise
                self.later[index] = True
                self._absent.update(node.output)
                continue
            except (ModelFormatError, UnsupportedOp):
                raise
            except (ByteLimitExceeded, StepLimitExceeded) as error:
                named = str(error) if str(error).startswith(where) else f"{where}: {error}"
                raise type(error)(named) from error
            except RlxError as error:
                raise ModelFormatError(f"{where}: {error}") from error
            except (ValueError, OverflowError) as error:
                # A number passed every check but NumPy does not take it: the file is refused all the same. The long
                # runs recognize this message and count it as a finding.
                raise ModelFormatError(f"{where}: {UNCHECKED}: {error}") from error
            _label(known[start:], label_of(node, frame.depth))

    def _node(self, node: Any, where: str, frame: Frame) -> None:
        scope = frame.scope
        domain = "" if node.domain == "ai.onnx" else node.domain
        unknown = [n for n in node.input if n and n not in scope]
        if unknown:  # onnx's function for the operator does not know these attributes
            raise ModelFormatError(f"{where}: reads {shown(unknown[0])}, which nothing makes")
        inputs = [scope[n] if n else None for n in node.input]
        protos = self._attributes(node, frame.attributes)
        function = self.functions.get(called(node))
        if function is not None:
            self._inline(function, node, inputs, protos, frame, opsets(function.opset_import, where))
            return
        opset = frame.imports.get(domain)
        schema = None if opset is None else self._schemas.of(domain, node.op_type, opset)
        if opset is None or schema is None:
            raise UnsupportedOp(
                f"{where}: there is no such operator in version {opset} of domain {domain or 'ai.onnx'!r}"
            )
        bound = check_call(schema, node, inputs, protos, where, self._strict, frame.defined)
        strict = self._strict and not frame.defined
        check_shapes(schema, inputs, where, strict)
        if not domain and node.op_type in CONTROL:
            graphs = {n: protos.pop(n).g for n, a in list(protos.items()) if a.type == Attribute.GRAPH}
            self._control(node, self._call(node, where, schema, inputs, protos), graphs, frame)
            return
        builder = find(domain, node.op_type, schema.since_version)
        outcome: Result | Sequence[Result] = None
        if builder is not None:
            try:
                call = self._call(node, where, schema, inputs, protos)
                call.scope, call.strict = scope, strict
                check_strings(call, domain)
                outcome = builder(call)
            except WriteOut as write:
                builder = None
                inputs = [write.inputs.get(i, v) for i, v in enumerate(inputs)]
                protos |= {n: onnx.helper.make_attribute(n, v) for n, v in write.attributes.items()}
        if builder is None:
            body = self._body(schema, node, inputs, protos, opset, domain)
            if body is None:
                raise UnsupportedOp(f"{where}: rlx has no {node.op_type} of version {schema.since_version}")
            imports = {**frame.imports, **opsets(body.opset_import, where)}
            self._inline(body, node, inputs, protos, frame, imports, defined=True)
            return
        single = outcome is None or isinstance(outcome, Tensor | AnyValue)
        results: Sequence[Any] = [outcome] if single else list(outcome)  # type: ignore[arg-type]
        for i, name in enumerate(node.output):
            if name:
                result = results[i] if i < len(results) else None
                if result is None:
                    raise UnsupportedOp(f"{where}: its output {i} ({shown(name)}) is not supported")
                scope[name] = self._finished(result, schema, i, bound)

    def _finished(self, value: Tensor | AnyValue, schema: Schema, i: int, bound: dict[str, str]) -> AnyValue:
        """The result converted to the type that the schema gives this output."""
        if not isinstance(value, Tensor):
            return value
        formal = schema.outputs[min(i, len(schema.outputs) - 1)]
        dtype = BY_NAME.get(bound.get(formal.type_str, formal.type_str))
        if dtype is None:
            return Value(value, value.dtype.np)
        held = cast(value, carrier(dtype))
        return Value(wrapped(held, dtype) if carried(dtype) else held, dtype)

    def _call(
        self, node: Any, where: str, schema: Schema, inputs: Sequence[AnyValue | None], protos: dict[str, Any]
    ) -> Call:
        """The node as its builder sees it; attributes that are left out have the schema's defaults."""
        values = {n: self._attribute(a, where) for n, a in protos.items()}
        for name, default in schema.defaults.items():
            if name not in values:
                values[name] = self._attribute(default, where)
        version, count = schema.since_version, len(node.output)
        return Call(where, node.op_type, version, self.graph, inputs, values, count, self.known)

    # -- graphs within nodes

    def _control(self, node: Any, call: Call, graphs: dict[str, Any], frame: Frame) -> None:
        where, scope = call.where, frame.scope

        def run(graph: Any, arguments: Sequence[AnyValue | None]) -> list[AnyValue]:
            if len(arguments) != len(graph.input):
                raise ModelFormatError(
                    f"{where}: its graph takes {len(graph.input)} inputs, {len(arguments)} come"
                )
            spend(where, len(scope) >> 8)
            inner: Scope = dict(scope)
            for info, value in zip(graph.input, arguments, strict=True):
                inner[info.name] = value if value is None else accepted(value, info.type)
            for i in graph.initializer:
                array = to_array(i, f"initializer {shown(i.name)}", self.folder)
                inner[i.name] = self.constant(array)
            self.nodes(graph.node, Frame(inner, frame.imports, frame.attributes, frame.depth + 1, frame.defined))
            values = [inner[o.name] for o in graph.output]
            if any(v is None for v in values):
                raise ModelFormatError(f"{where}: an output of its graph is left out")
            return [v for v in values if v is not None]

        outputs = build_control(call, graphs, run)
        if len(outputs) < len(node.output):
            raise ModelFormatError(f"{where}: has {len(node.output)} outputs, its graph makes {len(outputs)}")
        for name, value in zip(node.output, outputs, strict=False):
            if name:
                scope[name] = value

    # -- functions

    def _inline(
        self, function: Any, node: Any, inputs: Sequence[AnyValue | None], protos: dict[str, Any], frame: Frame,
        imports: Mapping[str, int], defined: bool = False,
    ) -> None:  # fmt: skip
        where = node_name(node)
        if len(inputs) > len(function.input) or len(node.output) > len(function.output):
            raise ModelFormatError(
                f"{where}: has {len(inputs)} inputs and {len(node.output)} outputs; the function has "
                f"{len(function.input)} and {len(function.output)}"
            )
        inner: Scope = dict.fromkeys(function.input)
        inner.update(zip(function.input, inputs, strict=False))
        attributes = {a.name: a for a in function.attribute_proto}
        attributes.update(protos)
        self.nodes(function.node, Frame(inner, imports, attributes, frame.depth + 1, frame.defined or defined))
        for name, source in zip(node.output, function.output, strict=False):
            if name:
                frame.scope[name] = inner.get(source)

    def _body(
        self,
        schema: Any,
        node: Any,
        inputs: Sequence[AnyValue | None],
        protos: dict[str, Any],
        opset: int,
        domain: str,
    ) -> Any | None:
        """The function body by which onnx defines the operator for these inputs and attributes; None where it has
        none."""
        plain = onnx.NodeProto()
        plain.CopyFrom(node)
        del plain.attribute[:]
        plain.attribute.extend(protos.values())
        if schema.has_context_dependent_function:
            protos_of = [onnx.TypeProto() if v is None else proto_of(v) for v in inputs]
            types = [p.SerializeToString() for p in protos_of]
            versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
            if versions:
                raw = schema.get_context_dependent_function_with_opset_version(
                    max(versions), plain.SerializeToString(), types
                )
                return _function(raw)
        if schema.has_function:
            versions = [v for v in schema.function_opset_versions if v <= opset]
            if versions:
                raw = schema.get_function_with_opset_version(max(versions))
                body = _function(raw if isinstance(raw, bytes) else raw.SerializeToString())
                defaults = {n: a.default_value for n, a in schema.attributes.items()}
                for name, value in defaults.items():
                    if name not in protos and value.type != Attribute.UNDEFINED:
                        protos[name] = value
                return body
        return None

    # -- attributes

    def _attributes(self, node: Any, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """The node's attributes by name, references to a function's attributes resolved (absent ones left out)."""
        result: dict[str, Any] = {}
        for attribute in node.attribute:
            if not attribute.ref_attr_name:
                result[attribute.name] = attribute
            elif attribute.ref_attr_name in attributes:
                copy = Attribute()
                copy.CopyFrom(attributes[attribute.ref_attr_name])
                copy.name = attribute.name
                result[attribute.name] = copy
        return result

    def _attribute(self, proto: Any, where: str) -> Any:
        """An attribute as a Python value: int, float, str, list, array; graphs unchanged."""
        kind = proto.type
        if kind in (Attribute.INT, Attribute.FLOAT):
            return int(proto.i) if kind == Attribute.INT else float(proto.f)
        if kind == Attribute.STRING:
            return _text(proto.s, where)
        if kind == Attribute.INTS:
            return [int(v) for v in proto.ints]
        if kind == Attribute.FLOATS:
            return [float(v) for v in proto.floats]
        if kind == Attribute.STRINGS:
            return [_text(s, where) for s in proto.strings]
        if kind == Attribute.TENSOR:
            return to_array(proto.t, f"{where}: attribute {shown(proto.name)}", self.folder)
        if kind == Attribute.TYPE_PROTO:
            return kind_of(proto.tp)
        if kind == Attribute.GRAPH:
            return proto.g
        raise UnsupportedOp(
            f"{where}: attribute {shown(proto.name)} is of a kind that rlx does not read ({kind})"
        )


def _never(need: NeedsValues, node: Any) -> bool:
    return False


def _label(nodes: Sequence[Node], label: str) -> None:
    """Labels the nodes that one ONNX node became; nodes of functions and graphs inside add their own label after a
    slash."""
    for node in nodes if label else ():
        if not node.op.leaf:
            node.label = f"{label}/{node.label}" if node.label else label


def _text(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelFormatError(f"{where}: an attribute is not valid UTF-8") from error


def _function(raw: bytes) -> Any:
    body = onnx.FunctionProto()
    body.ParseFromString(raw)
    return body
