"""Pooling: MaxPool with its indices, AveragePool, LpPool, and pooling over everything."""

from __future__ import annotations

import numpy as np

from rlx import ops as o
from rlx.dtypes import f32
from rlx.ir import Tensor
from rlx.onnx.ops.windows import Windows, seen, windows_of
from rlx.onnx.reader.call import Call, Result
from rlx.onnx.reader.table import op


def _image(c: Call) -> Tensor:
    x = c.x()
    if x.ndim < 3:
        raise c.bad(f"the input is {x.shape}; expected (N, C, …)")
    return x


def _pools(w: Windows) -> bool:
    """Whether rlx's pooling takes these windows: 1 to 3 axes, padding within reach."""
    return len(w.sizes) <= 3 and all(max(p) <= r for p, r in zip(w.pads, w.reach, strict=True))


@op("MaxPool")
def max_pool(c: Call) -> tuple[Tensor, ...]:
    x = _image(c)
    w = windows_of(c, x.shape[2:], None)
    wide = x if x.dtype.is_float else o.cast(x, f32)  # small integers, which f32 holds
    if c.n_outputs < 2 and _pools(w):
        return (
            o.max_pool(
                wide, w.kernel, strides=w.strides, pads=w.pads, dilations=w.dilations, ceil_mode=w.ceil_mode
            ),
        )
    taps, index, _ = seen(c, wide, w, -np.inf)
    shape = (*x.shape[:2], *w.counts)
    best = o.argmax(taps, 2)
    values = o.reshape(o.max(taps, 2), shape)
    # The spatial index of each tap from its number in the table; then the offset of the channel.
    rows = c.tensor(np.arange(len(index), dtype=np.int64)[None] * index.shape[1])
    flat = index if not c.int("storage_order", 0) else _column_major(index, w)
    place = o.gather(c.tensor(flat.reshape(-1).astype(np.int64)), o.add(best, rows))
    lines = np.arange(x.shape[0] * x.shape[1], dtype=np.int64)[:, None] * int(np.prod(w.sizes))
    return values, o.reshape(o.add(place, c.tensor(lines)), shape)


def _column_major(index: np.ndarray, w: Windows) -> np.ndarray:
    coordinates = np.unravel_index(index, w.sizes)
    return np.asarray(np.ravel_multi_index(coordinates, w.sizes, order="F"))


@op("AveragePool")
def average_pool(c: Call) -> Result:
    x = _image(c)
    w = windows_of(c, x.shape[2:], None)
    counted = bool(c.int("count_include_pad", 0))
    if _pools(w) and all(d == 1 for d in w.dilations):
        return o.avg_pool(
            x, w.kernel, strides=w.strides, pads=w.pads, ceil_mode=w.ceil_mode, count_include_pad=counted
        )
    taps, _, inside = seen(c, o.cast(x, f32) if x.dtype.is_half else x, w, 0.0)
    places = w.places()
    low = -np.array([a for a, _ in w.pads])
    high = np.array(w.sizes) + np.array([b for _, b in w.pads])
    held = np.all((places >= low) & (places < high), -1) if counted else inside
    mean = o.div(o.sum(taps, 2), c.tensor(np.maximum(held.sum(1), 1).astype(taps.dtype.np)))
    return o.reshape(mean, (*x.shape[:2], *w.counts))


def _power(c: Call) -> int:
    p: int = c.int("p", 2)
    if p < 1:
        raise c.bad(f"p is {p}; expected at least 1")
    return p


@op("LpPool", since=2)
def lp_pool(c: Call) -> Result:
    x, p = _image(c), _power(c)
    w = windows_of(c, x.shape[2:], None)
    taps, _, _ = seen(c, o.abs(o.cast(x, f32) if x.dtype.is_half else x), w, 0.0)
    return o.reshape(_norm(taps, p, 2, False), (*x.shape[:2], *w.counts))


def _norm(x: Tensor, p: int, axis: int | tuple[int, ...], keep: bool) -> Tensor:
    if p == 1:
        return o.sum(x, axis, keep)
    if p == 2:
        return o.sqrt(o.sum(o.mul(x, x), axis, keep))
    return o.pow(o.sum(o.pow(x, float(p)), axis, keep), 1.0 / p)


@op("GlobalAveragePool")
def global_average_pool(c: Call) -> Result:
    return o.mean(_image(c), tuple(range(2, c.x().ndim)), keepdims=True)


@op("GlobalMaxPool")
def global_max_pool(c: Call) -> Result:
    return o.max(_image(c), tuple(range(2, c.x().ndim)), keepdims=True)


@op("GlobalLpPool", since=2)
def global_lp_pool(c: Call) -> Result:
    x = _image(c)
    return _norm(o.abs(x), _power(c), tuple(range(2, x.ndim)), True)
