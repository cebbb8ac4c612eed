"""Layouts of padded tensors: which elements of each axis are those of the tensor at its true lengths.

An axis is a product of factors, in row-major order. A fixed factor has one length in every program; of a padded factor
the first `true` elements count, and the others may hold any value. So (batch, time, 4) reshaped to (batch · time, 4)
has a first axis of two factors, whose true elements need not be contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rlx.ir import Graph
from rlx.records import Record, field, replace

# A function that reads a number from a graph that was traced for the true lengths.
Reading = Callable[[Graph], int]


class Refused(Exception):
    """A node that cannot run on padded tensors; the message says why, without the node's name."""


class Factor(Record):
    """A part of an axis: `size` elements in the padded program.

    `true` is None for a fixed factor; else it has the number of elements that count at each of the lengths that the
    program is made from, and `reading` finds that number in any other graph. `uniform`: all elements are equal, so
    that the factor fits any other layout with as many elements."""

    size: int
    true: tuple[int, ...] | None = None
    reading: Reading | None = field(default=None, compare=False)
    uniform: bool = field(default=False, compare=False)


Axis = tuple[Factor, ...]
Layout = tuple[Axis, ...]


def fixed(n: int) -> Axis:
    return (Factor(n),)


def is_fixed(axis: Axis) -> bool:
    return all(f.true is None for f in axis)


def is_varying(layout: Layout) -> bool:
    return not all(map(is_fixed, layout))


def is_prefix(axis: Axis) -> bool:
    """Whether the true elements come first, so that they have the same indices as in a program of the true length."""
    return all(f.true is None for f in axis[1:])


def prefix(axis: Axis) -> Factor | None:
    """A padded axis as one factor; None where its true elements do not come first."""
    if not is_prefix(axis):
        return None
    if len(axis) == 1:
        return axis[0]
    head = axis[0]
    assert head.true is not None and head.reading is not None
    inner, reading = size_of(axis[1:]), head.reading
    return Factor(
        head.size * inner, tuple(n * inner for n in head.true), lambda graph: reading(graph) * inner
    )


def certain(layout: Layout) -> Layout:
    """The layout without `uniform`: for a tensor whose elements may no longer be equal."""
    return tuple(tuple(replace(f, uniform=False) if f.uniform else f for f in axis) for axis in layout)


def size_of(axis: Axis) -> int:
    return math.prod(f.size for f in axis)


def true_shape(layout: Layout, graph: Graph) -> tuple[int, ...] | None:
    """A tensor's shape in a graph of true lengths; None if it does not fit into the padded one."""
    sizes = []
    for axis in layout:
        true = [f.size if f.reading is None else f.reading(graph) for f in axis]
        if any(n > f.size for n, f in zip(true, axis, strict=True)):
            return None
        sizes.append(math.prod(true))
    return tuple(sizes)


def joined(axes: Sequence[Axis], size: int) -> Axis:
    """The common layout of axes that an elementwise op combines; axes of length 1 are broadcast.

    Raises: Refused where they differ."""
    fitting = [a for a in axes if size_of(a) == size] or [fixed(size)]
    placed = [a for a in fitting if not any(f.uniform for f in a)] or fitting
    # Several factors are more specific than a single one with the same true elements.
    first = max(placed, key=len)
    if any(a != first and (prefix(a) is None or prefix(a) != prefix(first)) for a in placed):
        raise Refused("it combines axes whose padding lies in different places")
    return first


def broadcast(layouts: Sequence[Layout], shape: Sequence[int]) -> Layout:
    """The layout of tensors that are broadcast with each other to a shape."""
    rank = len(shape)
    return tuple(
        joined([p[k - rank + len(p)] for p in layouts if k - rank + len(p) >= 0], n)
        for k, n in enumerate(shape)
    )


def reshaped(layout: Layout, shape: Sequence[int]) -> Layout:
    """The layout after a reshape. Raises: Refused where a padded factor would be cut."""
    if 0 in shape:
        return tuple(map(fixed, shape))  # there are no elements; a length that has some is noticed by its shapes
    left = [*_merged([f for axis in layout for f in axis if f != Factor(1)])][::-1]
    axes: list[Axis] = []
    for n in shape:
        axis: list[Factor] = []
        while n > 1:
            if not left:
                raise Refused("the reshape has axes that the padded tensor cannot fill")
            f = left.pop()
            if n % f.size:
                if f.true is not None or f.size % n:
                    raise Refused("the reshape cuts through an axis of unknown length")
                left.append(Factor(f.size // n))
                f = Factor(n)
            axis.append(f)
            n //= f.size
        axes.append(_merged(axis))
    if any(f.true is not None for f in left):
        raise Refused("the reshape drops an axis of unknown length")
    return tuple(axes)


def _merged(factors: Sequence[Factor]) -> Axis:
    """The factors with neighbouring fixed ones as one."""
    merged: list[Factor] = []
    for f in factors:
        if merged and merged[-1].true is None and f.true is None:
            merged[-1] = Factor(merged[-1].size * f.size)
        else:
            merged.append(f)
    return tuple(merged) or fixed(1)
