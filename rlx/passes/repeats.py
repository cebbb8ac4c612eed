"""Tensors that repeat the elements of a smaller one: nearest resizing by whole factors, repeat, tile.

With its axes split into elements and repetitions, such a tensor is a broadcast, which a fusion group reads in place:
an image enlarged twofold need not be written to memory before the elementwise ops that follow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.ir import Node, Tensor
from rlx.records import Record

Shape = tuple[int, ...]
_MAX_DIMS = 8
# Coordinate rules of nearest resizing that give i // factor for integer factors, with the rounding modes they need.
_WHOLE = {
    "asymmetric": ("floor",),
    "tf_half_pixel_for_nn": ("floor",),
    "half_pixel": ("round_prefer_floor", "round_prefer_ceil"),
    "half_pixel_symmetric": ("round_prefer_floor", "round_prefer_ceil"),
    "pytorch_half_pixel": ("round_prefer_floor", "round_prefer_ceil"),
}


class Repeat(Record, eq=False):
    """A tensor as a broadcast: `base`, reshaped to the dimensions `parts`, broadcast to `groups`.

    Both have an entry for each axis of the tensor: the dimensions that the axis consists of."""

    base: Tensor
    parts: tuple[Shape, ...]
    groups: tuple[Shape, ...]

    def key(self) -> tuple[int, tuple[Shape, ...], tuple[Shape, ...]]:
        """A key that is equal for repetitions that read the same elements in the same way."""
        return self.base.id, self.parts, self.groups


def repeat_of(t: Tensor) -> Repeat | None:
    """t as a repetition of a smaller tensor; None if it is not one."""
    node = t.node
    if "coordinates" in node.attrs:
        return _resized(node)
    if node.op.reshapes and node.inputs[0].node.op.broadcasts:
        return _spread(t)
    return None


def _resized(node: Node) -> Repeat | None:
    x, attrs = node.inputs[0], node.attrs
    if attrs["mode"] != "nearest" or attrs["rounding"] not in _WHOLE.get(attrs["coordinates"], ()):
        return None
    parts: list[Shape] = []
    groups: list[Shape] = []
    for n, size, scale in zip(x.shape, attrs["sizes"], attrs["scales"], strict=True):
        factor = size // n if n else 0
        if factor * n != size or factor == 0 or scale != size / n:
            return None
        parts.append((n, 1) if factor > 1 else (n,))
        groups.append((n, factor) if factor > 1 else (n,))
    return _made(x, parts, groups)


def _spread(t: Tensor) -> Repeat | None:
    """reshape(expand(y)) as a repetition: the dimensions of the expansion are assigned to the axes of t."""
    wide = t.node.inputs[0]
    y = wide.node.inputs[0]
    own = (1,) * (wide.ndim - y.ndim) + y.shape
    dims = [(n, m) for n, m in zip(wide.shape, own, strict=True) if n != 1]
    parts: list[Shape] = []
    groups: list[Shape] = []
    at = 0
    for size in t.shape:
        start, product = at, 1
        while product < size and at < len(dims):
            product *= dims[at][0]
            at += 1
        if product != size:
            return None
        groups.append(tuple(n for n, _ in dims[start:at]))
        parts.append(tuple(m for _, m in dims[start:at]))
    return _made(y, parts, groups)


def _made(base: Tensor, parts: Sequence[Shape], groups: Sequence[Shape]) -> Repeat | None:
    """The repetition with the fewest dimensions: no dimension of length 1, and one for each unrepeated axis."""
    if parts == groups or 0 in base.shape:
        return None
    fewer: list[tuple[Shape, Shape]] = []
    for part, group in zip(parts, groups, strict=True):
        kept = [(m, n) for m, n in zip(part, group, strict=True) if n != 1]
        if all(m == n for m, n in kept):
            kept = [(math.prod(part), math.prod(group))]
        fewer.append((tuple(m for m, _ in kept), tuple(n for _, n in kept)))
    return Repeat(base, tuple(part for part, _ in fewer), tuple(group for _, group in fewer))


def splits(shape: Shape, repeats: Sequence[Repeat]) -> list[Shape] | None:
    """How each axis of a group of that shape must be split for all these inputs; None if they disagree."""
    groups: list[Shape] = [(n,) for n in shape]
    for r in repeats:
        lead = len(shape) - len(r.groups)
        for axis, group in enumerate(r.groups, lead):
            if math.prod(group) != shape[axis] or len(group) < 2 or groups[axis] == group:
                continue
            if len(groups[axis]) > 1:
                return None
            groups[axis] = group
    return groups if sum(map(len, groups)) <= _MAX_DIMS else None


def seen(shape: Shape, split: Sequence[Shape], repeat: Repeat | None) -> Shape:
    """The shape in which a group with these split axes reads an input, which is of `shape` or a repetition."""
    if repeat is None:
        lead = len(split) - len(shape)
        return tuple(d for n, group in zip(shape, split[lead:], strict=True) for d in _axis((n,), group))
    lead = len(split) - len(repeat.parts)
    pairs = zip(repeat.parts, repeat.groups, split[lead:], strict=True)
    return tuple(d for part, own, group in pairs for d in (part if own == group else _axis(part, group)))


def _axis(part: Shape, group: Shape) -> Shape:
    """One axis of an input, of full length or broadcast, split like the group's axis."""
    return group if math.prod(part) == math.prod(group) else (1,) * len(group)
