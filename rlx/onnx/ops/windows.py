"""Sliding windows as ONNX describes them: kernel, strides, dilations, explicit or automatic padding, their number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx import ops as o
from rlx.ir import Tensor
from rlx.onnx.reader.call import Call
from rlx.records import Record

MAX_WINDOW_ELEMENTS = 1 << 24  # a model may state any kernel size
MAX_TABLE_ELEMENTS = 1 << 22  # elements under all windows, where a table lists them


class Windows(Record):
    """The placement of windows over the spatial axes of an input; each field has one entry for each axis."""

    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    ceil_mode: bool

    @property
    def reach(self) -> tuple[int, ...]:
        return tuple((k - 1) * d for k, d in zip(self.kernel, self.dilations, strict=True))

    @property
    def counts(self) -> tuple[int, ...]:
        """How many windows there are along each axis."""
        counts = []
        for n, r, s, (a, b) in zip(self.sizes, self.reach, self.strides, self.pads, strict=True):
            room = n + a + b - r - 1
            count = (-(-room // s) if self.ceil_mode else room // s) + 1
            if self.ceil_mode and (count - 1) * s >= n + a:
                count -= 1
            counts.append(max(count, 0))
        return tuple(counts)

    def places(self) -> npt.NDArray[Any]:
        """(windows, taps, axes): the coordinates of each tap of each window, also in the padding."""
        lines = [
            np.arange(c)[:, None] * s - a + np.arange(k)[None, :] * d
            for c, s, (a, _), k, d in zip(
                self.counts, self.strides, self.pads, self.kernel, self.dilations, strict=True
            )
        ]
        n = len(lines)
        grid = [
            line.reshape([line.shape[i // n] if i % n == k else 1 for i in range(2 * n)])
            for k, line in enumerate(lines)
        ]
        shape = (*self.counts, *self.kernel)
        wide = [
            np.broadcast_to(g, shape).reshape(math.prod(self.counts), math.prod(self.kernel)) for g in grid
        ]
        return np.stack(wide, -1)

    def table(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """(windows, taps): the flat spatial index of each tap, and whether it lies inside the input."""
        places = self.places()
        inside = np.all((places >= 0) & (places < np.array(self.sizes)), -1)
        weights = np.array([math.prod(self.sizes[i + 1 :]) for i in range(len(self.sizes))])
        return np.where(inside, places @ weights, 0), inside


def windows_of(c: Call, sizes: Sequence[int], kernel: Sequence[int] | None) -> Windows:
    """The windows a node asks for. Raises: ModelFormatError."""
    n = len(sizes)
    kernel = kernel if kernel is not None else c.ints("kernel_shape")
    strides, dilations = c.ints("strides", [1] * n), c.ints("dilations", [1] * n)
    pads = c.ints("pads", [0] * (2 * n))
    if kernel is None or not len(kernel) == len(strides) == len(dilations) == n or len(pads) != 2 * n:
        raise c.bad(
            f"kernel {kernel}, strides {strides}, dilations {dilations}, pads {pads} for {n} spatial axes"
        )
    if n == 0 or min(*kernel, *strides, *dilations) < 1 or math.prod(kernel) > MAX_WINDOW_ELEMENTS or min(pads) < 0:
        raise c.bad(f"kernel {kernel}, strides {strides}, dilations {dilations}, pads {pads}: out of range")
    auto = c.str("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        pairs = []
        for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
            total = max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
            small = total // 2
            pairs.append((small, total - small) if auto == "SAME_UPPER" else (total - small, small))
    elif auto == "VALID":
        pairs = [(0, 0)] * n
    elif auto == "NOTSET":
        pairs = list(zip(pads[:n], pads[n:], strict=True))
    else:
        raise c.bad(f"auto_pad is {auto!r}; expected NOTSET, SAME_UPPER, SAME_LOWER or VALID")
    ceil_mode = bool(c.int("ceil_mode", 0)) and auto == "NOTSET"
    return Windows(tuple(sizes), tuple(kernel), tuple(strides), tuple(dilations), tuple(pairs), ceil_mode)


def check_table(c: Call, w: Windows) -> None:
    """Raises: UnsupportedOp when a table of every tap of every window would be too large."""
    entries = math.prod(w.counts) * math.prod(w.kernel)
    if entries > MAX_TABLE_ELEMENTS:
        raise c.unsupported(
            f"{entries} elements under all windows; at most {MAX_TABLE_ELEMENTS} are supported in this form"
        )
    c.table(2, len(w.sizes) + 1, *w.counts, *w.kernel)


def seen(c: Call, x: Tensor, w: Windows, fill: float) -> tuple[Tensor, npt.NDArray[Any], npt.NDArray[Any]]:
    """(lines, windows, taps): the elements under each window of each channel, `fill` outside; and the table."""
    check_table(c, w)
    index, inside = w.table()
    lines = x.shape[0] * x.shape[1]
    flat = o.reshape(x, (lines, math.prod(w.sizes)))
    windows = o.reshape(o.gather(flat, c.tensor(index.reshape(-1).astype(np.int32)), 1), (lines, *index.shape))
    if not inside.all():
        windows = o.where(c.tensor(inside), windows, fill)
    return windows, index, inside
