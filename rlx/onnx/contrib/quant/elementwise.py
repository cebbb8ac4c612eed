"""Operators of com.microsoft on 8-bit numbers, element by element: each a lookup or a sum in ONNX Runtime, in f32 here.

Numbers round to nearest, ties to even, and saturate. Where ONNX Runtime adds the zero point before it rounds, so does
rlx: otherwise ties would round to the other side. f32 rounds differently where a backend fuses a product and a sum;
then a number within its last bit of a tie may round to the other step.
"""

from __future__ import annotations

import math

from rlx import ops as o
from rlx.dtypes import f32, i32
from rlx.ir import Tensor
from rlx.onnx.ops.movement import axis_of
from rlx.onnx.ops.quant import clamped, dequantize, quantize, saturated
from rlx.onnx.reader.call import Call, Result, Value
from rlx.onnx.reader.declared import declared
from rlx.onnx.reader.elements import ElementType

BYTES = {"T": "uint8 int8"}
_FLOATS = "float16 float"


def one(c: Call, i: int) -> Tensor:
    """A scale or zero point for the whole tensor. Raises: ModelFormatError for one of several elements."""
    if c.x(i).size != 1:
        raise c.bad(
            f"input {i} is {c.x(i).shape}; expected one number, a scale or zero point for the whole tensor"
        )
    return o.reshape(c.x(i), ())


def zero_of(c: Call, i: int) -> Tensor:
    """A zero point in f32; 0 where it is left out."""
    return o.cast(one(c, i), f32) if c.has(i) else c.tensor(0.0, f32.np)


def offset(c: Call, x: int, zero: int) -> Tensor:
    """Input x minus its zero point, integers in f32."""
    return o.sub(o.cast(c.x(x), f32), zero_of(c, zero))


def real(c: Call, x: int) -> Tensor:
    """Input x dequantized; its scale and its zero point are the next two inputs."""
    return o.mul(offset(c, x, x + 2), one(c, x + 1))


def rounded_to(c: Call, shifted: Tensor, to: ElementType) -> Value:
    """round(shifted), which includes the zero point, clamped to the range of `to`."""
    return clamped(o.round(shifted), to)


def requantized(c: Call, y: Tensor, scale: int, to: ElementType) -> Value:
    """y quantized by input `scale` and the zero point, the input after it, as QuantizeLinear does."""
    zero = one(c, scale + 1) if c.has(scale + 1) else None
    return saturated(c, o.div(y, one(c, scale)), zero, to)


_TWO = "A:T A_scale:float A_zero_point:T? B:T B_scale:float B_zero_point:T? C_scale:float C_zero_point:T?"
_ONE = "X:T X_scale:float X_zero_point:T? Y_scale:float Y_zero_point:T?"


@declared("QLinearAdd", inputs=_TWO, outputs="C:T", types=BYTES)
def qlinear_add(c: Call) -> Value:
    """Both inputs in steps of the result; its zero point and the inputs' are combined in one constant."""
    ra, rb = o.div(one(c, 1), one(c, 6)), o.div(one(c, 4), one(c, 6))
    base = o.sub(zero_of(c, 7), o.add(o.mul(ra, zero_of(c, 2)), o.mul(rb, zero_of(c, 5))))
    left = o.add(base, o.mul(o.cast(c.x(0), f32), ra))
    return rounded_to(c, o.add(left, o.mul(o.cast(c.x(3), f32), rb)), c.dtype())


@declared("QLinearMul", inputs=_TWO, outputs="C:T", types=BYTES)
def qlinear_mul(c: Call) -> Value:
    ratio = o.div(o.mul(one(c, 1), one(c, 4)), one(c, 6))
    product = o.mul(offset(c, 0, 2), offset(c, 3, 5))
    return rounded_to(c, o.add(o.mul(product, ratio), zero_of(c, 7)), c.dtype())


@declared("QLinearSigmoid", inputs=_ONE, outputs="Y:T", types=BYTES)
def qlinear_sigmoid(c: Call) -> Value:
    return requantized(c, o.sigmoid(real(c, 0)), 3, c.dtype())


@declared("QLinearLeakyRelu", inputs=_ONE, outputs="Y:T", types=BYTES, attributes={"alpha": 0.01})
def qlinear_leaky_relu(c: Call) -> Value:
    x = real(c, 0)
    return requantized(c, o.where(o.less(x, 0), o.mul(x, c.float("alpha")), x), 3, c.dtype())


@declared(
    "QLinearSoftmax",
    inputs="X:T X_scale:float x_zero_point:T? y_scale:float y_zero_point:T",
    outputs="Y:T",
    types=BYTES,
    attributes={"axis": -1, "opset": int},
    required="opset",
)
def qlinear_softmax(c: Call) -> Value:
    """The zero point of X cancels. A probability of 1 is floor(1 / scale of Y) steps, as in ONNX Runtime."""
    x = c.x()
    axis = axis_of(c, c.int("axis"), x.ndim)
    wide = o.cast(x, i32)
    flat = c.int("opset") < 13  # then over all axes from this one on
    if flat:
        wide = o.reshape(wide, (math.prod(x.shape[:axis]), -1) if x.size else (0, 1))
        axis = 1
    if x.size == 0:
        return Value(x, c.dtype())
    below = o.cast(o.sub(wide, o.max(wide, axis, True)), f32)
    e = o.exp(o.mul(below, one(c, 1)))
    steps = o.floor(o.div(1.0, one(c, 3)))
    share = o.div(o.mul(e, steps), o.sum(e, axis, True))
    result = saturated(c, share, one(c, 4), c.dtype())
    return Value(o.reshape(result.tensor, x.shape), result.dtype) if flat else result


@declared(
    "QLinearConcat",
    inputs="Y_scale:float Y_zero_point:T8 inputs:TV~",
    outputs="Y:T8",
    types={"T8": "uint8 int8", "TV": "uint8 int8 float"},
    attributes={"axis": int},
    required="axis",
)
def qlinear_concat(c: Call) -> Value:
    if len(c.inputs) % 3 != 2 or len(c.inputs) < 5:
        raise c.bad(f"has {len(c.inputs)} inputs; expected two, and three for each tensor")
    parts = []
    for i in range(2, len(c.inputs), 3):
        if c.dtype(i) != c.dtype(1) or c.dtype(i + 1) != f32.np or c.dtype(i + 2) != c.dtype(1):
            raise c.bad(
                f"inputs {i} to {i + 2} are {c.value(i).kind}, {c.value(i + 1).kind}, {c.value(i + 2).kind}; expected "
                f"{c.value(1).kind}, a scale in float and a zero point of {c.value(1).kind}"
            )
        parts.append(requantized(c, real(c, i), 0, c.dtype(1)).tensor)
    return Value(o.concat(parts, axis_of(c, c.int("axis"), parts[0].ndim)), c.dtype(1))


@declared(
    "QLinearWhere",
    inputs="condition:bool X:T x_scale:float x_zero_point:T Y:T y_scale:float y_zero_point:T z_scale:float "
    "z_zero_point:T",
    outputs="Z:T",
    types=BYTES,
)
def qlinear_where(c: Call) -> Value:
    x, y = (requantized(c, real(c, i), 7, c.dtype(1)).tensor for i in (1, 4))
    return Value(o.where(c.x(0), x, y), c.dtype(1))


@declared(
    "QuantizeLinear",
    inputs="x:T1 y_scale:T1 y_zero_point:T2?",
    outputs="y:T2",
    types={"T1": _FLOATS, "T2": "int8 uint8 int16 uint16 int4 uint4"},
    attributes={"axis": int},
)
def quantize_linear(c: Call) -> Value:
    return quantize(c)


@declared(
    "DequantizeLinear",
    inputs="x:T1 x_scale:T2 x_zero_point:T1?",
    outputs="y:T2",
    types={"T1": "int8 uint8 int16 uint16 int32 int4 uint4", "T2": _FLOATS},
    attributes={"axis": int},
)
def dequantize_linear(c: Call) -> Result:
    return dequantize(c)
