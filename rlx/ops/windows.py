"""Windows that slide over the spatial axes of (N, C, …) tensors, as convolution and pooling need them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from rlx.errors import DTypeError, ShapeError
from rlx.ir import Attrs, Node, Tensor, TensorType
from rlx.ir.types import as_items, is_length
from rlx.ops.numeric import Array

Ints = tuple[int, ...]
Pads = tuple[tuple[int, int], ...]
MAX_SPATIAL = 3
MAX_STEP = (1 << 31) - 1  # the largest stride or dilation


def check_image(op: str, t: TensorType, what: str = "input") -> int:
    """The number of spatial axes. Raises: ShapeError unless there are one to three."""
    spatial = t.rank - 2
    if not 1 <= spatial <= MAX_SPATIAL:
        raise ShapeError(f"{op}: the {what} is {t}; expected (N, C, …) with one, two or three spatial axes")
    return spatial


def check_counts(op: str, attrs: Attrs, names: Sequence[str], n: int, least: int = 1) -> None:
    """Checks attributes with one int per axis.

    Raises: ShapeError unless each is a tuple of n ints ≥ `least`, and strides and dilations fit 32 bits.
    """
    for name in names:
        value = attrs[name]
        if (
            not isinstance(value, tuple)
            or len(value) != n
            or not all(type(v) is int and v >= least for v in value)
        ):
            raise ShapeError(f"{op}: {name} is {value!r}; expected a tuple of {n} ints ≥ {least}")
        if name in ("strides", "dilations") and max(value, default=0) > MAX_STEP:
            raise ShapeError(f"{op}: {name} is {value!r}; expected {MAX_STEP} at most, kernels count in 32 bits")


def check_pads(op: str, attrs: Attrs, n: int) -> None:
    """Checks the pads. Raises: ShapeError unless `pads` holds n pairs (begin, end) of ints ≥ 0."""
    pads = attrs["pads"]
    good = isinstance(pads, tuple) and len(pads) == n
    good = good and all(
        isinstance(p, tuple) and len(p) == 2 and all(type(v) is int and v >= 0 for v in p) for p in pads
    )
    if not good:
        raise ShapeError(f"{op}: pads is {pads!r}; expected a (begin, end) of ints ≥ 0 for each of {n} axes")


def check_groups(op: str, groups: Any, channels: int, what: str) -> None:
    if type(groups) is not int or groups < 1 or channels % groups:
        raise ShapeError(
            f"{op}: groups is {groups!r}; expected an int ≥ 1 that divides the {channels} {what}"
        )


def per_axis(op: str, what: str, value: Any, n: int) -> Ints:
    """An argument that is an int for all axes, or a sequence of one for each, as a tuple of n ints."""
    values = (value,) * n if is_length(value) else as_items(value, f"{op}: {what}")
    if len(values) != n or not all(map(is_length, values)):
        raise ShapeError(f"{op}: {what} is {value!r}; expected an int or {n} ints, one for each spatial axis")
    return tuple(int(v) for v in values)


def pads_of(op: str, pads: Any, n: int) -> Pads:
    """Pads as n pairs (begin, end), from an int, one int for each axis (both ends), or a pair for each axis."""
    values = (pads,) * n if is_length(pads) else as_items(pads, f"{op}: pads")
    pairs = [(v, v) if is_length(v) else as_items(v, f"{op}: pads") for v in values]
    if len(pairs) != n or not all(len(p) == 2 and all(map(is_length, p)) for p in pairs):
        raise ShapeError(
            f"{op}: pads is {pads!r}; expected an int, an int for each of {n} spatial axes, or a (begin, end) for each"
        )
    return tuple((int(a), int(b)) for a, b in pairs)


def either(op: str, names: tuple[str, str], value: Any, other: Any, default: Any) -> Any:
    """An argument with two names, ONNX's and that of torch and JAX. Raises: ShapeError where both are given."""
    if value is not None and other is not None:
        raise ShapeError(f"{op}: both {names[0]} and {names[1]} are there, two names of one argument; give one")
    return default if value is None and other is None else other if value is None else value


def padding_of(op: str, padding: Any, sizes: Ints, kernel: Ints, strides: Ints, dilations: Ints) -> Pads:
    """Pads from numbers, as in `pads_of`, or from a word, as in ONNX and JAX: "valid" is no padding; "same" pads for
    ⌈size / stride⌉ windows, with an odd element of padding at the end, "same_lower" with it at the beginning."""
    if not isinstance(padding, str):
        return pads_of(op, padding, len(sizes))
    word = padding.lower()
    if word not in ("valid", "same", "same_lower"):
        raise ShapeError(f"{op}: padding is {padding!r}; expected 'same', 'same_lower', 'valid', or numbers")
    if word == "valid":
        return ((0, 0),) * len(sizes)
    pads = []
    for n, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
        total = max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
        less, more = total // 2, total - total // 2
        pads.append((less, more) if word == "same" else (more, less))
    return tuple(pads)


def spatial_axes(op: str, x: Tensor) -> int:
    """The number of spatial axes of x."""
    return check_image(op, x.type)


def window_counts(
    op: str,
    sizes: Sequence[int],
    kernel: Ints,
    strides: Ints,
    dilations: Ints,
    pads: Pads,
    ceil: bool = False,
) -> Ints:
    """The number of windows along each axis. With `ceil`, a last window that only begins inside the input counts too.

    Raises: ShapeError where not even one window fits.
    """
    counts = []
    for axis, (n, k, s, d, (before, after)) in enumerate(
        zip(sizes, kernel, strides, dilations, pads, strict=True)
    ):
        room = n + before + after - (d * (k - 1) + 1)
        if room < 0:
            raise ShapeError(
                f"{op}: a window of {d * (k - 1) + 1} (kernel {k}, dilation {d}) is longer than spatial axis {axis}, "
                f"{n} with pads ({before}, {after}); use a smaller kernel or larger pads"
            )
        count = (-(-room // s) if ceil else room // s) + 1
        # A window that begins beyond the input and its front padding would hold only back padding.
        if ceil and (count - 1) * s >= n + before:
            count -= 1
        counts.append(count)
    return tuple(counts)


def windows(
    x: Array, kernel: Ints, strides: Ints, dilations: Ints, pads: Pads, counts: Ints, fill: Any = 0
) -> Array:
    """A read-only view (N, C, *kernel, *counts) of a padded copy of x: the elements under every window."""
    spatial = x.shape[2:]
    # In ceil mode the last window may begin inside and end beyond the padding: the copy is padded to its end.
    ends = [
        max(after, (c - 1) * s + d * (k - 1) + 1 - before - n)
        for n, k, s, d, (before, after), c in zip(
            spatial, kernel, strides, dilations, pads, counts, strict=True
        )
    ]
    width = [(0, 0), (0, 0), *((before, end) for (before, _), end in zip(pads, ends, strict=True))]
    padded = np.pad(x, width, constant_values=fill) if any(map(any, width)) else np.ascontiguousarray(x)
    steps = padded.strides
    taps = [st * d for st, d in zip(steps[2:], dilations, strict=True)]
    moves = [st * s for st, s in zip(steps[2:], strides, strict=True)]
    return as_strided(padded, (*x.shape[:2], *kernel, *counts), (*steps[:2], *taps, *moves), writeable=False)


def window_terms(node: Node) -> int:
    """About how many bytes an op's NumPy reference reads and holds, which copies each window's elements."""
    return 8 * max(node.outputs[0].size, node.inputs[0].size) * math.prod(node.attrs["kernel"])


def check_floats(op: str, types: Sequence[TensorType], names: Sequence[str]) -> None:
    for what, t in zip(names, types, strict=False):
        if not t.dtype.is_float:
            raise DTypeError(
                f"{op}: the {what} is {t.dtype}; expected a float (rlx.{op} casts integers to f32)"
            )
