"""Ops along axes: reductions, running sums, softmax and its relatives, layer norms, argmax, top-k and sorting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.dtypes import bool_, f64, i32, i64
from rlx.ir import Attrs, Node, Tensor, apply
from rlx.onnx.writer.draft import Draft, Value
from rlx.onnx.writer.table import composes, writes
from rlx.ops.base import cast_to
from rlx.ops.reduce import sum_dtype

_REDUCE = {
    "sum": "ReduceSum",
    "mean": "ReduceMean",
    "prod": "ReduceProd",
    "max": "ReduceMax",
    "min": "ReduceMin",
}


@writes(*_REDUCE)
def reduce(d: Draft, node: Node, inputs: list[Value]) -> Value:
    axes, out = node.attrs["axes"], node.outputs[0]
    x = d.wide(inputs[0])
    if x.dtype == i32 and not node.op.picks:
        x = d.cast(x, i64)  # i64, so that the low 32 bits are correct however a runtime handles overflow
    if axes:
        x = d.op(_REDUCE[node.op.name], x, d.ints(axes), keepdims=int(node.attrs["keepdims"]))
    return d.narrow(x, out.dtype)


@writes("cumsum")
def cumsum(d: Draft, node: Node, inputs: list[Value]) -> Value:
    a = node.attrs
    flags: dict[str, Any] = {k: int(a[k]) for k in ("exclusive", "reverse")}
    return d.narrow(
        d.op("CumSum", d.wide(inputs[0]), d.const(a["axis"], i64), **flags), node.outputs[0].dtype
    )


@composes("cumprod")
def cumprod(inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    """A scan in log₂ n steps, which multiply by the element 1, 2, 4, … places before, so in another order than a
    running product. Floats are in f64, where partial products do not overflow or underflow unless the whole does."""
    (x,) = inputs
    axis, back = attrs["axis"], attrs["reverse"]
    result = sum_dtype(x.dtype)
    y = cast_to(x, f64 if result.is_float else result)
    n = x.shape[axis]
    if attrs["exclusive"]:
        y = _moved(y, axis, 1, back)
    step = 1
    while step < n:
        y = y * _moved(y, axis, step, back)
        step *= 2
    return cast_to(y, result)


def _moved(x: Tensor, axis: int, by: int, back: bool) -> Tensor:
    """x shifted along an axis (against it with `back`), filled with ones."""
    n = x.shape[axis]
    kept = [slice(None)] * x.ndim
    kept[axis] = slice(by, n) if back else slice(0, n - by)
    pads = tuple(((0, by) if back else (by, 0)) if i == axis else (0, 0) for i in range(x.ndim))
    one: Any = 1.0 if x.dtype.is_float else 1
    return apply("pad", x[tuple(kept)], pads=pads, mode="constant", value=one)


@writes("softmax", "log_softmax")
def softmax(d: Draft, node: Node, inputs: list[Value]) -> Value:
    kind = "Softmax" if node.op.name == "softmax" else "LogSoftmax"
    return d.narrow(d.op(kind, d.wide(inputs[0]), axis=node.attrs["axis"]), node.outputs[0].dtype)


@writes("logsumexp")
def logsumexp(d: Draft, node: Node, inputs: list[Value]) -> Value:
    """The maximum is subtracted before the exponential, unless it is infinite, since inf - inf is NaN."""
    out, (x,) = node.outputs[0], node.inputs
    if not x.size:
        return d.const(np.full(out.shape, -math.inf), out.dtype)
    wide, axes = d.wide(inputs[0]), d.ints([node.attrs["axis"]])
    best = d.op("ReduceMax", wide, axes)
    best = d.where(d.op("IsInf", best, dtype=bool_), d.like(0.0, best), best)
    total = d.op("ReduceSum", d.op("Exp", d.op("Sub", wide, best)), axes)
    return d.narrow(d.op("Add", d.op("Log", total), best), out.dtype)


def _not_f64(node: Node) -> bool:
    """Whether the node is not in f64. Attributes and statistics of ONNX's norms are f32, so f64 is decomposed."""
    return node.inputs[0].dtype != f64


@writes("layer_norm", when=_not_f64)
def layer_norm(d: Draft, node: Node, inputs: list[Value]) -> Value:
    x, gamma, beta = _same(d, inputs)
    normed = d.op("LayerNormalization", x, gamma, beta, axis=-1, epsilon=node.attrs["eps"])
    return d.narrow(normed, node.outputs[0].dtype)


@writes("rms_norm", when=_not_f64)
def rms_norm(d: Draft, node: Node, inputs: list[Value]) -> Value:
    x, gamma, *beta = _same(d, inputs)
    if d.opset >= 23:
        normed = d.op("RMSNormalization", x, gamma, axis=-1, epsilon=node.attrs["eps"])
    else:
        square = d.op("ReduceMean", d.op("Mul", x, x), d.ints([node.inputs[0].ndim - 1]))
        deviation = d.op("Sqrt", d.op("Add", square, d.like(node.attrs["eps"], x)))
        normed = d.op("Mul", d.op("Div", x, deviation), gamma)
    return d.narrow(d.op("Add", normed, *beta) if beta else normed, node.outputs[0].dtype)


def _same(d: Draft, inputs: list[Value]) -> list[Value]:
    """f16 and bf16 as f32, and all inputs in the dtype of the first."""
    first = d.wide(inputs[0])
    return [first, *(d.cast(v, first.dtype) for v in inputs[1:])]


@writes("batch_norm", when=_not_f64)
def batch_norm(d: Draft, node: Node, inputs: list[Value]) -> Value:
    x, *statistics = _same(d, inputs)
    channels = [node.inputs[0].shape[1]]
    gamma, beta, mean, var = (d.reshape(v, channels) for v in statistics)
    return d.narrow(
        d.op("BatchNormalization", x, gamma, beta, mean, var, epsilon=node.attrs["eps"]),
        node.outputs[0].dtype,
    )


# -- selection


@writes("argmax", "argmin")
def arg(d: Draft, node: Node, inputs: list[Value]) -> Value:
    a = node.attrs
    flags: dict[str, Any] = {k: int(a[k]) for k in ("keepdims", "select_last_index")}
    kind = "ArgMax" if node.op.joins == "max" else "ArgMin"
    return d.op(kind, d.wide(inputs[0]), dtype=i64, axis=a["axis"], **flags)


def _best(d: Draft, x: Value, k: int, axis: int, largest: bool) -> list[Value]:
    wide = d.wide(x)
    best = d.ops("TopK", [wide, d.ints([k])], (wide.dtype, i64), axis=axis, largest=int(largest), sorted=1)
    return [d.narrow(best[0], x.dtype), best[1]]


@writes("sort", "argsort")
def sort(d: Draft, node: Node, inputs: list[Value]) -> Sequence[Value]:
    axis = node.attrs["axis"]
    best = _best(d, inputs[0], node.inputs[0].shape[axis], axis, node.attrs["descending"])
    return best[-len(node.outputs) :]


@writes("top_k")
def top_k(d: Draft, node: Node, inputs: list[Value]) -> Sequence[Value]:
    a = node.attrs
    return _best(d, inputs[0], a["k"], a["axis"], a["largest"])
