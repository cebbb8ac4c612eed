"""Operators of opsets 1 to 6 where they differ: broadcasting asked for by attributes, shapes as attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx import ops as o
from rlx.ir import Tensor
from rlx.onnx.ops.arithmetic import quotient
from rlx.onnx.reader.call import Call, Result
from rlx.onnx.reader.table import op

_BINARY: dict[str, Callable[[Any, Any], Tensor]] = {
    "Add": o.add, "Sub": o.sub, "Mul": o.mul, "Pow": o.pow, "And": o.logical_and, "Or": o.logical_or,
    "Xor": o.logical_xor, "Greater": o.greater, "Less": o.less, "Equal": o.equal,
}  # fmt: skip


def _aligned(c: Call) -> Tensor:
    """The second input reshaped so that it broadcasts: its axes stand at `axis`, or at the end."""
    a, b, axis = c.x(0), c.x(1), c.int("axis")
    if not c.int("broadcast", 0):
        if a.shape != b.shape:
            raise c.bad(f"shapes {a.shape} and {b.shape} differ, and broadcast is not set")
        return b
    if axis is None:
        return b
    axis = axis + a.ndim if axis < 0 else axis
    if axis < 0 or axis + b.ndim > a.ndim:
        raise c.bad(f"axis {axis} for shapes {a.shape} and {b.shape}")
    return o.reshape(b, (*b.shape, *(1,) * (a.ndim - axis - b.ndim)))


def _legacy(function: Callable[[Any, Any], Tensor]) -> Callable[[Call], Result]:
    return lambda c: function(c.x(0), _aligned(c))


for _name, _function in _BINARY.items():
    op(_name, until=7)(_legacy(_function))


@op("Div", until=7)
def div(c: Call) -> Result:
    return quotient(c.x(0), _aligned(c))


@op("Reshape", until=5)
def reshape(c: Call) -> Result:
    x = c.x()
    dims = [x.shape[i] if d == 0 and i < x.ndim else d for i, d in enumerate(c.ints("shape", []))]
    return o.reshape(x, dims)


@op("PRelu", until=7)
def prelu(c: Call) -> Result:
    """One slope a channel, or one for all."""
    x, slope = c.x(0), c.x(1)
    if slope.size == 1 or x.ndim < 2:
        return o.prelu(x, o.reshape(slope, ()) if slope.size == 1 else slope)
    return o.prelu(x, o.reshape(slope, (-1, *(1,) * (x.ndim - 2))))


@op("Dropout", until=7)
def dropout(c: Call) -> tuple[Result, ...]:
    if not c.int("is_test", 0) and c.float("ratio", 0.5):
        raise c.unsupported("training mode draws random numbers; export the model for inference")
    return c.x(), o.ones_like(c.x())


@op("BatchNormalization", until=7)
def batch_norm(c: Call) -> Result:
    if not c.int("is_test", 0) or c.int("spatial", 1) != 1:
        raise c.unsupported("training mode and spatial = 0 are not supported in this version")
    return o.batch_norm(c.x(0), c.x(1), c.x(2), c.x(3), c.x(4), c.float("epsilon", 1e-5))
