"""Graphs as data: lists, numbers and names, from which the same graphs are made again, with every claim checked.

A node is [op, id of its first output, ids of its inputs, attributes, label]; ids are kept, since reports show them. The
types of a node's outputs are not in the data: the op infers them, as it does for a graph written by hand, and rejects
invalid attributes. Scalar expressions are a table of [primitive, arguments, dtype, value] in which equal ones appear
once. Bodies of control ops are graphs listed before the graph that uses them. Arrays are blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlx.driver.device import Bytes
from rlx.dtypes import DType, as_dtype, i32
from rlx.errors import DTypeError, ModelFormatError, UnsupportedOp
from rlx.host.files import shown
from rlx.ir import HOST, REGISTRY, Expr, Graph, Node, Tensor, TensorType, bodies
from rlx.ir.body import MAX_DEPTH
from rlx.ir.expr import PRIMS, call, linearize
from rlx.ir.graph import HIDDEN
from rlx.ops.attention.parts import ByToken
from rlx.ops.elementwise.prims import evaluate_trees
from rlx.runtime.custom import FAMILY

MAX_WORD_CHARACTERS = 4096  # a name, a label or an attribute
# Limits on the steps of reading and planning the graphs of a file. A step takes some tens of µs: the first limit is
# about 2 s. The graphs of networks take some thousands of steps; only a trusted file may exceed the first limit.
MAX_STEPS, MAX_TRUSTED = 1 << 15, 1 << 20
# The steps that a node counts as, the steps of each use of a body, and the nodes of an expression tree per step.
_NODE, _BODY, _PARTS = 2, 16, 4
MAX_ID = 1 << 40  # a tensor's number
MAX_ATTRIBUTE_ITEMS = 1 << 16
# Limit on an expression's nodes, shared parts counted at each use, as printing visits them. Fusion stays below it.
MAX_SPREAD = 1 << 13
_PLAIN = {type(None), bool, int, str}
MAX_DEPTH_OF_EXPR = 200  # recursion over it must stay below Python's limit of a thousand calls


class GraphsWriter:
    """Collects graphs, their expressions and their arrays as data."""

    def __init__(self, add_block: Callable[[Bytes], int]) -> None:
        self.graphs: list[dict[str, Any]] = []
        self.exprs: list[list[Any]] = []
        self._add_block = add_block
        self._exprs: dict[Expr, int] = {}
        self._numbers: dict[int, int] = {}
        self._arrays: dict[int, dict[str, Any]] = {}
        self._kept: list[Graph] = []  # kept alive, so that no id in `_numbers` or `_arrays` is used again

    def add(self, graph: Graph) -> int:
        """The number of a graph. Raises: UnsupportedOp for a node that no file can hold."""
        number = self._numbers.get(id(graph))
        if number is not None:
            return number
        nodes = []
        for node in graph.nodes:
            attrs = {name: self._value(value, node) for name, value in node.attrs.items()}
            nodes.append([_op_name(node), node.outputs[0].id, [t.id for t in node.inputs], attrs, node.label])
        data: dict[str, Any] = {"name": graph.name, "nodes": nodes}
        if graph.budget is not None:
            data["budget"] = graph.budget
        for what, table in (("outputs", graph.outputs), ("updates", graph.updates)):
            data[what] = {name: t.id for name, t in table.items()}
        self.graphs.append(data)
        self._kept.append(graph)
        self._numbers[id(graph)] = len(self.graphs) - 1
        return len(self.graphs) - 1

    def _value(self, value: Any, node: Node) -> Any:
        if type(value) in _PLAIN:  # nearly all attributes
            return value
        if isinstance(value, ByToken):
            return {"tokens": value.value}
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": repr(value)}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, tuple | list):
            return [self._value(item, node) for item in value]
        if isinstance(value, DType):
            return {"dtype": value.name}
        if isinstance(value, Graph):
            return {"graph": self.add(value)}
        if isinstance(value, Expr):
            return {"expr": self._expr(value, node)}
        if isinstance(value, np.ndarray):
            if id(value) not in self._arrays:  # equal numbers in a graph are one array
                raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
                self._arrays[id(value)] = {
                    "array": self._add_block(raw),
                    "shape": list(value.shape),
                    "dtype": as_dtype(value.dtype).name,
                }
            return self._arrays[id(value)]
        raise UnsupportedOp(
            f"save: {node} has a {type(value).__name__} among its attributes, which no file can hold; save a program "
            "without it"
        )

    def _expr(self, tree: Expr, node: Node) -> int:
        for e in linearize([tree]):
            if e not in self._exprs:
                args = [self._exprs[a] for a in e.args]
                self.exprs.append([e.prim, args, e.dtype.name, self._value(e.value, node)])
                self._exprs[e] = len(self.exprs) - 1
        return self._exprs[tree]


def _op_name(node: Node) -> str:
    op = node.op
    if op.family == FAMILY or not op.infer.__module__.startswith("rlx."):
        raise UnsupportedOp(
            f"save: {node} is an op of the user's own; its functions are Python code, which no file of rlx holds: save "
            "the weights, and compile the graph where its op is registered"
        )
    return op.name


class GraphsReader:
    """Makes graphs again from untrusted data; `block` gives a block's bytes.

    Raises: ModelFormatError, and what ops raise for attributes and inputs that they refuse."""

    def __init__(self, exprs: Any, block: Callable[[Any], Bytes], where: str, trusted: bool = False) -> None:
        self._where = where
        self._read = block
        self._limit = self._left = MAX_TRUSTED if trusted else MAX_STEPS
        # The steps of evaluated expression trees, by the ids of the expressions and the dtypes of their inputs.
        self._tried: dict[tuple[Any, ...], int] = {}
        self._raw: dict[int, Bytes] = {}  # each block once, however often it is named
        self._arrays: dict[tuple[int, TensorType], np.ndarray[Any, Any]] = {}
        self._graphs: list[Graph] = []
        self._numbers: dict[int, int] = {}  # graphs by id
        self._measures: list[tuple[int, int]] = []  # (steps; control ops nested) of each
        self._exprs: list[Expr] = []
        self._size: list[tuple[int, int]] = []  # (nodes with shared parts counted at each use, depth) of each
        known: dict[tuple[Any, ...], int] = {}
        for entry in _listed(exprs, "expressions", where):
            self._spend(1)
            self._add_expr(entry, known)

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise ModelFormatError(
                f"{self._where}: its graphs take more than {self._limit:,} steps to read and plan (a node takes "
                f"{_NODE}, those of a body at each use); trusted=True allows more, for files whose writer you trust"
            )

    def _wrong(self, what: str) -> ModelFormatError:
        return ModelFormatError(f"{self._where}: {what}; save the program anew")

    def read(self, data: Any) -> Graph:
        """The next graph, whose bodies were read before."""
        if not isinstance(data, dict) or data.keys() - {"budget"} != {"name", "nodes", "outputs", "updates"}:
            raise self._wrong(f"holds no graph but {shown(data)}")
        graph = Graph(self._word(data["name"]))
        graph.budget = data.get("budget")
        if graph.budget is not None and (type(graph.budget) is not int or graph.budget < 1):
            raise self._wrong(f"a budget of {graph.budget!r}; expected a number of bytes")
        tensors: dict[int, Tensor] = {}
        depth = end = count = 0
        for entry in _listed(data["nodes"], "nodes", self._where):
            node = self._node(graph, entry, tensors)
            if any(t.id in tensors for t in node.outputs):
                raise self._wrong(f"makes tensor {node.outputs[0].id} twice")
            tensors.update((t.id, t) for t in node.outputs)
            end = max(end, graph._next_id)
            before = count
            for body in bodies(node).values():
                inside, below = self._measures[self._numbers[id(body)]]
                count, depth = count + _BODY + inside, max(depth, 1 + below)
                if body.states or body.updates:
                    raise self._wrong(f"{node}: its body {shown(body.name)} has states of its own")
            count += _NODE
            self._spend(count - before)
            if depth > MAX_DEPTH:
                raise self._wrong(f"has control ops nested {depth} deep; at most {MAX_DEPTH}")
        for what, add in (("outputs", graph.output), ("updates", graph.update)):
            if not isinstance(data[what], dict):
                raise self._wrong(f"has {what} that are no object: {shown(data[what])}")
            self._spend(_NODE * len(data[what]))
            for name, number in data[what].items():
                t = self._tensor(number, tensors)
                if what == "outputs" and self._word(name).startswith(HIDDEN):
                    graph.outputs[name] = t
                else:
                    add(self._word(name), t)
        graph._next_id = end
        self._numbers[id(graph)] = len(self._graphs)
        self._graphs.append(graph)
        self._measures.append((count, depth))
        return graph

    def _node(self, graph: Graph, entry: Any, tensors: Mapping[int, Tensor]) -> Node:
        match entry:
            case [str(name), int(first), list(inputs), dict(attributes), str(label)] if (
                len(label) <= MAX_WORD_CHARACTERS and 0 <= first < MAX_ID and not isinstance(first, bool)
            ):
                op = REGISTRY.get(name) or HOST.get(name)
                graph._next_id = first
            case _:
                raise self._wrong(f"has {shown(entry)} in the place of a node")
        if op is None or op.family == FAMILY:
            raise self._wrong(f"has a node of the op {shown(name)}, which rlx does not have")
        attrs = {key: self._value(value) for key, value in attributes.items()}
        ins = [self._tensor(number, tensors) for number in inputs]
        if op.declared:
            if attrs.keys() != {"name", "shape", "dtype"} or ins or not isinstance(attrs["dtype"], DType):
                raise self._wrong(f"has a node of the op {name} that is {shown(attributes)}")
            declare = {"input": graph.input, "param": graph.param, "state": graph.state}[name]
            node = declare(self._word(attrs["name"]), attrs["shape"], attrs["dtype"]).node
            node.label = label
            return node
        if op.is_constant:
            attrs = self._constant(attrs)
        elif any(isinstance(value, np.ndarray) for value in attrs.values()):
            raise self._wrong(f"has a node of the op {name} with an array among its attributes")
        node = graph.add(op, ins, attrs, label)[0].node
        if "trees" in attrs:  # evaluating them raises for a primitive that these dtypes do not have
            trees, dtypes = attrs["trees"], tuple(t.dtype.name for t in node.inputs)
            tried = (tuple(map(id, trees)), dtypes)  # ids stay unique, since the reader keeps every expression
            if tried not in self._tried:
                self._tried[tried] = len(linearize(trees)) // _PARTS
                self._spend(self._tried[tried])
                evaluate_trees(trees, [np.zeros((), t.dtype.np) for t in node.inputs], False, ())
            self._spend(self._tried[tried])  # the trees are printed for each node
        return node

    def _tensor(self, number: Any, tensors: Mapping[int, Tensor]) -> Tensor:
        tensor = None if isinstance(number, bool | list | dict) else tensors.get(number)
        if tensor is None:
            raise self._wrong(f"names tensor {shown(number)}, which no node before makes")
        return tensor

    def _constant(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        value, packed = attrs.get("value"), attrs.get("packed")
        if attrs.keys() - {"packed"} != {"value"} or not isinstance(value, np.ndarray):
            raise self._wrong("has a constant without a value")
        if packed is None:
            return {"value": value}
        of = packed.storage if isinstance(packed, DType) and packed.is_packed else None
        if of is None or value.dtype != np.uint8 or not value.ndim or value.shape[-1] % of.nbytes:
            raise self._wrong(f"has a packed constant that is {shown(packed)} of {value.dtype} {value.shape}")
        return {"value": value, "packed": packed}

    # -- attributes

    def _value(self, value: Any) -> Any:
        if value is None or type(value) is bool:
            return value
        if isinstance(value, str):
            return self._word(value)
        if isinstance(value, int) and not isinstance(value, bool) and not -(1 << 63) <= value < 1 << 63:
            raise self._wrong(f"has an attribute of more than 64 bits: {shown(value)}")
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, list):
            return tuple([self._value(item) for item in _listed(value, "items", self._where, MAX_ATTRIBUTE_ITEMS)])
        match value:
            case {"dtype": str(name), **rest} if not rest:
                return self._dtype(name)
            case {"float": "inf" | "-inf" | "nan" as word, **rest} if not rest:
                return float(word)
            case {"tokens": int(number), **rest} if not rest and not isinstance(number, bool):
                return ByToken(number)
            case {"graph": number, **rest} if not rest and _within(number, self._graphs):
                return self._graphs[number]
            case {"expr": number, **rest} if not rest and _within(number, self._exprs):
                return self._exprs[number]
            case {"array": number, "shape": list(shape), "dtype": str(name), **rest} if not rest:
                return self._array(number, TensorType(self._shape(shape), self._dtype(name)))
        raise self._wrong(f"has an attribute that is {shown(value)}")

    def _array(self, number: Any, t: TensorType) -> np.ndarray[Any, Any]:
        """A block as an array of a type. Each block is read and checked once."""
        known = isinstance(number, int) and (number, t) in self._arrays
        if not known:
            raw = self._raw[number] if isinstance(number, int) and number in self._raw else self._read(number)
            self._raw[number] = raw
            self._spend(raw.nbytes >> 16 if t.dtype.kind == "b" else 0)
            self._arrays[number, t] = array_of(t, raw, self._where)
        return self._arrays[number, t]

    def _shape(self, dims: list[Any]) -> tuple[int, ...]:
        if any(isinstance(d, bool) or not isinstance(d, int) or d < 0 for d in dims):
            raise self._wrong(f"has an array of shape {shown(dims)}")
        return tuple(dims)

    def _word(self, value: Any) -> str:
        if not isinstance(value, str) or len(value) > MAX_WORD_CHARACTERS:
            raise self._wrong(f"has {shown(value)} in the place of a name of at most {MAX_WORD_CHARACTERS} characters")
        return value

    def _dtype(self, name: str) -> DType:
        try:
            return as_dtype(self._word(name))
        except DTypeError:
            raise self._wrong(f"names the dtype {shown(name)}") from None

    # -- expressions

    def _add_expr(self, entry: Any, known: dict[tuple[Any, ...], int]) -> None:
        number = len(self._exprs)
        match entry:
            case [str(prim), list(numbers), str(dtype), value] if all(
                _within(n, self._exprs) for n in numbers
            ):
                args = [self._exprs[n] for n in numbers]
                expr = Expr(prim, tuple(args), self._dtype(dtype), self._value(value))
            case _:
                raise self._wrong(f"has {shown(entry)} in the place of expression {number}")
        if not _sound(expr):
            raise self._wrong(f"has an expression {shown(entry)} that computes nothing")
        spread = 1 + sum(self._size[n][0] for n in numbers)
        depth = 1 + max((self._size[n][1] for n in numbers), default=0)
        if spread > MAX_SPREAD or depth > MAX_DEPTH_OF_EXPR:
            raise self._wrong(f"has an expression of {spread} parts, {depth} deep")
        # Equal expressions are one object: comparing two of them part by part may take exponential time.
        place = known.setdefault((prim, tuple(map(id, args)), dtype, type(value), shown(value)), number)
        self._exprs.append(self._exprs[place] if place < number else expr)
        self._size.append((spread, depth))


def _sound(e: Expr) -> bool:
    """Whether a primitive has these arguments and gives this dtype, as `expr.call` makes it."""
    if e.dtype.is_packed:
        return False
    if e.prim == "arg":
        return not e.args and type(e.value) is int and e.value >= 0
    if e.prim == "lit":
        of = {"b": bool, "f": float}.get(e.dtype.kind, int)
        if e.args or type(e.value) is not of:
            return False
        return of is not int or bool(np.iinfo(e.dtype.np).min <= int(e.value) <= np.iinfo(e.dtype.np).max)
    if PRIMS.get(e.prim) != len(e.args) or e.value is not None:
        return False
    if e.prim == "cast":
        return True
    if e.prim == "index":
        return e.dtype == i32
    if e.prim == "select" and e.args[0].dtype.kind != "b":
        return False
    again = call(e.prim, *e.args)
    return again.dtype == e.dtype and all(a is b for a, b in zip(again.args, e.args, strict=True))


def array_of(t: TensorType, raw: Bytes, where: str) -> np.ndarray[Any, Any]:
    """Bytes as an array of a type; for a packed dtype as an array of bytes. Raises: ModelFormatError if they do not
    make such an array, ShapeError if the type is impossible."""
    if raw.nbytes != t.nbytes:
        raise ModelFormatError(
            f"{where}: holds {raw.nbytes:,} bytes for a tensor {t} of {t.nbytes:,}; save it anew"
        )
    if t.dtype.kind == "b" and raw.size and raw.max() > 1:
        raise ModelFormatError(f"{where}: holds a bool that is neither 0 nor 1; save it anew")
    array: np.ndarray[Any, Any] = raw.view(t.dtype.np).reshape(t.array_shape)
    array.flags.writeable = False
    return array


def names_of(graph: Graph) -> list[list[str]]:
    """The names that a graph declares, by kind."""
    return [list(t) for t in (graph.inputs, graph.params, graph.states, graph.outputs, graph.updates)]


def _listed(value: Any, what: str, where: str, limit: int = 1 << 22) -> list[Any]:
    if not isinstance(value, list) or len(value) > limit:
        raise ModelFormatError(
            f"{where}: expected a list of {what}, at most {limit}, not {shown(value)}; save it anew"
        )
    return value


def _within(number: Any, items: Sequence[Any]) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < len(items)
