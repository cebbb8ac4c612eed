"""fused: a fusion group, several elementwise ops as one node, which the fusion pass makes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.autodiff.pullback import pullback
from rlx.dtypes import DType
from rlx.errors import ShapeError
from rlx.ir import Attrs, Cost, Expr, Graph, Node, Op, Tensor, TensorType, apply, register
from rlx.ir.expr import linearize, substitute
from rlx.ir.types import as_shape, broadcast_shapes
from rlx.ops.base import cast_to
from rlx.ops.elementwise.prims import evaluate_trees, places, trees_cost
from rlx.ops.numeric import Array

# The op that computes each primitive alone; `tensor_of_prim` itself handles those whose ops have attributes.
_PRIM_OPS = {
    "neg": "neg", "abs": "abs", "sign": "sign", "sqrt": "sqrt", "rsqrt": "rsqrt", "recip": "reciprocal",
    "exp": "exp", "log": "log", "sin": "sin", "cos": "cos", "tanh": "tanh", "erf": "erf", "floor": "floor",
    "ceil": "ceil", "round": "round", "trunc": "trunc", "expm1": "expm1", "log1p": "log1p", "exp2": "exp2",
    "log2": "log2", "log10": "log10", "cbrt": "cbrt", "tan": "tan", "asin": "asin", "acos": "acos",
    "atan": "atan", "sinh": "sinh", "cosh": "cosh", "asinh": "asinh", "acosh": "acosh", "atanh": "atanh",
    "isnan": "isnan", "mod": "mod", "fmod": "fmod", "floordiv": "floor_divide", "atan2": "atan2",
    "shl": "left_shift", "shr": "right_shift", "not": "logical_not", "add": "add", "sub": "sub", "mul": "mul",
    "div": "div", "pow": "pow", "max": "maximum", "min": "minimum", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater",
    "ge": "greater_equal", "select": "where", "multiply_high": "multiply_high", "gumbel": "gumbel",
}  # fmt: skip
_WORD_OF = {"threefry": "xor", "threefry_first": "first", "threefry_second": "second"}


def _infer(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    shape = as_shape(attrs["shape"], "fused")
    trees: tuple[Expr, ...] = attrs["trees"]
    if not trees:
        raise ShapeError("fused: no trees; expected one for each output")
    if broadcast_shapes(shape, *(t.shape for t in types), op="fused") != shape:
        raise ShapeError(
            f"fused: inputs {', '.join(str(t.shape) for t in types)} do not broadcast to {shape}"
        )
    for number, dtype in _arguments(tuple(trees)):
        if not 0 <= number < len(types) or types[number].dtype != dtype:
            came = ", ".join(map(str, types))
            raise ShapeError(f"fused: a tree reads argument {number} as {dtype}; the inputs are {came}")
    return tuple(TensorType(shape, tree.dtype) for tree in trees)


@functools.lru_cache(1 << 10)
def _arguments(trees: tuple[Expr, ...]) -> list[tuple[int, DType]]:
    """(input number, dtype it is read as) of each argument of the trees."""
    return [(int(e.value or 0), e.dtype) for e in linearize(trees) if e.prim == "arg"]


def evaluate(arrays: Sequence[Array], attrs: Attrs, upcast: bool = False) -> tuple[Array, ...]:
    """The outputs of a fused node; `upcast` as in `evaluate_trees`."""
    shape = attrs["shape"]
    results = []
    for value in evaluate_trees(attrs["trees"], arrays, upcast, shape):
        full = value if value.shape == shape else _expanded(value, shape)
        results.append(full)
    return tuple(results)


def _expanded(value: Array, shape: tuple[int, ...]) -> Array:
    return np.array(np.broadcast_to(value, shape))


def _reference(*arrays: Array, trees: tuple[Expr, ...], shape: tuple[int, ...]) -> Any:
    upcast = any(
        a.dtype.itemsize == 8 and a.dtype.kind == "f" and e.dtype.name != "f64"
        for e in linearize(trees)
        if e.prim == "arg"
        for a in [arrays[int(e.value or 0)]]
    )
    return evaluate(arrays, {"trees": trees, "shape": shape}, upcast)


def tensor_of_prim(graph: Graph, e: Expr, args: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """A tree node other than "arg" as the op that computes its primitive; `shape` is that of the fused node, for
    "index"."""
    if e.prim == "lit":
        assert e.value is not None
        return graph.constant(e.value, e.dtype)
    if e.prim == "cast":
        return cast_to(args[0], e.dtype)
    if e.prim == "isinf":
        return apply("isinf", args[0], positive=True, negative=True)
    if e.prim == "index":
        return graph.constant(places(0, shape))
    if e.prim in _WORD_OF:
        return apply("threefry", *args, word=_WORD_OF[e.prim])
    return apply(_PRIM_OPS[e.prim], *args)


def _decompose(inputs: Sequence[Tensor], attrs: Attrs) -> tuple[Tensor, ...]:
    shape = attrs["shape"]
    tensor_of: dict[Expr, Tensor] = {}
    for e in linearize(attrs["trees"]):
        if e.prim == "arg":
            assert isinstance(e.value, int)
            tensor_of[e] = inputs[e.value]
        else:
            tensor_of[e] = tensor_of_prim(inputs[0].graph, e, [tensor_of[a] for a in e.args], shape)
    outs = (tensor_of[t] for t in attrs["trees"])
    return tuple(t if t.shape == shape else apply("expand", t, shape=shape) for t in outs)


def _vjp(node: Node, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    outs = _decompose(node.inputs, node.attrs)
    return pullback(outs, grads, node.inputs, stop=True)


def _tree_of_fused(args: Sequence[Expr], attrs: Attrs) -> Expr:
    if len(attrs["trees"]) != 1:
        raise ShapeError("fused: several outputs have no single expression; read the attribute trees")
    tree: Expr = attrs["trees"][0]
    return substitute(tree, args)


def _cost(node: Node) -> Cost:
    return trees_cost(node, node.attrs["trees"])


register(
    Op("fused", "elementwise", _infer, _reference, "the expression of each op it was made of", _vjp, _tree_of_fused,
       decompose=_decompose, inplace=tuple(range(8)), cost=_cost)  # each element is read before it is written
)  # fmt: skip
