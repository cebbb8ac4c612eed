"""A node as its builder sees it: inputs as tensors, checked attributes, and values that are known at build time."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlx.errors import ModelFormatError, UnsupportedOp
from rlx.ir import Graph, Leaf, Tensor
from rlx.ir.body import TracedBody
from rlx.ir.checks import between, check_limits, fault, limits_of
from rlx.onnx.reader.budget import reference_bytes, take
from rlx.onnx.reader.draws import Draw, Draws
from rlx.onnx.reader.elements import NAMES, STRING, Array, ElementType, carrier
from rlx.onnx.reader.string_table import MAX_STRINGS, StringTable, as_array
from rlx.ops.elementwise.select import cast
from rlx.packed import PackedArray
from rlx.records import Record


class Value(Record):
    """A tensor of the graph and the ONNX element type it stands for. The tensor's dtype, the carrier, may be wider."""

    tensor: Tensor
    dtype: ElementType

    @property
    def kind(self) -> str:
        """The type as ONNX writes it."""
        return NAMES[self.dtype]


class Series(Record):
    """A sequence. Its items are known while building; `element` is the type of each."""

    items: tuple[AnyValue, ...]
    element: str

    @property
    def kind(self) -> str:
        return f"seq({self.element})"


class Maybe(Record):
    """An optional: its content, or None where it is empty; whether it is empty is known while building."""

    item: AnyValue | None
    element: str

    @property
    def kind(self) -> str:
        return f"optional({self.element})"


class Maps(Record):
    """A sequence of maps with the same keys, strings or integers: each map is a row of numbers."""

    keys: Array
    rows: Value

    @property
    def kind(self) -> str:
        return f"seq(map({'string' if self.keys.dtype == STRING else 'int64'},{self.rows.kind}))"


AnyValue = Value | Series | Maybe | Maps


class NeedsValues(Exception):
    """A shape depends on the values of these graph inputs. The caller builds again with the values as constants.

    With `local` the shape depends on values that only a step of a compiled loop knows, or on random numbers: building
    again does not help.
    """

    def __init__(self, names: frozenset[str], what: str, local: bool = False) -> None:
        super().__init__(what)
        self.names = names
        self.what = what
        self.local = local


class WriteOut(Exception):
    """Raised by a builder whose node is to be built by onnx's function for the operator, with these inputs and
    attributes in place of the node's own."""

    def __init__(
        self, inputs: Mapping[int, AnyValue] | None = None, attributes: Mapping[str, float] | None = None
    ) -> None:
        super().__init__()
        self.inputs = dict(inputs or {})
        self.attributes = dict(attributes or {})


class OutOfRange(ModelFormatError):
    """An integer that an operator reads at build time is outside `least` to `most`; `fed` is the input of the model
    that it came from, or None."""

    def __init__(self, text: str, fed: str | None, least: int, most: int) -> None:
        super().__init__(text)
        self.fed, self.least, self.most = fed, least, most


class ConstantEvaluator:
    """Computes the values of tensors that depend on constants alone, by the ops' references; strings are indices into
    the string table `words`. `steps` counts the steps of compiled loops in the body being built, `bodies` the graphs of
    control ops that were built or tried, `parts` the parts that sequences were split into. `packed` maps a matrix to
    packed weights that products may read instead, with whether these are its transpose; `quantized` maps results of
    DequantizeLinear to their 8-bit integers (`ops.quantized.Quantized`)."""

    def __init__(self) -> None:
        self.words = StringTable()
        self.draws = Draws()
        self.fed: dict[tuple[Graph, int], str] = {}  # the inputs of the model whose values are constants
        self.steps = 1
        self.bodies = 0
        self.parts = 0
        self.packed: dict[tuple[Graph, int], tuple[Callable[[], Tensor], bool]] = {}
        self.quantized: dict[tuple[Graph, int], Any] = {}
        self._values: dict[tuple[Graph, int], Array] = {}

    def __call__(self, tensor: Tensor, what: str) -> Array:
        """Raises: NeedsValues when the tensor depends on inputs of the graph."""
        self._check(tensor, what)
        stack = [tensor]
        while stack:
            top = stack[-1]
            missing = [t for t in _behind(top) if (t.graph, t.id) not in self._values]
            if (top.graph, top.id) in self._values:
                stack.pop()
            elif missing:
                stack.extend(missing)
            else:
                self._evaluate(top)
                stack.pop()
        return self._values[tensor.graph, tensor.id]

    def _evaluate(self, tensor: Tensor) -> None:
        node = tensor.node
        arguments = [self._values[t.graph, t.id] for t in _behind(tensor)]
        if node.op.leaf:
            self._values[tensor.graph, tensor.id] = arguments[0] if arguments else node.attrs["value"]
            return
        take(reference_bytes(node), node.name)
        with np.errstate(all="ignore"):
            result = node.op.reference(*arguments, **node.attrs)
        arrays = list(result) if isinstance(result, tuple) else [result]
        for array, t in zip(arrays, node.outputs, strict=True):
            self._values[t.graph, t.id] = np.asarray(array, dtype=t.dtype.np).reshape(t.shape)

    def _check(self, tensor: Tensor, what: str) -> None:
        names: set[str] = set()
        local = False
        seen = {(tensor.graph, tensor.id)}
        stack = [tensor]
        while stack:
            top = stack.pop()
            if (top.graph, top.id) in self._values:
                continue
            if top.node.op.leaf is Leaf.INPUT:
                if isinstance(top.graph, TracedBody) or top.node.attrs["name"] in self.draws.wanted:
                    local = True
                else:
                    names.add(top.node.attrs["name"])
            for t in _behind(top):
                if (t.graph, t.id) not in seen:
                    seen.add((t.graph, t.id))
                    stack.append(t)
        if names or local:
            raise NeedsValues(frozenset(names), what, local)


def _behind(tensor: Tensor) -> Sequence[Tensor]:
    """The tensors from which a tensor's value follows; for a body's capture, the tensor that is captured."""
    if tensor.node.op.leaf is Leaf.PARAM and isinstance(tensor.graph, TracedBody):
        return [tensor.graph.around(tensor)]
    return tensor.node.inputs


Result = Tensor | AnyValue | None
Builder = Callable[["Call"], "Result | Sequence[Result]"]


class Call:
    """One node of an ONNX graph while it is built.

    `version` is the opset that last changed the operator. `x(i)` is an input as a tensor (in its carrier), `opt(i)` the
    same or None where it is left out, `known(i)` its value. Attributes: `int`, `float`, `str`, `ints`, `floats`, and
    `choice` for one of a few. `strict` refuses what departs from the operator's text.
    """

    def __init__(
        self, where: builtins.str, kind: builtins.str, version: builtins.int, graph: Graph,
        inputs: Sequence[AnyValue | None], attrs: dict[builtins.str, Any],
        n_outputs: builtins.int, known: ConstantEvaluator,
    ) -> None:  # fmt: skip
        self.where = where
        self.kind = kind
        self.version = version
        self.graph = graph
        self.inputs = list(inputs)
        self.attrs = attrs
        self.n_outputs = n_outputs
        self.known_values = known
        self.strict = False
        self.words = known.words
        self.scope: Mapping[builtins.str, AnyValue | None] = {}  # the named values visible to the node

    # -- inputs

    def has(self, i: builtins.int) -> bool:
        return i < len(self.inputs) and self.inputs[i] is not None

    def held(self, i: builtins.int) -> AnyValue:
        """An input of any kind."""
        result = self.inputs[i] if i < len(self.inputs) else None
        if result is None:
            raise ModelFormatError(f"{self.where}: input {i} is missing")
        return result

    def value(self, i: builtins.int) -> Value:
        return self.as_value(self.held(i), f"input {i}")

    def as_value(self, held: AnyValue, what: builtins.str) -> Value:
        """An input that must be a tensor. Raises: ModelFormatError."""
        if not isinstance(held, Value):
            raise ModelFormatError(f"{self.where}: {what} is {held.kind}; expected a tensor")
        return held

    def series(self, i: builtins.int) -> Series:
        value = self.held(i)
        if not isinstance(value, Series):
            raise ModelFormatError(f"{self.where}: input {i} is {value.kind}; expected a sequence")
        return value

    def x(self, i: builtins.int = 0) -> Tensor:
        return self.value(i).tensor

    def opt(self, i: builtins.int) -> Tensor | None:
        return self.value(i).tensor if self.has(i) else None

    def xs(self) -> list[Tensor]:
        return [self.x(i) for i in range(len(self.inputs))]

    def dtype(self, i: builtins.int = 0) -> ElementType:
        return self.value(i).dtype

    def known(self, i: builtins.int) -> Array:
        """The value of an input. Raises: NeedsValues."""
        v = self.value(i)
        if v.dtype == STRING and v.tensor.size > MAX_STRINGS:
            raise self.unsupported(
                f"input {i} has {v.tensor.size} elements; at most {MAX_STRINGS} strings are looked into"
            )
        take(v.tensor.type.nbytes, self.where)
        return self.words.from_carrier(self.known_values(v.tensor, f"{self.where}: input {i}"), v.dtype)

    def known_tensor(self, t: Tensor) -> Array:
        """The value of a tensor. Raises: NeedsValues."""
        take(t.type.nbytes, self.where)
        return self.known_values(t, self.where)

    def known_ints(
        self, i: builtins.int, default: Sequence[builtins.int] | None = None
    ) -> list[builtins.int]:
        """The integers in an input of any rank. Raises: NeedsValues."""
        if not self.has(i) and default is not None:
            return list(default)
        array = self.known(i)
        if array.dtype.kind not in "iu":
            raise ModelFormatError(f"{self.where}: input {i} is {array.dtype}; expected integers")
        return [int(v) for v in array.reshape(-1)]

    def known_scalar(self, i: builtins.int) -> Any:
        """The one number in an input, as a Python number. Raises: NeedsValues."""
        array = self.known(i)
        if array.size != 1:
            raise ModelFormatError(f"{self.where}: input {i} has {array.size} elements; expected one")
        return array.reshape(-1)[0].item()

    def known_int(self, i: builtins.int) -> builtins.int:
        """The one number in an input, as an int. Raises: NeedsValues."""
        number = self.known_scalar(i)
        if not math.isfinite(number):
            raise ModelFormatError(f"{self.where}: input {i} is {number}; expected a whole number")
        return builtins.int(number)

    def known_between(
        self, i: builtins.int, least: builtins.int, most: builtins.int, what: builtins.str, why: builtins.str
    ) -> builtins.int:
        """The one integer in an input; `what` names it in errors. Raises: NeedsValues; OutOfRange, saying `why`."""
        number, t = self.known_int(i), self.x(i)
        if not least <= number <= most:
            text = f"{self.where}: {what} is {number}; {why}: expected {least} to {most}"
            raise OutOfRange(text, self.known_values.fed.get((t.graph, t.id)), least, most)
        return number

    def writes(self, start: Tensor, count: builtins.int, length: builtins.int, least: builtins.int = 0) -> None:
        """Declares that the node writes `count` rows per batch into a cache of `length` rows, from `start` ≥ `least`
        on; a run in which they do not fit fails. Raises: ModelFormatError for a known start that does not fit."""
        self._checked(self.where, start, limits_of(count, length, least))

    def limited(self, t: Tensor, name: builtins.str, most: builtins.int, least: builtins.int = 0) -> None:
        """Declares that the elements of the input `name` are from `least` to `most`; a run with others fails. Raises:
        ModelFormatError for known elements that are not."""
        self._checked(f"{self.where}: {name}", t, between(least, most))

    def _checked(self, what: builtins.str, t: Tensor, limits: Array) -> None:
        try:
            wrong = fault(what, self.known_tensor(t), limits)
        except NeedsValues:
            check_limits(what, t, limits)
            return
        if wrong is not None:
            raise ModelFormatError(wrong)

    def draw(self, shape: Sequence[builtins.int], dtype: ElementType, normal: bool = False) -> Tensor:
        """Random numbers, new in every run: normal ones, or uniform ones from 0 up to 1; f64 for `dtype` double, else
        f32. The attribute `seed` seeds their generator."""
        wide = np.dtype(np.float64 if dtype == np.float64 else np.float32)
        seed = self.attrs.get("seed")
        return self.known_values.draws.add(self.graph, Draw(tuple(shape), wide, normal, seed), self.where)

    # -- attributes

    def _get(self, name: builtins.str, kinds: type | tuple[type, ...], default: Any) -> Any:
        value = self.attrs.get(name, default)
        if value is not None and not isinstance(value, kinds):
            raise ModelFormatError(
                f"{self.where}: attribute {name} is a {type(value).__name__}, which it cannot be"
            )
        return value

    def int(self, name: builtins.str, default: builtins.int | None = None) -> Any:
        return self._get(name, builtins.int, default)

    def float(self, name: builtins.str, default: builtins.float | None = None) -> Any:
        return self._get(name, builtins.float, default)

    def str(self, name: builtins.str, default: builtins.str | None = None) -> Any:
        return self._get(name, builtins.str, default)

    def ints(self, name: builtins.str, default: Sequence[Any] | None = None) -> Any:
        values = self._get(name, list, None)
        return default if values is None else values

    floats = ints

    def choice(self, name: builtins.str, *allowed: Any) -> Any:
        """An attribute that must have one of a few values. Raises: ModelFormatError."""
        value = self.attrs.get(name)
        if value not in allowed:
            raise self.bad(f"{name} is {value!r}; expected {' or '.join(map(repr, allowed))}")
        return value

    # -- results

    def constant(self, array: Any, dtype: ElementType | None = None) -> Value:
        """A constant; its element type is the array's."""
        a = as_array(array, dtype)
        take(a.nbytes, self.where)
        return Value(constant(self.graph, self.words.to_carrier(a)), a.dtype)

    def tensor(self, array: Any, dtype: ElementType | None = None) -> Tensor:
        return self.constant(array, dtype).tensor

    def packed(self, weight: PackedArray) -> Tensor:
        """A constant of packed weights."""
        take(weight.nbytes, self.where)
        return self.graph.constant(weight)

    def cast(self, t: Tensor, dtype: ElementType) -> Tensor:
        """t as the carrier of `dtype`."""
        return cast(t, carrier(dtype))

    def table(self, *lengths: builtins.int) -> None:
        """Notes that an array of these lengths is about to be computed for a constant. Raises: ByteLimitExceeded."""
        take(8 * math.prod(max(n, 1) for n in lengths), self.where)

    def bad(self, what: builtins.str) -> ModelFormatError:
        return ModelFormatError(f"{self.where}: {what}")

    def unsupported(self, what: builtins.str) -> UnsupportedOp:
        return UnsupportedOp(f"{self.where}: {what}")


def constant(graph: Graph, array: Array, label: str = "") -> Tensor:
    """A constant of the graph that shares the array's memory where it can."""
    if array.flags.writeable or not array.flags.c_contiguous:
        array = np.array(array, order="C")
        array.flags.writeable = False
    return graph.add("constant", (), {"value": array}, label)[0]
