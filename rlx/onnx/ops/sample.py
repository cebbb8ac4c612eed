"""Operators that interpolate at coordinates given by data: RoiAlign, MaxRoiPool, DeformConv."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from rlx import ops as o
from rlx.dtypes import f32, i64
from rlx.ir import Tensor
from rlx.onnx.ops.conv import conv_windows
from rlx.onnx.ops.windows import check_table
from rlx.onnx.reader.call import Call, Result
from rlx.onnx.reader.table import op

MAX_SAMPLES = 1 << 26  # samples of a RoiAlign
MAX_BINS = 64  # bins of a MaxRoiPool along an axis


def _corner(rows: Tensor, base: Tensor, y: Tensor, x: Tensor, size: tuple[int, int]) -> Tensor:
    """The rows at integer coordinates (y, x), clamped to the image; `base` is the row at which each image starts."""
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
    if ratio < 0 or min(height, width) < 1:
        raise c.bad(f"output_height {height}, output_width {width}, sampling_ratio {ratio}")
    corners = o.sub(o.mul(o.cast(rois, f32), scale), 0.5 if half else 0.0)
    (n, _, h, w), count = x.shape, rois.shape[0]
    starts, lengths = zip(*_reach(corners, half), strict=True)
    outs = (height, width)
    taken = [
        np.array([ratio]) if ratio else _sample_counts(c, length, out)
        for length, out in zip(lengths, outs, strict=True)
    ]
    tall, wide = (out * int(t.max(initial=1)) for out, t in zip(outs, taken, strict=True))
    samples = [count, x.shape[1], tall, wide]
    if math.prod(samples) > MAX_SAMPLES or max(tall, wide) > MAX_SAMPLES:
        raise c.unsupported(f"takes {samples} samples; at most {MAX_SAMPLES} are supported")
    lines = []
    for start, length, out, t, size in zip(starts, lengths, outs, taken, (tall, wide), strict=True):
        inside = (np.arange(size // out) + 0.5) / np.maximum(t, 1)[:, None]
        part = ((np.arange(out)[:, None] + inside[:, None, :]) / out).reshape(t.size, size)
        lines.append(o.add(start, o.mul(length, c.tensor(part.astype(np.float32)))))
    y = o.expand(o.reshape(lines[0], (count, tall, 1)), (count, tall, wide))
    u = o.expand(o.reshape(lines[1], (count, 1, wide)), (count, tall, wide))
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
    shape = (count, height, tall // height, width, wide // width, x.shape[1])
    down, across = (np.arange(n) < t[:, None] for n, t in zip(shape[2:5:2], taken, strict=True))
    here = (down[:, :, None] & across[:, None, :])[
        :, None, :, None, :, None
    ]  # the samples that belong to each region
    if mode == "avg":
        total = o.reshape(o.add(o.add(parts[0], parts[1]), o.add(parts[2], parts[3])), shape)
        if here.all():
            pooled = o.mean(total, (2, 4))
        else:
            share = (1 / np.maximum(taken[0] * taken[1], 1)).reshape(-1, 1, 1, 1)
            total = o.sum(o.where(c.tensor(here), total, 0.0), (2, 4))
            pooled = o.mul(total, c.tensor(share.astype(total.dtype.np)))
    else:  # ONNX defines the maximum over the weighted corners
        largest = o.reshape(o.maximum(o.maximum(parts[0], parts[1]), o.maximum(parts[2], parts[3])), shape)
        largest = largest if here.all() else o.where(c.tensor(here), largest, -math.inf)
        pooled = o.max(largest, (2, 4))
        some = here.any((2, 4))
        pooled = pooled if some.all() else o.where(c.tensor(some), pooled, 0.0)
    return o.transpose(pooled, (0, 3, 1, 2))


def _reach(corners: Tensor, half: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """The start and the length of each region, along y and along x, as columns."""
    for low in (1, 0):
        start = corners[:, low : low + 1]
        length = o.sub(corners[:, low + 2 : low + 3], start)
        yield start, length if half else o.maximum(length, 1.0)


def _sample_counts(c: Call, length: Tensor, out: int) -> npt.NDArray[np.int64]:
    """How many samples a bin of each region takes along an axis: one for each element that it covers."""
    counts = np.ceil(c.known_tensor(length)[:, 0] / np.float32(out))
    if not (counts <= MAX_SAMPLES).all():
        raise c.unsupported(f"a region takes more than {MAX_SAMPLES} samples; give sampling_ratio")
    return np.maximum(counts, 0).astype(np.int64)


@op("MaxRoiPool")
def max_roi_pool(c: Call) -> Result:
    """The largest element in each bin of each region, whose corners and bins are rounded to whole elements."""
    x, rois, pooled = c.x(0), c.x(1), c.ints("pooled_shape")
    if x.ndim != 4 or rois.ndim != 2 or rois.shape[1] != 5 or len(pooled) != 2 or min(pooled) < 1:
        raise c.bad(f"X {x.shape}, rois {rois.shape}, pooled_shape {pooled}")
    if max(pooled) > MAX_BINS:
        raise c.unsupported(f"pooled_shape is {pooled}; at most {MAX_BINS} bins an axis are supported")
    columns = o.gather(x, o.cast(rois[:, 0], i64), 0)
    corners = o.mul(o.cast(rois[:, 1:], f32), c.float("spatial_scale", 1.0))
    corners = o.where(o.less(corners, 0.0), o.ceil(o.sub(corners, 0.5)), o.floor(o.add(corners, 0.5)))
    for axis, bins in ((3, pooled[1]), (2, pooled[0])):
        low, n = 3 - axis, x.shape[axis]
        start = corners[:, low : low + 1]
        length = o.maximum(o.add(o.sub(corners[:, low + 2 : low + 3], start), 1.0), 1.0)
        step = o.div(length, float(bins))
        number = c.tensor(np.arange(bins, dtype=np.float32))
        first = o.clip(o.add(o.floor(o.mul(number, step)), start), 0.0, float(n))
        last = o.clip(o.add(o.ceil(o.mul(o.add(number, 1.0), step)), start), 0.0, float(n))
        places = c.tensor(np.arange(n, dtype=np.float32).reshape([n if a == axis else 1 for a in range(4)]))
        parts = []
        for k in range(bins):
            begin, end = (o.reshape(edge[:, k], (-1, 1, 1, 1)) for edge in (first, last))
            inside = o.logical_and(o.greater_equal(places, begin), o.less(places, end))
            parts.append(o.max(o.where(inside, columns, -math.inf), axis, keepdims=True))
        columns = o.concat(parts, axis)
    return o.where(o.equal(columns, -math.inf), 0.0, columns)  # bins outside the image


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
    check_table(c, s)
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
    product = o.reshape(o.matmul(flat, columns), (n, weight.shape[0], *s.counts))
    return product if bias is None else o.add(product, o.reshape(bias, (1, -1, 1, 1)))
