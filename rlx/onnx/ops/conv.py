"""Convolutions, integer ones too, and their relatives Col2Im and MaxUnpool."""

from __future__ import annotations

import math

import numpy as np

from rlx import ops as o
from rlx.dtypes import i8, i32, u8
from rlx.ir import Tensor
from rlx.onnx.ops.fill import checked_shape
from rlx.onnx.ops.quantized import Quantized, operands, scaled
from rlx.onnx.ops.windows import Windows, check_table, windows_of
from rlx.onnx.reader.call import Call, Result
from rlx.onnx.reader.table import op


def conv_windows(c: Call, x: Tensor, w: Tensor) -> Windows:
    if x.ndim < 3 or w.ndim != x.ndim:
        raise c.bad(
            f"the input is {x.shape}, the weight {w.shape}; expected (N, C, …) and (O, C/group, …) of one rank"
        )
    kernel = c.ints("kernel_shape", list(w.shape[2:]))
    if list(kernel) != list(w.shape[2:]):
        raise c.bad(f"kernel_shape {kernel}, but the weight is {w.shape}")
    return windows_of(c, x.shape[2:], kernel)


@op("Conv")
def conv(c: Call) -> Tensor:
    x, w = c.x(0), c.x(1)
    s = conv_windows(c, x, w)
    quantized = operands(c, x, w, 0, math.prod(w.shape[1:]))
    if quantized is not None:
        return _quantized(c, *quantized, s)
    return o.conv(
        x, w, c.opt(2), strides=s.strides, pads=s.pads, dilations=s.dilations, groups=c.int("group", 1)
    )


def _quantized(c: Call, x: Quantized, w: Quantized, s: Windows) -> Tensor:
    """The convolution of results of DequantizeLinear, computed on their integers."""
    whole = integer_conv(c, x.x, w.x, x.zero, w.zero)
    return _biased(c, scaled(c, whole, x, w, len(s.counts)), c.opt(2))


def _biased(c: Call, y: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution's result with a number for each of its channels added."""
    if bias is None:
        return y
    if bias.shape != y.shape[1:2]:
        raise c.bad(f"B is {bias.shape}; expected one for each of {y.shape[1]} channels")
    return o.add(y, o.reshape(bias, (1, -1, *(1,) * (y.ndim - 2))))


@op("ConvTranspose")
def conv_transpose(c: Call) -> Result:
    x, w = c.x(0), c.x(1)
    n = x.ndim - 2
    if n < 1 or w.ndim != x.ndim:
        raise c.bad(
            f"the input is {x.shape}, the weight {w.shape}; expected (N, C, …) and (C, O/group, …) of one rank"
        )
    kernel = c.ints("kernel_shape", list(w.shape[2:]))
    strides, dilations = c.ints("strides", [1] * n), c.ints("dilations", [1] * n)
    extra, pads = c.ints("output_padding", [0] * n), c.ints("pads", [0] * 2 * n)
    auto, wanted = c.str("auto_pad", "NOTSET"), c.ints("output_shape")
    if (
        list(kernel) != list(w.shape[2:])
        or not len(strides) == len(dilations) == len(extra) == n
        or len(pads) != 2 * n
    ):
        raise c.bad(
            f"kernel {kernel}, strides {strides}, dilations {dilations}, output_padding {extra}, pads {pads}"
        )
    if wanted is not None or auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = (
            wanted[-n:] if wanted is not None else [a * s for a, s in zip(x.shape[2:], strides, strict=True)]
        )
        if len(wanted) != n:
            raise c.bad(f"output_shape {wanted} for {n} spatial axes")
        pads, extra = list(pads), list(extra)
        for i in range(n):
            total = (
                strides[i] * (x.shape[2 + i] - 1) + extra[i] + (kernel[i] - 1) * dilations[i] + 1 - wanted[i]
            )
            if total < 0:  # a larger requested size means zeros at the end
                extra[i], total = extra[i] - total, 0
            small = total // 2
            pads[i], pads[n + i] = (small, total - small) if auto == "SAME_UPPER" else (total - small, small)
    elif auto == "VALID":
        pads = [0] * 2 * n
    return o.conv_transpose(
        x, w, c.opt(2), strides=strides, pads=list(zip(pads[:n], pads[n:], strict=True)), output_padding=extra,
        dilations=dilations, groups=c.int("group", 1),
    )  # fmt: skip


def integer_conv(
    c: Call, x: Tensor, w: Tensor, x_zero: Tensor | None, w_zero: Tensor | None, bias: Tensor | None = None
) -> Tensor:
    """A convolution of integers less their zero points, one for x and one for w or for each of its outputs, in exact
    i32 arithmetic: of 8 bits by rlx.integer_conv, of others by im2col and a product."""
    s = conv_windows(c, x, w)
    groups, outputs = c.int("group", 1), w.shape[0]
    if groups < 1 or x.shape[1] % groups or outputs % groups or w.shape[1] * groups != x.shape[1]:
        raise c.bad(f"the input is {x.shape}, the weight {w.shape}, group {groups}")
    if w_zero is not None and w_zero.size not in (1, outputs):
        raise c.bad(
            f"the zero points of the weight are {w_zero.shape}; expected one, or one for each of {outputs} outputs"
        )
    if x_zero is not None and x_zero.size != 1:
        raise c.bad(f"the zero point of the input is {x_zero.shape}; expected one number")
    if {x.dtype, w.dtype} <= {i8, u8}:
        zeros = (0 if z is None else o.reshape(z, (-1,)) for z in (x_zero, w_zero))
        y = o.integer_conv(
            x, w, *zeros, strides=s.strides, pads=s.pads, dilations=s.dilations, groups=groups
        )  # fmt: skip
    else:
        y = _wide(x, w, x_zero, w_zero, s, groups)
    return _biased(c, y, bias)


def _wide(
    x: Tensor, w: Tensor, x_zero: Tensor | None, w_zero: Tensor | None, s: Windows, groups: int
) -> Tensor:
    outputs = w.shape[0]
    x, w = o.cast(x, i32), o.cast(w, i32)
    x = x if x_zero is None else o.sub(x, o.cast(o.reshape(x_zero, ()), i32))
    if w_zero is not None:
        w = o.sub(w, o.reshape(o.cast(w_zero, i32), (-1, *(1,) * (w.ndim - 1))))
    columns = o.im2col(x, s.kernel, strides=s.strides, dilations=s.dilations, pads=s.pads)
    n, rows, count = columns.shape
    split = o.reshape(columns, (n, groups, rows // groups, count))
    weight = o.reshape(w, (1, groups, outputs // groups, rows // groups))
    return o.reshape(o.matmul(weight, split), (n, outputs, *s.counts))


@op("ConvInteger")
def conv_integer(c: Call) -> Tensor:
    return integer_conv(c, c.x(0), c.x(1), c.opt(2), c.opt(3))


@op("Col2Im")
def col2im(c: Call) -> Result:
    """Every column added at the position of its window: the reverse of im2col."""
    x, image, block = c.x(), c.known_ints(1), c.known_ints(2)
    s = windows_of(c, checked_shape(c, image), block)
    taps = math.prod(s.kernel)
    check_table(c, s)
    index, inside = s.table()
    if x.ndim != 3 or x.shape[1] % taps or x.shape[2] != len(index):
        raise c.bad(f"the input is {x.shape}; expected (N, channels · {taps}, {len(index)})")
    channels = x.shape[1] // taps
    flat = o.reshape(x, (x.shape[0] * channels, taps * len(index)))
    keep = np.flatnonzero(inside.T.reshape(-1))
    kept = o.gather(flat, c.tensor(keep.astype(np.int32)), 1)
    places = index.T.reshape(-1)[keep]
    summed = o.segment_sum(kept, c.tensor(places.astype(np.int32)), math.prod(image), 1)
    return o.reshape(summed, (x.shape[0], channels, *image))


@op("MaxUnpool")
def max_unpool(c: Call) -> Result:
    """Values at the places that the indices of MaxPool give; zeros elsewhere."""
    x, places = c.x(0), c.x(1)
    kernel, n = c.ints("kernel_shape"), x.ndim - 2
    strides, pads = c.ints("strides", [1] * n), c.ints("pads", [0] * 2 * n)
    if not len(kernel) == len(strides) == n or len(pads) != 2 * n or x.shape != places.shape:
        raise c.bad(
            f"input {x.shape}, indices {places.shape}, kernel {kernel}, strides {strides}, pads {pads}"
        )
    natural = [
        *x.shape[:2],
        *((m - 1) * s - a - b + k
          for m, s, a, b, k in zip(x.shape[2:], strides, pads[:n], pads[n:], kernel, strict=True)),
    ]  # fmt: skip
    wanted = c.known_ints(2) if c.has(2) else natural
    if (
        len(wanted) != x.ndim or wanted[:2] != natural[:2] or any(n < m for n, m in zip(wanted, natural, strict=True))
    ):
        raise c.bad(f"output_shape is {wanted}; expected {natural}, or longer axes behind the first two")
    shape = checked_shape(c, wanted)
    index = o.reshape(places, (-1,))
    if c.has(2):
        # The indices count in the natural shape; the requested one is larger.
        index = _moved(c, index, natural, list(shape))
    flat = o.segment_sum(o.reshape(x, (-1,)), index, math.prod(shape))
    return o.reshape(flat, shape)


def _moved(c: Call, index: Tensor, natural: list[int], shape: list[int]) -> Tensor:
    offset: Tensor | None = None
    rest = index
    for axis in reversed(range(len(natural))):
        place = o.mod(rest, natural[axis])
        rest = o.floor_divide(rest, natural[axis])
        step = o.mul(place, math.prod(shape[axis + 1 :]))
        offset = step if offset is None else o.add(offset, step)
    return index if offset is None else offset
