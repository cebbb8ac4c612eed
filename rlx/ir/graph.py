"""Graph, Node and Tensor: a static program in single-assignment form, its nodes in the order in which they run."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rlx.dtypes import DType, DTypeLike, as_dtype, f32, weak_dtype
from rlx.errors import DTypeError, GraphError, ShapeError, TracedValueError, meant
from rlx.host.other_attributes import explain
from rlx.ir.op import Attrs, Leaf, Op, get_op
from rlx.ir.types import TensorType, as_shape
from rlx.ir.values import as_array, exactly
from rlx.packed import PackedArray

if TYPE_CHECKING:
    from rlx.ir.methods import TensorMethods
else:
    TensorMethods = object  # declarations for type checkers; rlx.ops.operators attaches the methods

HIDDEN = "rlx checks "  # name prefix of outputs that a run does not return (rlx.ir.checks)

TensorLike = "Tensor | npt.ArrayLike"

_LEAVES = (
    "; what a function of cond, while_loop, scan or vmap computes leaves it as its result alone: return it there, and "
    "use what the op gives for it"
)

_APART = "; graphs share no tensors: run the other, and give what it returns as an input or a constant here"


class Node:
    """One application of an op: its inputs, attributes and output tensors. `label` is a name shown to people."""

    __slots__ = ("attrs", "inputs", "label", "op", "outputs")

    def __init__(self, op: Op, inputs: tuple[Tensor, ...], attrs: Attrs, label: str = "") -> None:
        self.op = op
        self.inputs = inputs
        self.attrs = attrs
        self.label = label
        self.outputs: tuple[Tensor, ...] = ()

    @property
    def output(self) -> Tensor:
        """The only output. Raises: GraphError when there are several."""
        if len(self.outputs) != 1:
            raise GraphError(f"node {self} has {len(self.outputs)} outputs; pick one of node.outputs")
        return self.outputs[0]

    @property
    def name(self) -> str:
        """The node's name in reports: its label, else its op and first output."""
        return self.label or (f"{self.op.name}%{self.outputs[0].id}" if self.outputs else self.op.name)

    def __str__(self) -> str:
        outs = ",".join(f"%{t.id}" for t in self.outputs)
        return f"{outs} = {self.op.name}" + (f" ({self.label})" if self.label else "")

    __repr__ = __str__

    def __reduce__(self) -> tuple[Any, ...]:
        from rlx.ir.pickling import node_at

        if not self.outputs:
            raise GraphError(f"node {self} belongs to no graph, so that it cannot be pickled or copied")
        graph = self.outputs[0].graph
        return node_at, (graph, graph.nodes.index(self))


class Tensor(TensorMethods):
    """The user's handle to one tensor of a graph.

    `id` is unique in the graph and the key of its memory slot; `type` holds `shape` and `dtype`; `node` makes the
    tensor, and `index` says which of the node's outputs it is. The tensor has Python's operators and NumPy's
    broadcasting; `rlx.ops.operators` attaches them.
    """

    __slots__ = ("graph", "id", "index", "node", "type")
    __array_priority__ = 1000  # so that ndarray + Tensor calls the Tensor's operator
    # For a number that takes its dtype from the other operands (rlx.ir.number), its Python type; else None.
    weak: type[bool | int | float] | None = None

    def __init__(self, graph: Graph, id: int, type: TensorType, node: Node, index: int) -> None:
        self.graph = graph
        self.id = id
        self.type = type
        self.node = node
        self.index = index

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def ndim(self) -> int:
        return len(self.type.shape)

    @property
    def size(self) -> int:
        return self.type.numel

    def as_dtype(self, dtype: DType) -> Tensor:
        """A weak number as a tensor of the dtype."""
        raise AssertionError(f"{self!r} has a dtype of its own")

    def concrete(self) -> Tensor:
        """The graph's tensor that this represents: itself or, for a weak number, the input that holds it."""
        return self

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a rank-0 tensor")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"Tensor(%{self.id}: {self.type} = {self.node.op.name})"

    __hash__ = object.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        from rlx.ir.pickling import tensor_of

        return tensor_of, (self.graph, self.id)


class Graph:
    """A static tensor program.

    `nodes` run in order. `inputs` are given at each run; `params` are weights, set once; `states` persist between
    runs and take the values of `updates` at the end of each; `outputs` are returned by a run. All but `nodes` are
    dicts by name.

    Shapes are tuples of ints, () for a scalar. Dtypes are names ("f32", "bf16", "i64", …), NumPy dtypes, or rlx
    dtypes such as `rlx.bf16`. An argument that does not fit raises GraphError, ShapeError or DTypeError.
    """

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.nodes: list[Node] = []
        self.inputs: dict[str, Tensor] = {}
        self.params: dict[str, Tensor] = {}
        self.states: dict[str, Tensor] = {}
        self.outputs: dict[str, Tensor] = {}
        self.updates: dict[str, Tensor] = {}
        self.outer: Graph | None = None  # the enclosing graph, while this is traced as a body (rlx.ir.body)
        self.traced = False  # whether a jit function was traced into it and compiled: it takes no more nodes
        self.budget: int | None = None  # bytes that the arena of its program may take (rlx.checkpoint)
        self._next_id = 0
        self._changes = 0  # the number of signature changes, by which a program compiled before the last one is noticed

    # -- leaves

    def input(self, name: str, shape: Sequence[int], dtype: DTypeLike = f32) -> Tensor:
        """Declares an input that every run must give."""
        return self._leaf("input", self.inputs, name, shape, dtype)

    def param(self, name: str, shape: Sequence[int], dtype: DTypeLike = f32) -> Tensor:
        """Declares a weight, set once with `set_param` and kept on the device."""
        return self._leaf("param", self.params, name, shape, dtype)

    def state(self, name: str, shape: Sequence[int], dtype: DTypeLike = f32) -> Tensor:
        """Declares state that persists between runs and is zero at first; `update` sets its value after a run."""
        return self._leaf("state", self.states, name, shape, dtype)

    def constant(self, value: npt.ArrayLike | PackedArray, dtype: DTypeLike | None = None) -> Tensor:
        """A tensor whose value is known now. The value is copied, so the caller may go on writing to its array.

        Dtype: `dtype`; else an array's own, f32 for Python floats and lists of them, i64 for ints. Raises: DTypeError
        for a value that the dtype cannot hold, ShapeError for lists whose rows differ in length.
        """
        number: Any = value
        if type(number) in (bool, int, float) and number == number:  # cached arrays; NaN has many bit patterns
            below = type(number) is float and math.copysign(1.0, number) < 0  # -0.0 is equal to 0.0
            array = _number(type(number).__name__, number, below, None if dtype is None else as_dtype(dtype))
            return self.add("constant", (), {"value": array})[0]
        if getattr(getattr(value, "dtype", None), "is_packed", False) and not isinstance(value, PackedArray):
            value = value.numpy()  # type: ignore[union-attr]  # an Array, which lies on a device
        if isinstance(value, PackedArray):
            if dtype is not None and as_dtype(dtype) != value.dtype:
                raise DTypeError(f"constant: {value!r} is not {dtype}; dequantize it, or quantize the floats anew")
            data = value.data.copy()
            data.flags.writeable = False
            return self.add("constant", (), {"value": data, "packed": value.dtype})[0]
        return self.add("constant", (), {"value": _constant(value, dtype)})[0]

    def _leaf(
        self, op: str, table: dict[str, Tensor], name: str, shape: Sequence[int], dtype: DTypeLike
    ) -> Tensor:
        _check_name(op, name)
        for kind, taken in (("an input", self.inputs), ("a param", self.params), ("a state", self.states)):
            if name in taken:
                raise GraphError(f"{op} {name!r}: the graph has {kind} of that name already")
        if traced_into(self) is not self or self.outer is not None:
            raise GraphError(
                f"{op} {name!r}: declared inside a function of cond, while_loop, scan or vmap; declare it before, in "
                "the graph around, and use it inside"
            )
        attrs = {"name": name, "shape": as_shape(shape, f"{op} {name!r}"), "dtype": as_dtype(dtype)}
        tensor = self._append(get_op(op), (), attrs, name)[0]
        table[name] = tensor
        self._changes += 1
        return tensor

    # -- results

    def output(self, name: str, tensor: Tensor) -> Tensor:
        """Names a tensor that a run returns; it may be an input or a param."""
        _check_name("output", name)
        if name.startswith(HIDDEN):
            raise GraphError(f"output {name!r}: names that begin with {HIDDEN!r} are rlx's own; choose another")
        if name in self.outputs:
            raise GraphError(f"output {name!r}: the graph has an output of that name already")
        self._own(tensor, f"output {name!r}")
        tensor = self.outputs[name] = tensor.concrete()
        self._changes += 1
        return tensor

    def update(self, name: str, tensor: Tensor) -> None:
        """Sets the value of state `name` after a run; every read during the run sees the old value."""
        if name not in self.states:
            raise GraphError(
                f"update {name!r}: no such state{meant(name, self.states)}; expected a state's name, then its new "
                f"value; the states are {sorted(self.states)}"
            )
        if name in self.updates:
            raise GraphError(f"update {name!r}: updated twice")
        self._own(tensor, f"update {name!r}")
        if tensor.type != self.states[name].type:
            raise ShapeError(
                f"update {name!r}: the state is {self.states[name].type}, the new value {tensor.type}"
            )
        self.updates[name] = tensor.concrete()
        self._changes += 1

    # -- nodes

    def add(
        self, op: Op | str, inputs: Iterable[Tensor], attrs: Attrs | None = None, label: str = ""
    ) -> tuple[Tensor, ...]:
        """Appends a node and returns its output tensors; the types come from the op's `infer`.

        While a body of a control op is traced, nodes added to the graphs around it become part of the body.
        """
        record = get_op(op) if isinstance(op, str) else op
        home = self.open_graph(f"op {record.name}")
        # A plain tensor of this graph, which nearly all are, stands for itself.
        ins = tuple([
            t if type(t) is Tensor and t.graph is home and not home.traced else home.reach(t, f"op {record.name}")
            for t in inputs
        ])  # fmt: skip
        for name, value in (attrs or {}).items():
            if isinstance(value, Tensor) or (type(value) is tuple and any(isinstance(v, Tensor) for v in value)):
                raise TracedValueError(f"op {record.name}: its {name} is {value!r}, which is known only in a run")
        return home._append(record, ins, attrs or {}, label)

    def open_graph(self, what: str) -> Graph:
        """The graph that takes nodes added to this one, as `traced_into` says.

        Raises: GraphError for a body whose function has returned, since nodes added there would never run."""
        if TRACING.body is None and self.outer is None and not self.traced:  # nearly always
            return self
        home = traced_into(self)
        if home.traced:
            raise TracedValueError(f"{what}: an operand is {leaked(home)}")
        if home.outer is not None and home is not TRACING.body:
            raise GraphError(
                f"{what}: an operand belongs to body {self.name!r}, whose function has returned{_LEAVES}"
            )
        return home

    def reach(self, tensor: Tensor, what: str) -> Tensor:
        """The tensor of this graph that stands for `tensor`: itself. Raises: GraphError for a tensor of another."""
        self._own(tensor, what)
        return tensor.concrete()

    def _append(self, record: Op, ins: tuple[Tensor, ...], attrs: Attrs, label: str) -> tuple[Tensor, ...]:
        node = Node(record, ins, dict(attrs), label)
        types = record.types([t.type for t in ins], node.attrs)
        if len(types) == 1:
            node.outputs = (Tensor(self, self._next_id, types[0], node, 0),)
        else:
            node.outputs = tuple([Tensor(self, self._next_id + i, t, node, i) for i, t in enumerate(types)])
        self._next_id += len(types)
        self.nodes.append(node)
        return node.outputs

    def _own(self, tensor: Tensor, what: str) -> None:
        if not isinstance(tensor, Tensor):
            raise GraphError(f"{what}: expected a Tensor of graph {self.name!r}, got {type(tensor).__name__}")
        if tensor.graph.traced:
            raise TracedValueError(f"{what}: tensor %{tensor.id} is {leaked(tensor.graph)}")
        if tensor.graph is not self:
            here = repr(self.name) if tensor.graph.name != self.name else "this one of the same name"
            advice = _LEAVES if tensor.graph.outer is not None else _APART
            raise GraphError(
                f"{what}: tensor %{tensor.id} belongs to graph {tensor.graph.name!r}, not {here}{advice}"
            )

    def tensors(self) -> Iterable[Tensor]:
        """Every tensor, in the order in which they are made."""
        for node in self.nodes:
            yield from node.outputs

    def declared(self, leaf: Leaf | None) -> dict[str, Tensor]:
        """The inputs, params or states, by name."""
        return {Leaf.INPUT: self.inputs, Leaf.PARAM: self.params}.get(leaf, self.states)  # type: ignore[arg-type]

    def results(self) -> list[Tensor]:
        """The tensors that must exist when a run ends: outputs, then state updates."""
        return [*self.outputs.values(), *self.updates.values()]

    def __repr__(self) -> str:
        tables = (("inputs", self.inputs), ("params", self.params), ("states", self.states))
        listed = [f"{what} {few(list(t))}" for what, t in (*tables, ("outputs", self.outputs)) if t]
        return f"Graph({self.name!r}: {', '.join([f'{len(self.nodes)} nodes', *listed])})"

    def __reduce__(self) -> tuple[Any, ...]:
        from rlx.ir.pickling import reduced

        return reduced(self)

    def _repr_html_(self) -> str:
        """What notebooks show: a picture, or a summary of a large graph."""
        from rlx.ir.picture import html

        return html(self)

    def __str__(self) -> str:
        from rlx.ir.text import to_text

        return to_text(self)


def leaked(graph: Graph) -> str:
    """The text that says what a tensor leaked from a traced function is, and what to write instead."""
    return (
        f"a value of {graph.name!r} while it was traced, which is over: what leaves a traced function is its result; "
        "return it there, and use what the call gives"
    )


def few(items: Sequence[Any], most: int = 8) -> str:
    """The repr of a list; of a long list only the first items are shown."""
    if len(items) <= most:
        return str(list(items))
    return f"[{', '.join(map(repr, items[: most - 2]))}, … {len(items) - most + 2:,} more]"


def _check_name(what: str, name: str) -> None:
    if not isinstance(name, str) or not name:
        raise GraphError(f"{what}: the name must be a non-empty string, not {name!r}")


class Tracing(threading.local):
    """What this thread is tracing: the `body` of a control op, and the `graph` of a jit function; None if there is
    none."""

    body: Graph | None = None
    graph: Graph | None = None
    runs = 0  # programs that this thread has compiled while tracing a function
    # The checks of inputs for a call that computes at once: input names, each with a function that checks an array, and
    # whether rlx.Arrays are read for it.
    checks: list[tuple[str, Callable[[Any], None], bool]] | None = None


TRACING = Tracing()


def traced_graph() -> Graph | None:
    """The graph into which this thread is tracing: a control op's body, else that of a jit function; None if
    neither."""
    return TRACING.graph if TRACING.body is None else TRACING.body


def traced_into(graph: Graph) -> Graph:
    """The graph that takes nodes added to `graph`: the body being traced where `graph` encloses it, else `graph`."""
    around = TRACING.body
    while around is not None:
        if around is graph:
            assert TRACING.body is not None
            return TRACING.body
        around = around.outer
    return graph


def node_of(op: Op | str, types: Iterable[TensorType], attrs: Attrs) -> Node:
    """A node of an op on inputs of these types, in no graph: for asking a device whether it can run it."""
    record = get_op(op) if isinstance(op, str) else op
    leaf = Node(get_op("input"), (), {})
    inputs = tuple(Tensor(_NOWHERE, -1, t, leaf, 0) for t in types)
    node = Node(record, inputs, attrs)
    outputs = record.types([t.type for t in inputs], attrs)
    node.outputs = tuple(Tensor(_NOWHERE, -1, t, node, i) for i, t in enumerate(outputs))
    return node


_NOWHERE = Graph("nowhere")


def apply(op: str, *inputs: Any, **attrs: Any) -> Tensor:
    """Applies a one-output op; Python scalars and arrays beside tensors become constants of the same graph."""
    outs = apply_multi(op, *inputs, **attrs)
    if len(outs) != 1:
        raise GraphError(f"op {op} has {len(outs)} outputs; use apply_multi")
    return outs[0]


def apply_multi(op: str, *inputs: Any, **attrs: Any) -> tuple[Tensor, ...]:
    """Applies an op and returns all its outputs."""
    graph = graph_of(op, inputs)
    return graph.add(op, as_tensors(graph, inputs), attrs)


class NoGraph(GraphError):
    """An op was applied to no tensor, where no function is traced: rlx's public functions then compute at once."""


def graph_of(op: str, inputs: Iterable[Any]) -> Graph:
    """The graph of the first Tensor among the inputs or, if there is none, the graph into which this thread is tracing.

    Raises: GraphError where there is neither, or the graph is closed to nodes."""
    for x in inputs:
        if isinstance(x, Tensor):
            x.graph.open_graph(op)
            return x.graph
    home = traced_graph()
    if home is not None:
        return home
    raise NoGraph(
        f"{op}: no argument is a Tensor; make one with Graph.input, Graph.param or Graph.constant, or give a function "
        "of jit or grad arrays or numbers"
    )


def _has_dtype(value: Any) -> bool:
    """Whether the value is an array with a dtype of its own and not a Tensor. np.float64 is a Python float too, and
    weak."""
    own = isinstance(value, np.ndarray | np.generic) or isinstance(getattr(value, "dtype", None), DType)
    return own and not isinstance(value, Tensor | float)


def _constant(value: Any, dtype: DTypeLike | None) -> npt.NDArray[Any]:
    """The array of a constant, which nobody may write to."""
    array = as_array(value, "constant")
    if dtype is None:
        dtype = (
            f32
            if array.dtype == np.float64 and not isinstance(value, np.ndarray | np.generic)
            else array.dtype
        )
    array = exactly(array, as_dtype(dtype), "constant")
    array.flags.writeable = False
    return array


@functools.lru_cache(1024)
def _number(kind: str, value: float, below_zero: bool, dtype: DType | None) -> npt.NDArray[Any]:
    """The cached array of a Python number. Numbers that Python finds equal are told apart by `kind` and by the sign."""
    return _constant(value, dtype)


def as_tensors(graph: Graph, inputs: Iterable[Any]) -> tuple[Tensor, ...]:
    """Each input as a Tensor of `graph`.

    Python scalars, also those of a traced call, are weak: `weak_dtype` gives their dtype from the promoted dtype of the
    others."""
    from rlx.dtypes import promote

    items = list(inputs)
    for x in items:
        if type(x) is not Tensor:
            break
    else:
        return tuple(items)
    plain = [x for x in items if not getattr(getattr(x, "dtype", None), "is_packed", False)]
    dtypes = [x.dtype for x in plain if isinstance(x, Tensor) and x.weak is None]
    if not dtypes:
        arrays = [x for x in plain if _has_dtype(x)]
        dtypes = [as_dtype(x.dtype) for x in arrays or plain if isinstance(x, Tensor) or _has_dtype(x)]
    weak = any(isinstance(x, bool | int | float) or (isinstance(x, Tensor) and x.weak is not None) for x in items)
    beside = promote(*dtypes) if dtypes and weak else f32
    tensors = []
    for x in items:
        if isinstance(x, Tensor):
            tensors.append(x if x.weak is None else x.as_dtype(weak_dtype(x.weak(0), beside)))
        elif isinstance(x, bool | int | float):  # np.float64 is a float too, and weak like any scalar
            tensors.append(graph.constant(x, weak_dtype(x, beside)))
        else:
            tensors.append(graph.constant(x))
    return tuple(tensors)


explain(Graph)
