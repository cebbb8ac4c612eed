"""Normalizations over channels, groups, trailing axes and neighbouring channels."""

from __future__ import annotations

import math

import numpy as np

from rlx import ops as o
from rlx.dtypes import f32
from rlx.ir import Tensor
from rlx.ir.types import normalize_axes
from rlx.onnx.ops.movement import axis_of
from rlx.onnx.reader.call import Call, Result, Value
from rlx.onnx.reader.declared import FLOATS, declared
from rlx.onnx.reader.elements import ElementType, element
from rlx.onnx.reader.table import op
from rlx.ops.reduce import less_mean


def _column(v: Tensor, like: Tensor) -> Tensor:
    return o.reshape(v, (1, -1, *(1,) * (like.ndim - 2)))


@op("BatchNormalization", since=7)
def batch_norm(c: Call) -> tuple[Result, ...]:
    x, scale, bias, mean, var = (c.x(i) for i in range(5))
    eps, momentum = c.float("epsilon", 1e-5), c.float("momentum", 0.9)
    if not eps >= 0:
        raise c.bad(f"epsilon is {eps}; expected a number that is not negative")
    if c.int("spatial", 1) != 1:
        raise c.unsupported("spatial = 0 is not supported")
    if x.ndim < 2 or any(v.shape != (x.shape[1],) for v in (scale, bias, mean, var)):
        raise c.bad(f"the input is {x.shape}; expected (N, C, …) and scale, bias, mean and variance of (C,)")
    if not c.int("training_mode", 0):
        return (o.batch_norm(x, scale, bias, mean, var, eps),)
    axes = (0, *range(2, x.ndim))
    wide = o.cast(x, f32) if x.dtype.is_half else x
    now = o.mean(wide, axes, keepdims=True)
    away = less_mean(wide, axes)
    spread = o.var(wide, axes, keepdims=True)
    y = o.add(o.mul(o.div(away, o.sqrt(o.add(spread, eps))), _column(scale, x)), _column(bias, x))
    return (
        y,
        o.add(o.mul(mean, momentum), o.mul(o.reshape(now, (-1,)), 1 - momentum)),
        o.add(o.mul(var, momentum), o.mul(o.reshape(spread, (-1,)), 1 - momentum)),
    )


@op("MeanVarianceNormalization", since=9)
def mean_variance_norm(c: Call) -> Result:
    """(x - mean) / (deviation + 1e-9). ONNX's function uses E[x²] - E[x]², which is inaccurate far from 0."""
    x = c.x(0)
    axes = normalize_axes(c.ints("axes", (0, 2, 3)), x.ndim, "MeanVarianceNormalization")
    wide = o.cast(x, f32) if x.dtype.is_half else x
    return o.div(less_mean(wide, axes), o.add(o.std(wide, axes, keepdims=True), 1e-9))


@op("InstanceNormalization")
def instance_norm(c: Call) -> Result:
    x = c.x(0)
    if x.ndim < 2:
        raise c.bad(f"the input is {x.shape}; expected (N, C, …)")
    return o.group_norm(x, x.shape[1], c.x(1), c.x(2), c.float("epsilon", 1e-5))


@op("GroupNormalization")
def group_norm(c: Call) -> Result:
    x, scale, bias, groups = c.x(0), c.x(1), c.x(2), c.int("num_groups")
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise c.bad(f"the input is {x.shape}; expected (N, C, …) with C a multiple of num_groups {groups}")
    if c.version >= 21:
        _stash(c)
    else:  # one value a group
        each = x.shape[1] // groups
        scale, bias = (
            o.reshape(o.expand(o.reshape(v, (groups, 1)), (groups, each)), (-1,)) for v in (scale, bias)
        )
    return o.group_norm(x, groups, scale, bias, c.float("epsilon", 1e-5))


def _stash(c: Call) -> ElementType:
    """The type of means and deviations. What they are computed in is at least as wide."""
    return element(c.choice("stash_type", 1, 10, 11, 16), c.where)


def _flat(v: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A scale that broadcasts to `shape`, as one row."""
    return v if len(shape) == 1 and v.shape == shape else o.reshape(o.expand(v, shape), (math.prod(shape),))


# Models of opsets before 17 contain this operator, which onnx has since 17; it is built as that one is.
declared(
    "LayerNormalization", inputs="X:T Scale:V B:V?", outputs="Y:V Mean:U? InvStdDev:U?",
    types={"T": FLOATS, "V": FLOATS, "U": "float double"},
    attributes={"axis": -1, "epsilon": 1e-5, "stash_type": 1}, domain="",
)  # fmt: skip


@op("LayerNormalization")
def layer_norm(c: Call) -> tuple[Result, ...]:
    x, scale, bias, eps, stash = c.x(0), c.x(1), c.opt(2), c.float("epsilon", 1e-5), _stash(c)
    axis = axis_of(c, c.int("axis", -1), x.ndim)
    lead, tail = x.shape[:axis], x.shape[axis:]
    rows = x if len(tail) == 1 else o.reshape(x, (math.prod(lead), math.prod(tail)))
    gamma = _flat(scale, tail)
    beta = c.tensor(np.zeros(gamma.shape, gamma.dtype.np)) if bias is None else _flat(bias, tail)
    y = o.reshape(o.layer_norm(rows, gamma, beta, eps), x.shape)
    if c.n_outputs < 2:
        return (y,)
    wide = o.cast(x, f32) if x.dtype.is_half else x
    axes = tuple(range(axis, x.ndim))
    mean = o.mean(wide, axes, keepdims=True)
    deviation = o.reciprocal(o.sqrt(o.add(o.var(wide, axes, keepdims=True), eps)))
    return y, *(Value(c.cast(t, stash), stash) for t in (mean, deviation))


@op("RMSNormalization")
def rms_norm(c: Call) -> Result:
    x, eps = c.x(0), c.float("epsilon", 1e-5)
    _stash(c)
    axis = axis_of(c, c.int("axis", -1), x.ndim)
    tail = x.shape[axis:]
    rows = x if len(tail) == 1 else o.reshape(x, (math.prod(x.shape[:axis]), math.prod(tail)))
    return o.reshape(o.rms_norm(rows, _flat(c.x(1), tail), eps=eps), x.shape)


@op("LRN")
def lrn(c: Call) -> Result:
    """x / (bias + alpha / size · Σ of squares over the neighbouring channels)^beta."""
    x, size = c.x(), c.int("size")
    if x.ndim < 2 or size < 1:
        raise c.bad(f"the input is {x.shape}, size {size}; expected (N, C, …) and at least 1")
    wide = o.cast(x, f32) if x.dtype.is_half else x
    channels = x.shape[1]
    before, square = (size - 1) // 2, o.mul(wide, wide)
    c.table(3, channels, channels)
    near = np.arange(channels)[None, :] - np.arange(channels)[:, None]
    band = ((near >= -before) & (near <= size - 1 - before)).astype(np.float32)
    flat = o.reshape(square, (x.shape[0], channels, math.prod(x.shape[2:])))
    total = o.reshape(o.matmul(c.tensor(band.astype(wide.dtype.np)), flat), x.shape)
    scaled = o.add(o.mul(total, c.float("alpha", 1e-4) / size), c.float("bias", 1.0))
    return o.div(wide, o.pow(scaled, c.float("beta", 0.75)))
