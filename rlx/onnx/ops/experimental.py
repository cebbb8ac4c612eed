"""Operators that onnx listed as experimental and removed in opset 10; ONNX Runtime runs files that have them."""

from __future__ import annotations

import numpy as np

from rlx import ops as o
from rlx.onnx.ops.movement import slice_
from rlx.onnx.reader.call import Call, Result
from rlx.onnx.reader.declared import FLOATS, declared

_TYPES = {"T": FLOATS}


@declared("Affine", inputs="X:T", outputs="Y:T", types=_TYPES, attributes={"alpha": 1.0, "beta": 0.0}, domain="")
def affine(c: Call) -> Result:
    return o.add(o.mul(c.x(), c.float("alpha")), c.float("beta"))


@declared("Scale", inputs="X:T", outputs="Y:T", types=_TYPES, attributes={"scale": 1.0}, domain="")
def scale(c: Call) -> Result:
    return o.mul(c.x(), c.float("scale"))


@declared("ImageScaler", inputs="X:T", outputs="Y:T", types=_TYPES, attributes={"scale": 1.0, "bias": list[float]},
          required="bias", domain="")  # fmt: skip
def image_scaler(c: Call) -> Result:
    """scale · x, and a bias for each channel."""
    x, bias = c.x(), c.floats("bias")
    if x.ndim != 4 or len(bias) != x.shape[1]:
        raise c.bad(f"the input is {x.shape}, bias has {len(bias)} numbers; expected (N, C, H, W) and C numbers")
    return o.add(o.mul(x, c.float("scale")), c.tensor(np.asarray(bias, x.dtype.np).reshape(-1, 1, 1)))


@declared("Crop", inputs="X:T", outputs="Y:T", types=_TYPES, attributes={"border": list[int], "scale": list[int]},
          required="border", domain="")  # fmt: skip
def crop(c: Call) -> Result:
    """Without the border (left, top, right, bottom); with a scale, that height and width from left and top on."""
    x, border, size = c.x(), c.ints("border"), c.ints("scale", [])
    if x.ndim != 4 or len(border) != 4 or len(size) not in (0, 2) or min(*border, *size) < 0:
        raise c.bad(f"the input is {x.shape}, border {border}, scale {size}; expected (N, C, H, W), 4 and 2 numbers")
    left, top, right, bottom = border
    height, width = x.shape[2:]
    low, far = (top + size[0], left + size[1]) if size else (height - bottom, width - right)
    if not (top <= low <= height and left <= far <= width):
        raise c.bad(f"border {border} and scale {size} leave nothing of {x.shape}, or reach beyond it")
    return x[:, :, top:low, left:far]


@declared("ParametricSoftplus", inputs="X:T", outputs="Y:T", types=_TYPES, attributes={"alpha": float, "beta": float},
          required="alpha beta", domain="")  # fmt: skip
def parametric_softplus(c: Call) -> Result:
    return o.mul(o.softplus(o.mul(c.x(), c.float("beta"))), c.float("alpha"))


@declared("ScaledTanh", inputs="X:T", outputs="Y:T", types=_TYPES, attributes={"alpha": float, "beta": float},
          required="alpha beta", domain="")  # fmt: skip
def scaled_tanh(c: Call) -> Result:
    return o.mul(o.tanh(o.mul(c.x(), c.float("beta"))), c.float("alpha"))


declared("DynamicSlice", inputs="data:T starts:I ends:I axes:I?", outputs="Y:T",
         types={"T": f"{FLOATS} int8 uint8 int32 int64 bool", "I": "int32 int64"}, domain="")(slice_)  # fmt: skip
