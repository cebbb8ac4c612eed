"""Products of 8-bit numbers of com.microsoft, exact in i32, then scaled in f32; some quantize their inputs first."""

from __future__ import annotations

from rlx import ops as o
from rlx.dtypes import f32, i32, u8
from rlx.ir import Tensor
from rlx.onnx.contrib.quant.elementwise import one
from rlx.onnx.contrib.quant.pool import channels_first, channels_last
from rlx.onnx.ops.quant import (
    integer_product,
    multiplied,
    qlinear_conv,
    same_shape,
    saturated,
    shifted,
)
from rlx.onnx.reader.call import Call, Result, Value
from rlx.onnx.reader.declared import declared

_BYTES = "uint8 int8"


def quantized(c: Call, x: Tensor, looked_at: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x in 255 equal steps over the range of its elements and 0: the number of steps from 0, in i32, and the step.

    `looked_at` are the elements that the range is of, where these are not all of x.
    """
    if x.size == 0:
        return o.cast(x, i32), c.tensor(1.0, f32.np)
    step, zero = _steps(x if looked_at is None else looked_at)
    steps = o.minimum(o.maximum(o.round(o.div(x, step)), o.neg(zero)), o.sub(255.0, zero))
    return o.cast(steps, i32), step


def _steps(x: Tensor) -> tuple[Tensor, Tensor]:
    """The step of 255 equal ones over the range of x and 0, and how many of them are below 0."""
    low, high = o.minimum(o.min(x), 0.0), o.maximum(o.max(x), 0.0)
    step = o.where(o.equal(low, high), 1.0, o.div(o.sub(high, low), 255.0))
    return step, o.round(o.clip(o.div(o.neg(low), step), 0.0, 255.0))


def quantized_bytes(c: Call, x: Tensor, looked_at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantizes as `quantized` does: the numbers of steps as u8, their zero point in i32, and the step."""
    step, zero = _steps(looked_at)
    q = o.minimum(o.maximum(o.add(o.round(o.div(x, step)), zero), 0.0), 255.0)
    return o.cast(q, u8), o.cast(o.cast(zero, u8), i32), step


def _scaled(c: Call, whole: Tensor, scale: Tensor, bias: int) -> Tensor:
    scaled = same_shape(c, o.mul(o.cast(whole, f32), scale), whole)
    return same_shape(c, o.add(scaled, c.x(bias)), whole) if c.has(bias) else scaled


def per_column(scale: Tensor) -> Tensor:
    return o.reshape(scale, ()) if scale.size == 1 else scale


@declared(
    "MatMulIntegerToFloat",
    inputs="A:T1 B:T2 a_scale:T3 b_scale:T3 a_zero_point:T1? b_zero_point:T2? bias:T3?",
    outputs="Y:T3",
    types={"T1": _BYTES, "T2": _BYTES, "T3": "float16 float"},
)
def matmul_integer_to_float(c: Call) -> Result:
    whole = integer_product(c, 0, 1, 4, 5)
    scale = o.mul(o.cast(one(c, 2), f32), o.cast(per_column(c.x(3)), f32))
    return _scaled(c, whole, scale, 6)


@declared(
    "DynamicQuantizeMatMul",
    inputs="A:T1 B:T2 b_scale:T1 b_zero_point:T2? bias:T1?",
    outputs="Y:T1",
    types={"T1": "float", "T2": _BYTES},
)
def dynamic_quantize_matmul(c: Call) -> Result:
    steps, step = quantized(c, c.x(0))
    whole = o.matmul(steps, shifted(c, 1, 3, False))
    return _scaled(c, whole, o.mul(step, per_column(c.x(2))), 4)


@declared(
    "MatMulInteger16",
    inputs="A:T1 B:T2",
    outputs="Y:T3",
    types={"T1": "int16 uint16", "T2": "int16 uint16", "T3": "int32 uint32"},
)
def matmul_integer16(c: Call) -> Value:
    if "uint16" in (c.dtype(0).name, c.dtype(1).name):
        raise c.unsupported(f"of {c.dtype(0)} and {c.dtype(1)} is not supported; of int16 it is")
    return Value(o.matmul(o.cast(c.x(0), i32), o.cast(c.x(1), i32)), i32.np)


@declared(
    "QGemm",
    inputs="A:TA a_scale:float a_zero_point:TA B:TB b_scale:float b_zero_point:TB C:int32? y_scale:float? "
    "y_zero_point:TY?",
    outputs="Y:TY",
    types={"TA": _BYTES, "TB": _BYTES, "TY": _BYTES},
    attributes={"alpha": 1.0, "transA": 0, "transB": 0},
)
def qgemm(c: Call) -> Value:
    """alpha scales both the product and C, as in ONNX Runtime. Without y_scale the result is a float."""
    if c.x(0).ndim != 2 or c.x(3).ndim != 2:
        raise c.bad(f"A is {c.x(0).shape}, B {c.x(3).shape}; expected matrices")
    a = o.transpose(c.x(0)) if c.int("transA") else c.x(0)
    columns = c.x(3).shape[0 if c.int("transB") else 1]
    if c.x(5).size not in (1, columns):
        raise c.bad(f"b_zero_point is {c.x(5).shape}; expected one number, or one for each of {columns} columns")
    whole = multiplied(c, a, c.x(3), (one(c, 2), c.x(5)), bool(c.int("transB")))
    if c.has(6):
        whole = same_shape(c, o.add(whole, c.x(6)), whole)
    scale = o.mul(o.mul(c.float("alpha"), one(c, 1)), per_column(c.x(4)))
    if not c.has(7):
        if c.has(8):
            raise c.bad("has a y_zero_point, but no y_scale")
        return Value(same_shape(c, o.mul(o.cast(whole, f32), scale), whole), f32.np)
    if not c.has(8):
        raise c.bad("has a y_scale, but no y_zero_point, which says the type of the result")
    scaled = same_shape(c, o.mul(o.cast(whole, f32), o.div(scale, one(c, 7))), whole)
    return saturated(c, scaled, one(c, 8), c.dtype(8))


@declared(
    "QLinearConv",
    inputs="x:T1 x_scale:float x_zero_point:T1 w:T2 w_scale:float w_zero_point:T2 y_scale:float y_zero_point:T3 "
    "B:int32?",
    outputs="y:T3",
    types={"T1": _BYTES, "T2": _BYTES, "T3": _BYTES},
    attributes={
        "auto_pad": "NOTSET", "channels_last": 0, "dilations": list[int], "group": 1, "kernel_shape": list[int],
        "pads": list[int], "strides": list[int],
    },
)  # fmt: skip
def microsoft_qlinear_conv(c: Call) -> Value:
    if not c.int("channels_last"):
        return qlinear_conv(c)
    if c.x().ndim < 3:
        raise c.bad(f"the input is {c.x().shape}; expected (N, …, C)")
    c.inputs[0] = Value(channels_first(c.x()), c.dtype())
    result = qlinear_conv(c)
    return Value(channels_last(result.tensor), result.dtype)
