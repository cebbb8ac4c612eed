"""Elementwise ops: the ONNX operator of the same meaning if there is one, else their expression, node by node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlx.dtypes import bool_, f32
from rlx.ir import Attrs, Expr, Node, get_op
from rlx.ir.expr import arg, linearize
from rlx.ir.types import broadcast_shapes
from rlx.onnx.writer.draft import Draft, Value
from rlx.onnx.writer.scalar import convert, scalar
from rlx.onnx.writer.table import writes
from rlx.ops.elementwise.prims import places
from rlx.ops.matmul import ACTIVATIONS
from rlx.passes.trees import explicit, node_trees

# Primitives whose results stay in the range of u8 and i8 when their arguments do.
_STAYS = frozenset({"max", "min", "select", "mod", "fmod", "and", "or", "xor", "sign", "shr"})

Direct = Callable[[Draft, Value, Attrs], "Value | None"]


def _plain(kind: str, since: int = 1, **names: str) -> Direct:
    """A writer of one operator; `names` maps rlx's attributes to its own."""

    def write(d: Draft, x: Value, attrs: Attrs) -> Value | None:
        return (
            d.op(kind, x, **{theirs: attrs[ours] for ours, theirs in names.items()})
            if d.opset >= since
            else None
        )

    return write


def _gelu(d: Draft, x: Value, attrs: Attrs) -> Value | None:
    return d.op("Gelu", x, approximate=attrs["approximate"]) if d.opset >= 20 else None


def _silu(d: Draft, x: Value, attrs: Attrs) -> Value:
    return d.op("Mul", x, d.op("Sigmoid", x))


def _isinf(d: Draft, x: Value, attrs: Attrs) -> Value:
    signs = {f"detect_{s}": int(attrs[s]) for s in ("positive", "negative")}
    return d.op("IsInf", x, dtype=bool_, **signs)


# For f32 only: ONNX's attributes are f32, too inexact for f64 values.
DIRECT: dict[str, Direct] = {
    "relu": _plain("Relu"),
    "sigmoid": _plain("Sigmoid"),
    "silu": _silu,
    "gelu": _gelu,
    "softplus": _plain("Softplus"),
    "mish": _plain("Mish", 18),
    "elu": _plain("Elu", alpha="alpha"),
    "selu": _plain("Selu", alpha="alpha", gamma="gamma"),
    "leaky_relu": _plain("LeakyRelu", alpha="alpha"),
    "hard_sigmoid": _plain("HardSigmoid", alpha="alpha", beta="beta"),
    "hard_swish": _plain("HardSwish"),
    "isinf": _isinf,
}


def _direct(d: Draft, x: Value, op: str, attrs: Attrs) -> Value | None:
    """An op on f32 values as the ONNX operator of the same meaning; None if there is none."""
    direct = DIRECT.get(op)
    return direct(d, x, attrs) if direct is not None and x.dtype == f32 else None


def activated(d: Draft, x: Value, name: str | None) -> Value:
    """The epilogue activation of matmul and conv; x itself for None."""
    if name is None:
        return x
    op, attrs = ACTIVATIONS[name]
    rule = get_op(op).expr
    assert rule is not None
    return _direct(d, x, op, attrs) or trees(d, [rule([arg(0, x.dtype)], attrs)], [x])[0]


@writes("elementwise")
def elementwise(d: Draft, node: Node, inputs: list[Value]) -> Sequence[Value]:
    out = node.outputs[0]
    if len(inputs) == 1 and node.op.name in DIRECT and inputs[0].dtype.is_float:
        result = _direct(d, d.wide(inputs[0]), node.op.name, node.attrs)
        if result is not None:
            return [d.narrow(result, out.dtype)]
    roots = explicit(node_trees(node))
    values = trees(d, roots, inputs, out.shape)
    return [_shaped(d, node, v, root) for v, root in zip(values, roots, strict=True)]


def trees(
    d: Draft, roots: Sequence[Expr], inputs: list[Value], shape: tuple[int, ...] | None = None
) -> list[Value]:
    """The roots' values, in the shapes to which their inputs broadcast; common subexpressions are written once. "index"
    counts the elements of `shape`."""
    values: dict[Expr, Value] = {}
    for e in linearize(roots):
        if e.prim == "index":
            assert shape is not None
            values[e] = d.const(places(0, shape))
            continue
        values[e] = _value(d, e, [values[a] for a in e.args], inputs)
    return [d.narrow(values[root], root.dtype) for root in roots]


def _value(d: Draft, e: Expr, args: list[Value], inputs: list[Value]) -> Value:
    """The value of an expression in its dtype of computation; only inputs and casts may stay in a half dtype."""
    if e.prim == "arg":
        v = inputs[int(e.value or 0)]
        return v if v.dtype.is_half else _worked(d, v)
    if e.prim == "lit":
        number: Any = e.value
        return _worked(d, d.const(number, e.dtype))
    if e.prim == "cast":
        return _worked(d, convert(d, args[0], e.dtype))
    result = scalar(d, e.prim, args, e.dtype)
    small = e.dtype.is_int and e.dtype.itemsize == 1
    return _worked(d, d.cast(result, e.dtype)) if small and e.prim not in _STAYS else result


def _worked(d: Draft, v: Value) -> Value:
    return d.wide(v) if v.dtype.is_int else v


def _shaped(d: Draft, node: Node, v: Value, root: Expr) -> Value:
    """The value expanded to the node's shape, if the inputs that the root reads do not broadcast to it."""
    read = {int(e.value or 0) for e in linearize([root]) if e.prim == "arg"}
    shape = node.outputs[0].shape
    read_shape = broadcast_shapes(*(node.inputs[i].shape for i in read)) if read else ()
    if any(e.prim == "index" for e in linearize([root])):
        return v
    return v if read_shape == shape else d.op("Expand", v, d.ints(shape))
