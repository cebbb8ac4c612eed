"""Operators that read between elements at places given by data: RoiAlign, DeformConv."""

from __future__ import annotations

import math

import numpy as np

from rlx import ops as o
from rlx.dtypes import f32, i64
from rlx.formats.onnx.call import Call, Result
from rlx.formats.onnx.ops_conv import conv_windows
from rlx.formats.onnx.table import op
from rlx.formats.onnx.windows import want_table
from rlx.ir import Tensor

MAX_SAMPLES = 1 << 26  # of a RoiAlign


def _corner(rows: Tensor, base: Tensor, y: Tensor, x: Tensor, size: tuple[int, int]) -> Tensor:
    """The rows at whole places (y, x), held inside; `base` is the row at which each image starts."""
    h, w = size
    place = o.add(o.mul(o.clip(y, 0.0, float(h - 1)), float(w)), o.clip(x, 0.0, float(w - 1)))
    return o.gather(rows, o.add(base, o.cast(place, i64)), 0)


def _images(x: Tensor, count: int) -> Tensor:
    """(count · H · W, channels of one) of (N, C, H, W) in `count` images."""
    h, w = x.shape[2:]
    each = x.size // (count * h * w)
    return o.reshape(o.transpose(o.reshape(x, (count, each, h * w)), (0, 2, 1)), (count * h * w, each))


@op("RoiAlign")
def roi_align(c: Call) -> Result:
    """Mean or maximum of interpolated samples in the bins of each region."""
    x, rois, batch = c.x(0), c.x(1), c.x(2)
    height, width, ratio = c.int("output_height", 1), c.int("output_width", 1), c.int("sampling_ratio", 0)
    mode, scale = c.str("mode", "avg"), c.float("spatial_scale", 1.0)
    half = (
        c.str("coordinate_transformation_mode", "half_pixel" if c.version >= 16 else "output_half_pixel")
        == "half_pixel"
    )
    if (
        x.ndim != 4
        or rois.ndim != 2
        or rois.shape[1] != 4
        or batch.shape != rois.shape[:1]
        or mode not in ("avg", "max")
    ):
        raise c.bad(f"X {x.shape}, rois {rois.shape}, batch_indices {batch.shape}, mode {mode!r}")
    if ratio < 1 or min(height, width) < 1:
        raise c.unsupported(
            "sampling_ratio 0, as many samples as a region is large, is not supported; give it"
        )
    samples = [rois.shape[0], x.shape[1], height * ratio, width * ratio]
    if math.prod(samples) > MAX_SAMPLES:
        raise c.unsupported(f"takes {samples} samples; at most {MAX_SAMPLES} are supported")
    corners = o.sub(o.mul(o.cast(rois, f32), scale), 0.5 if half else 0.0)
    (n, _, h, w), count = x.shape, rois.shape[0]
    lines = []
    for low, out in ((1, height), (0, width)):
        start, length = corners[:, low], o.sub(corners[:, low + 2], corners[:, low])
        length = length if half else o.maximum(length, 1.0)
        part = (np.arange(out * ratio, dtype=np.float32) + np.float32(0.5)) / np.float32(out * ratio)
        lines.append(o.add(o.reshape(start, (-1, 1)), o.mul(o.reshape(length, (-1, 1)), c.tensor(part))))
    y = o.expand(o.reshape(lines[0], (count, -1, 1)), (count, height * ratio, width * ratio))
    u = o.expand(o.reshape(lines[1], (count, 1, -1)), (count, height * ratio, width * ratio))
    seen = o.logical_and(
        o.logical_and(o.greater_equal(y, -1.0), o.less_equal(y, float(h))),
        o.logical_and(o.greater_equal(u, -1.0), o.less_equal(u, float(w))),
    )
    y, u = o.clip(y, 0.0, float(h - 1)), o.clip(u, 0.0, float(w - 1))
    y0, u0 = o.floor(y), o.floor(u)
    fy, fu = o.sub(y, y0), o.sub(u, u0)
    rows = _images(x, n)
    base = o.reshape(o.mul(o.cast(batch, i64), h * w), (-1, 1, 1))
    parts = []
    for dy, wy in ((0, o.sub(1.0, fy)), (1, fy)):
        for du, wu in ((0, o.sub(1.0, fu)), (1, fu)):
            value = _corner(rows, base, o.add(y0, float(dy)), o.add(u0, float(du)), (h, w))
            weight = o.where(seen, o.mul(wy, wu), 0.0)
            parts.append(o.mul(value, o.cast(o.expand_dims(weight, 3), value.dtype)))
    shape = (count, height, ratio, width, ratio, x.shape[1])
    if mode == "avg":
        total = o.add(o.add(parts[0], parts[1]), o.add(parts[2], parts[3]))
        made = o.mean(o.reshape(total, shape), (2, 4))
    else:  # the largest weighted corner, as the operator is defined
        most = o.maximum(o.maximum(parts[0], parts[1]), o.maximum(parts[2], parts[3]))
        made = o.max(o.reshape(most, shape), (2, 4))
    return o.transpose(made, (0, 3, 1, 2))


@op("DeformConv")
def deform_conv(c: Call) -> Result:
    """A convolution whose taps are moved by offsets, and weighed by a mask (Dai et al., 2017; Zhu et al., 2019)."""
    x, weight, offset, bias, mask = c.x(0), c.x(1), c.x(2), c.opt(3), c.opt(4)
    s = conv_windows(c, x, weight)
    if len(s.sizes) != 2:
        raise c.unsupported("only two spatial axes are supported")
    groups, parts = c.int("group", 1), c.int("offset_group", 1)
    n, channels, h, w = x.shape
    taps, count = math.prod(s.kernel), math.prod(s.counts)
    if groups < 1 or parts < 1 or channels % parts or channels % groups or weight.shape[0] % groups:
        raise c.bad(
            f"group {groups}, offset_group {parts} for {channels} channels and {weight.shape[0]} outputs"
        )
    if weight.shape[1] * groups != channels or offset.shape != (n, parts * taps * 2, *s.counts):
        raise c.bad(f"the weight is {weight.shape}, the offsets {offset.shape}; they do not fit {x.shape}")
    if mask is not None and mask.shape != (n, parts * taps, *s.counts):
        raise c.bad(f"the mask is {mask.shape}; expected {(n, parts * taps, *s.counts)}")
    want_table(c, s)
    places = s.places().transpose(1, 0, 2).astype(np.float32)  # (taps, windows, 2)
    moved = o.reshape(o.cast(offset, f32), (n * parts, taps, 2, count))
    y = o.add(moved[:, :, 0], c.tensor(np.ascontiguousarray(places[..., 0])))
    u = o.add(moved[:, :, 1], c.tensor(np.ascontiguousarray(places[..., 1])))
    y0, u0 = o.floor(y), o.floor(u)
    fy, fu = o.sub(y, y0), o.sub(u, u0)
    rows = _images(x, n * parts)
    base = c.tensor((np.arange(n * parts, dtype=np.int64) * (h * w)).reshape(-1, 1, 1))
    total: Tensor | None = None
    for dy, wy in ((0.0, o.sub(1.0, fy)), (1.0, fy)):
        for du, wu in ((0.0, o.sub(1.0, fu)), (1.0, fu)):
            at_y, at_u = o.add(y0, dy), o.add(u0, du)
            inside = o.logical_and(
                o.logical_and(o.greater_equal(at_y, 0.0), o.less_equal(at_y, float(h - 1))),
                o.logical_and(o.greater_equal(at_u, 0.0), o.less_equal(at_u, float(w - 1))),
            )
            value = _corner(rows, base, at_y, at_u, (h, w))
            scaled = o.mul(value, o.cast(o.expand_dims(o.where(inside, o.mul(wy, wu), 0.0), 3), value.dtype))
            total = scaled if total is None else o.add(total, scaled)
    assert total is not None
    if mask is not None:
        total = o.mul(total, o.reshape(mask, (n * parts, taps, count, 1)))
    columns = o.transpose(o.reshape(total, (n, parts, taps, count, channels // parts)), (0, 1, 4, 2, 3))
    columns = o.reshape(columns, (n, groups, channels // groups * taps, count))
    flat = o.reshape(weight, (1, groups, weight.shape[0] // groups, channels // groups * taps))
    made = o.reshape(o.matmul(flat, columns), (n, weight.shape[0], *s.counts))
    return made if bias is None else o.add(made, o.reshape(bias, (1, -1, 1, 1)))
