"""Operators that move data: Reshape, Transpose, Slice, Concat, Split, Pad, Tile, DepthToSpace and the like."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx import ops as o
from rlx.ir import Tensor
from rlx.ir.types import broadcast_shapes
from rlx.onnx.ops.fill import checked_shape
from rlx.onnx.reader.call import Call, Result, WriteOut
from rlx.onnx.reader.table import op


def axis_of(c: Call, axis: int, rank: int) -> int:
    """The axis counted from the front. Raises: ModelFormatError."""
    if not -rank <= axis < rank:
        raise c.bad(f"axis {axis} is out of range for rank {rank}")
    return axis % rank


def axes_of(c: Call, axes: Sequence[int], rank: int) -> list[int]:
    """Axes counted from the front, none twice. Raises: ModelFormatError."""
    result = [axis_of(c, a, rank) for a in axes]
    if len(set(result)) != len(result):
        raise c.bad(f"axes {list(axes)} name one axis twice")
    return result


def axes_given(c: Call, i: int, since: int, rank: int) -> list[int] | None:
    """Axes from input i, or from the attribute before version `since`; None where there are none."""
    if c.version >= since:
        return axes_of(c, c.known_ints(i), rank) if c.has(i) else None
    axes = c.ints("axes")
    return None if axes is None else axes_of(c, axes, rank)


@op("Reshape", since=5)
def reshape(c: Call) -> Result:
    x, dims = c.x(), c.known_ints(1)
    if not c.int("allowzero", 0):
        if any(d == 0 and i >= x.ndim for i, d in enumerate(dims)):
            raise c.bad(f"shape {dims} keeps a dimension that the input {x.shape} does not have")
        dims = [x.shape[i] if d == 0 else d for i, d in enumerate(dims)]
    if dims.count(-1) > 1 or any(d < -1 for d in dims):
        raise c.bad(f"shape {dims}; expected at most one -1 and nothing below")
    if -1 in dims:
        rest = math.prod(d for d in dims if d != -1)
        if rest == 0 or x.size % rest:
            raise c.bad(f"the {x.size} elements of {x.shape} do not fit shape {dims}")
        dims[dims.index(-1)] = x.size // rest
    return o.reshape(x, dims)


@op("Flatten")
def flatten(c: Call) -> Result:
    x, axis = c.x(), c.int("axis", 1)
    if not -x.ndim <= axis <= x.ndim:
        raise c.bad(f"axis {axis} is out of range for rank {x.ndim}")
    axis = axis + x.ndim if axis < 0 else axis
    return o.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@op("Transpose")
def transpose(c: Call) -> Result:
    return o.transpose(c.x(), c.ints("perm"))


@op("Squeeze")
def squeeze(c: Call) -> Result:
    axes = axes_given(c, 1, 13, c.x().ndim)
    return o.squeeze(c.x(), axes if axes is None else tuple(axes))


@op("Unsqueeze")
def unsqueeze(c: Call) -> Result:
    listed = c.known_ints(1) if c.version >= 13 else c.ints("axes", [])
    axes = axes_of(c, listed, c.x().ndim + len(listed))
    return o.expand_dims(c.x(), tuple(axes)) if axes else c.x()


@op("Expand")
def expand(c: Call) -> Result:
    x = c.x()
    dims = checked_shape(c, c.known_ints(1))
    return o.expand(x, broadcast_shapes(x.shape, dims))


@op("Concat", since=4)
def concat(c: Call) -> Result:
    return o.concat(c.xs(), c.int("axis"))


@op("Split")
def split(c: Call) -> list[Tensor]:
    x = c.x()
    axis = axis_of(c, c.int("axis", 0), x.ndim)
    n = x.shape[axis]
    lengths = c.known_ints(1) if c.version >= 13 and c.has(1) else c.ints("split")
    if lengths is None:
        parts = c.int("num_outputs") or c.n_outputs
        if not 0 < parts <= max(n, 1) * MAX_PARTS or c.n_outputs > parts:
            raise c.bad(f"num_outputs is {parts}, the node has {c.n_outputs}")
        piece = -(-n // parts)
        if c.version < 18 and n % parts:
            raise c.bad(f"axis {axis} of {x.shape} does not split into {parts} equal parts")
        lengths = [max(min(piece, n - i * piece), 0) for i in range(parts)]
    if any(v < 0 for v in lengths) or sum(lengths) != n:
        raise c.bad(f"split {lengths} does not add up to {n}, the length of axis {axis} of {x.shape}")
    return list(o.split(x, lengths, axis))


MAX_PARTS = 4096


@op("Slice", until=10)
def slice_attributes(c: Call) -> Result:
    starts, ends = c.ints("starts"), c.ints("ends")
    axes = c.ints("axes", list(range(len(starts))))
    return _slice(c, starts, ends, axes, [1] * len(starts))


@op("Slice", since=10)
def slice_(c: Call) -> Result:
    starts, ends = c.known_ints(1), c.known_ints(2)
    axes = c.known_ints(3, list(range(len(starts))))
    return _slice(c, starts, ends, axes, c.known_ints(4, [1] * len(starts)))


def _slice(c: Call, starts: list[int], ends: list[int], axes: list[int], steps: list[int]) -> Tensor:
    x = c.x()
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise c.bad(
            f"starts {starts}, ends {ends}, axes {axes}, steps {steps}; expected one length and no step of 0"
        )
    key = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes_of(c, axes, x.ndim), starts, ends, steps, strict=True):
        n = x.shape[axis]
        start = start + n if start < 0 else start
        end = end + n if end < 0 else end
        if step > 0:
            key[axis] = slice(min(max(start, 0), n), min(max(end, 0), n), step)
        else:  # unlike NumPy, ONNX clamps a start before the first element to it
            start, end = min(max(start, 0), n - 1), min(max(end, -1), n - 1)
            key[axis] = slice(0, 0) if n == 0 else slice(start, None if end < 0 else end, step)
    return x[tuple(key)]


@op("Tile", since=6)
def tile(c: Call) -> Result:
    x, repeats = c.x(), c.known_ints(1)
    if len(repeats) != x.ndim:
        raise c.bad(f"repeats {repeats} for an input of {x.ndim} dimensions; expected one each")
    checked_shape(c, [n * r for n, r in zip(x.shape, repeats, strict=True)])
    wide = o.expand(
        o.reshape(x, [d for n in x.shape for d in (1, n)]),
        [d for n, r in zip(x.shape, repeats, strict=True) for d in (r, n)],
    )
    return o.reshape(wide, [n * r for n, r in zip(x.shape, repeats, strict=True)])


@op("CenterCropPad")
def center_crop_pad(c: Call) -> Result:
    """onnx's function for it, if the shape has a length for each axis."""
    x, dims = c.x(), c.known_ints(1)
    axes = axes_of(c, c.ints("axes", range(x.ndim)), x.ndim)
    if len(dims) != len(axes) or min(dims, default=0) < 0:
        raise c.bad(f"shape is {dims} for axes {axes}; expected a length for each, none negative")
    whole = list(x.shape)
    for axis, n in zip(axes, dims, strict=True):
        whole[axis] = n
    checked_shape(c, whole)
    raise WriteOut


@op("Pad")
def pad(c: Call) -> Result:
    x = c.x()
    mode = c.str("mode", "constant")
    if c.version < 11:
        pads = c.ints("pads" if c.version > 1 else "paddings")
        value = c.tensor(c.float("value", 0.0), c.dtype())
        axes = list(range(x.ndim))
    else:
        pads = c.known_ints(1)
        fill = c.opt(2)
        axes = axes_of(c, c.known_ints(3), x.ndim) if c.has(3) else list(range(x.ndim))
        value = c.tensor(np.zeros((), x.dtype.np)) if fill is None else fill
    if len(pads) != 2 * len(axes):
        raise c.bad(f"pads {pads} for axes {axes}; expected two each")
    for k, axis in enumerate(axes):
        x = _padded(c, x, axis, pads[k], pads[k + len(axes)], mode, value)
    return x


def _padded(c: Call, x: Tensor, axis: int, before: int, after: int, mode: str, value: Tensor) -> Tensor:
    key = [slice(None)] * x.ndim
    n = x.shape[axis]
    if n + min(before, 0) + min(after, 0) < 0:
        raise c.bad(f"pads {before} and {after} cut more than the {n} elements of axis {axis}")
    if before < 0 or after < 0:
        key[axis] = slice(max(-before, 0), n - max(-after, 0))
        x = x[tuple(key)]
        before, after, n = max(before, 0), max(after, 0), x.shape[axis]
    if not before and not after:
        return x
    checked_shape(c, [*x.shape[:axis], n + before + after, *x.shape[axis + 1 :]])
    if mode == "constant":
        fill = o.reshape(value, ())
        parts = [o.expand(fill, (*x.shape[:axis], k, *x.shape[axis + 1 :])) for k in (before, after) if k]
        return o.concat(([parts[0]] if before else []) + [x] + ([parts[-1]] if after else []), axis)
    if n == 0 or mode not in ("reflect", "edge", "wrap"):
        raise c.bad(f"mode {mode!r} of {x.shape}; expected constant, reflect, edge or wrap, of something")
    c.table(2, before + n + after)
    places = np.arange(-before, n + after)
    if mode == "edge":
        places = np.clip(places, 0, n - 1)
    elif mode == "wrap":
        places = places % n
    else:
        period = max(2 * (n - 1), 1)
        places = np.abs((places + n - 1) % period - (n - 1)) if n > 1 else places * 0
    return o.gather(x, c.tensor(places.astype(np.int32)), axis)


def _blocks(c: Call) -> tuple[Tensor, int]:
    x, block = c.x(), c.int("blocksize")
    if x.ndim != 4 or block < 1:
        raise c.bad(f"the input is {x.shape}, blocksize {block}; expected four dimensions and at least 1")
    return x, block


@op("DepthToSpace")
def depth_to_space(c: Call) -> Result:
    x, b = _blocks(c)
    n, channels, h, w = x.shape
    if channels % (b * b):
        raise c.bad(f"{channels} channels do not divide by blocksize² {b * b}")
    depth = channels // (b * b)
    if c.version < 11 or c.choice("mode", "DCR", "CRD") == "DCR":
        moved = o.transpose(o.reshape(x, (n, b, b, depth, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        moved = o.transpose(o.reshape(x, (n, depth, b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return o.reshape(moved, (n, depth, h * b, w * b))


@op("SpaceToDepth")
def space_to_depth(c: Call) -> Result:
    x, b = _blocks(c)
    n, channels, h, w = x.shape
    if h % b or w % b:
        raise c.bad(f"height {h} and width {w} do not divide by blocksize {b}")
    parts = o.reshape(x, (n, channels, h // b, b, w // b, b))
    order = (0, 1, 3, 5, 2, 4) if c.version >= 28 and c.choice("mode", "DCR", "CRD") == "CRD" else (0, 3, 5, 1, 2, 4)
    return o.reshape(o.transpose(parts, order), (n, channels * b * b, h // b, w // b))


@op("ReverseSequence")
def reverse_sequence(c: Call) -> Result:
    """The first `length` elements of each sequence in reverse, the others unchanged: a gather by index."""
    x, lengths = c.x(0), c.x(1)
    time, batch = c.int("time_axis", 0), c.int("batch_axis", 1)
    if x.ndim < 2 or {time, batch} != {0, 1} or lengths.shape != (x.shape[batch],):
        raise c.bad(f"input {x.shape}, lengths {lengths.shape}, time_axis {time}, batch_axis {batch}")
    c.limited(lengths, "sequence_lens", x.shape[time])
    steps = c.tensor(np.arange(x.shape[time], dtype=np.int64))
    n, t = o.reshape(lengths, (-1, 1)), o.reshape(steps, (1, -1))
    places = o.where(o.less(t, n), o.sub(o.sub(n, t), 1), t)  # (batch, time)
    places = places if batch == 0 else o.transpose(places)
    wide = o.expand(o.reshape(places, (*places.shape, *(1,) * (x.ndim - 2))), x.shape)
    return o.gather_elements(x, wide, time)
