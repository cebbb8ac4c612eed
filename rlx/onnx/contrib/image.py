"""Operators that ONNX Runtime's optimizer writes into diffusion models: group norms and convolutions, channels last."""

from __future__ import annotations

from rlx import ops as o
from rlx.dtypes import f32
from rlx.ir import Tensor
from rlx.onnx.contrib.heads import flag
from rlx.onnx.contrib.linear import WINDOWS
from rlx.onnx.contrib.quant.pool import channels_first, channels_last
from rlx.onnx.ops.conv import conv_windows
from rlx.onnx.reader.call import Call, Result
from rlx.onnx.reader.declared import declared

_TYPES = {"T": "float16 float", "M": "float16 float"}
_GROUPS = {"epsilon": 1e-5, "groups": int, "activation": int, "channels_last": 1}


def _group_normed(c: Call, x: Tensor, last: bool) -> Tensor:
    """The norm of groups of channels, and silu after it where the activation is 1."""
    gamma, beta = c.x(1), c.x(2)
    if gamma.dtype != x.dtype:
        x = o.cast(x, f32)
        gamma, beta = o.cast(gamma, f32), o.cast(beta, f32)
    y = o.group_norm(channels_first(x) if last else x, c.int("groups"), gamma, beta, c.float("epsilon"))
    y = o.silu(y) if flag(c, "activation") else y
    return channels_last(y) if last else y


def _image(c: Call) -> tuple[Tensor, bool]:
    x, last = c.x(0), flag(c, "channels_last", 1)
    if x.ndim != 4:
        raise c.bad(f"X is {x.shape}; expected four dimensions")
    return x, last


@declared("GroupNorm", inputs="X:T gamma:M beta:M", outputs="Y:T", types=_TYPES, attributes=_GROUPS,
          required="groups activation")  # fmt: skip
def group_norm(c: Call) -> Result:
    return _group_normed(c, *_image(c))


@declared("SkipGroupNorm", inputs="X:T gamma:M beta:M skip:T bias:T?", outputs="Y:T S:T?", types=_TYPES,
          attributes=_GROUPS, required="groups activation")  # fmt: skip
def skip_group_norm(c: Call) -> tuple[Result, ...]:
    """The norm of the sum of the input, `skip` (given for each element or for each channel) and a bias; and the sum."""
    x, last = _image(c)
    batch, channels = x.shape[0], x.shape[3 if last else 1]
    row = (batch, 1, 1, channels) if last else (batch, channels, 1, 1)
    skip = c.x(3)
    if skip.shape not in (x.shape, row, (batch, channels)):
        raise c.bad(f"skip is {skip.shape}; expected {x.shape}, {row} or {(batch, channels)}")
    total = o.add(x, o.reshape(skip, row) if skip.ndim == 2 else skip)
    if c.has(4):
        if c.x(4).shape != (channels,):
            raise c.bad(f"the bias is {c.x(4).shape}; expected ({channels},)")
        total = o.add(total, o.reshape(c.x(4), row[1:]))
    return _group_normed(c, total, last), total


@declared(
    "NhwcConv",
    inputs="X:T W:T B:T?",
    outputs="Y:T",
    types={"T": "float16 float double"},
    attributes=WINDOWS,
)
def nhwc_conv(c: Call) -> Result:
    """A convolution with the channels of image and filters last."""
    if c.x(0).ndim != 4 or c.x(1).ndim != 4:
        raise c.bad(f"X is {c.x(0).shape}, W {c.x(1).shape}; expected four dimensions each")
    x, w = channels_first(c.x(0)), channels_first(c.x(1))
    s = conv_windows(c, x, w)
    return channels_last(
        o.conv(x, w, c.opt(2), strides=s.strides, pads=s.pads, dilations=s.dilations, groups=c.int("group"))
    )
