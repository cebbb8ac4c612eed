"""Pools of com.microsoft over 8-bit numbers: means over windows, over everything, over axes; maxima of windows."""

from __future__ import annotations

import copy
import functools
import math

import numpy as np

from rlx import ops as o
from rlx.dtypes import f32, i32
from rlx.ir import Tensor
from rlx.onnx.contrib.quant.elementwise import BYTES, one, real, rounded_to, zero_of
from rlx.onnx.ops.movement import axis_of
from rlx.onnx.ops.pool import max_pool
from rlx.onnx.ops.quant import saturated
from rlx.onnx.ops.windows import seen, windows_of
from rlx.onnx.reader.call import Call, Result, Value
from rlx.onnx.reader.declared import declared

FEW_TAPS = 49


def channels_first(x: Tensor) -> Tensor:
    """(N, …, C) as (N, C, …)."""
    return o.transpose(x, (0, x.ndim - 1, *range(1, x.ndim - 1)))


def channels_last(x: Tensor) -> Tensor:
    """(N, C, …) as (N, …, C)."""
    return o.transpose(x, (0, *range(2, x.ndim), 1))


@declared(
    "QLinearAveragePool",
    inputs="X:T x_scale:float x_zero_point:T? y_scale:float y_zero_point:T?",
    outputs="Y:T",
    types=BYTES,
    attributes={
        "auto_pad": "NOTSET", "ceil_mode": 0, "channels_last": 0, "count_include_pad": 0,
        "kernel_shape": list[int], "pads": list[int], "strides": list[int],
    },
    required="kernel_shape",
)  # fmt: skip
def qlinear_average_pool(c: Call) -> Value:
    """A window divides by its elements inside the input, or with count_include_pad by the size of the kernel."""
    x, last = real(c, 0), bool(c.int("channels_last"))
    if x.ndim < 3:
        raise c.bad(f"the input is {x.shape}; expected (N, C, …)")
    x = channels_first(x) if last else x
    w = windows_of(c, x.shape[2:], None)
    taps, _, inside = seen(c, x, w, 0.0)
    count = np.full(len(inside), math.prod(w.kernel)) if c.int("count_include_pad") else inside.sum(1)
    mean = o.div(_in_order(taps), c.tensor(np.maximum(count, 1).astype(np.float32)))
    mean = o.reshape(mean, (*x.shape[:2], *w.counts))
    steps = o.add(o.div(channels_last(mean) if last else mean, one(c, 3)), zero_of(c, 4))
    return rounded_to(c, steps, c.dtype())


def _in_order(elements: Tensor) -> Tensor:
    """The sums over the last axis. Short sums add one by one as ONNX Runtime does: in another order a mean within f32's
    last bit of a tie may round to the other integer."""
    taps = elements.shape[2]
    if not 0 < taps <= FEW_TAPS:
        return o.sum(elements, 2)
    return functools.reduce(o.add, [elements[:, :, t] for t in range(taps)])


def _mean(c: Call, axes: tuple[int, ...], keep: bool) -> Value:
    """The mean over axes: an exact sum, then one product; scales and zero points are inputs 1 to 4."""
    whole = o.cast(c.x(), i32)
    if c.has(2):
        whole = o.sub(whole, o.cast(one(c, 2), i32))
    count = math.prod(whole.shape[a] for a in axes)
    ratio = o.div(one(c, 1), o.mul(one(c, 3), float(count)))
    total = o.cast(o.sum(whole, axes, keep), f32)
    return saturated(c, o.mul(total, ratio), one(c, 4) if c.has(4) else None, c.dtype())


@declared(
    "NhwcMaxPool",
    inputs="x:T",
    outputs="y:T",
    types={"T": "int8 uint8"},
    attributes={
        "auto_pad": "NOTSET", "ceil_mode": 0,
        **dict.fromkeys(("dilations", "kernel_shape", "pads", "strides"), list[int]),
    },
    required="kernel_shape",
)  # fmt: skip
def nhwc_max_pool(c: Call) -> Result:
    """MaxPool of an image with its channels last."""
    if c.x().ndim < 3:
        raise c.bad(f"the input is {c.x().shape}; expected (N, …, C)")
    inner = copy.copy(c)
    inner.inputs = [Value(channels_first(c.x()), c.dtype())]
    return channels_last(max_pool(inner)[0])


@declared(
    "QLinearGlobalAveragePool",
    inputs="X:T x_scale:float x_zero_point:T y_scale:float y_zero_point:T",
    outputs="Y:T",
    types=BYTES,
    attributes={"channels_last": 0},
)
def qlinear_global_average_pool(c: Call) -> Value:
    x = c.x()
    if x.ndim < 3:
        raise c.bad(f"the input is {x.shape}; expected (N, C, …)")
    return _mean(c, tuple(range(1, x.ndim - 1) if c.int("channels_last") else range(2, x.ndim)), True)


@declared(
    "QLinearReduceMean",
    inputs="data:T data_scale:float data_zero_point:T? reduced_scale:float reduced_zero_point:T?",
    outputs="reduced:T",
    types=BYTES,
    attributes={"axes": list[int], "keepdims": int},
    required="axes keepdims",
)
def qlinear_reduce_mean(c: Call) -> Value:
    axes = tuple(sorted({axis_of(c, a, c.x().ndim) for a in c.ints("axes")}))
    return _mean(c, axes or tuple(range(c.x().ndim)), bool(c.int("keepdims")))
