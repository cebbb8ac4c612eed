"""How the kernels of convolution read their operands: tables of the offsets of each term, in x and in the weights.

A transposed convolution is computed as one convolution per phase of its output: output elements a stride apart use the
same taps and form a phase.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rlx.ir import Node, Tensor

Table = npt.NDArray[np.int32]
_KEPT = 64  # cached readings; a network of many layers has some twenty


def three(values: Sequence[int], fill: int) -> list[int]:
    """Pads one to three values of spatial axes to three, with `fill` in front."""
    return [fill] * (3 - len(values)) + list(values)


@dataclass(frozen=True, slots=True)
class Reading:
    """How a convolution reads x and w: see bodies/conv.h. `meta` is the kernel's argument block except for its phases,
    which are in `phases`."""

    rows: int
    groups: int
    meta: list[int]
    phases: list[list[int]]
    taps: Table
    places: Table | None

    @property
    def terms(self) -> int:
        return max(p[0] for p in self.phases)

    def columns(self, batch: int) -> int:
        return batch * max(p[2] * p[3] * p[4] for p in self.phases)


    @property
    def dense(self) -> bool:
        """Whether there is only one phase, and it computes the pixels of y in memory order."""
        (count, *others), plane = [math.prod(p[2:5]) for p in self.phases], self.meta[8]
        return not others and count == plane

    def by_pixel(self, channels: int, pixel: int, row: int, out: int, part: int = 0) -> tuple[list[int], Table]:
        """The argument block and the taps for bodies/conv_mma.h, from the `channels` of a group of x, the units per
        pixel of x, per row of weights and per `part` of x, and the elements per pixel of y. The list of taps ends with
        an empty one."""
        every = self.groups * self.rows * row
        block = [*self.meta[:6], pixel, row, out, *self.meta[8:12], self.meta[14], part, every]
        taps, done = [], 0
        for terms, first, *rest in self.phases:
            count = terms // channels
            block += [count, done, *rest]
            own = self.taps[first : first + count].copy()
            own[:, 0] = np.arange(count) if self.places is None else self.places[first : first + count]
            taps.append(own)
            done += count
        return block, np.concatenate([*taps, np.zeros((1, 4), np.int32)]).astype(np.int32)


def _axis(values: Sequence[int], axis: int) -> npt.NDArray[np.int64]:
    """Values along one axis (channel or one of three spatial axes) of a table, shaped for broadcasting."""
    shape = [1, 1, 1, 1]
    shape[axis] = len(values)
    return np.asarray(values, np.int64).reshape(shape)


def _table(channels: int, offsets: Sequence[Sequence[int]], sizes: Sequence[int]) -> Table:
    """(offset in x, offsets along the axes) of each term: channels, then the offsets of each axis."""
    at = [_axis(o, i + 1) for i, o in enumerate(offsets)]
    where = _axis(range(channels), 0)
    for offset, size in zip(at, sizes, strict=True):
        where = where * size + offset
    parts = np.broadcast_arrays(where, *at)
    return np.ascontiguousarray(np.stack([p.reshape(-1) for p in parts], axis=1), np.int32)


Shape = tuple[int, ...]


def forward_reading(x: Shape, w: Shape, y: Shape, node: Node) -> Reading:
    """A convolution of shapes x and w into y."""
    return _forward(x, w, y, _Geometry.of(node))


def backward_reading(x: Shape, w: Shape, y: Shape, node: Node) -> Reading:
    """A transposed convolution of shapes x and w into y."""
    return _backward(x, w, y, _Geometry.of(node))


class _Geometry(NamedTuple):
    """The attributes of a convolution that determine its readings: the cache key, since networks repeat it."""

    groups: int
    strides: Shape
    dilations: Shape
    pads: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, node: Node) -> _Geometry:
        a = node.attrs
        pads = tuple((before, after) for before, after in a["pads"])
        return cls(a["groups"], tuple(a["strides"]), tuple(a["dilations"]), pads)


@lru_cache(_KEPT)
def _forward(x: Shape, w: Shape, y: Shape, at: _Geometry) -> Reading:
    groups = at.groups
    sizes, kernel, counts = three(x[2:], 1), three(w[2:], 1), three(y[2:], 1)
    before = three([a for a, _ in at.pads], 0)
    dilations = three(at.dilations, 1)
    offsets = [[k * d - a for k in range(n)] for n, d, a in zip(kernel, dilations, before, strict=True)]
    inner, rows, size = w[1], w[0] // groups, math.prod(sizes)
    terms = inner * math.prod(kernel)
    meta = [
        *sizes, *three(at.strides, 1), x[1] * size, inner * size, math.prod(counts),
        counts[1] * counts[2], counts[2], 1, rows * terms, terms, math.prod(y), 0,
    ]  # fmt: skip
    phases = [[terms, 0, *counts, 0, 0, 0]]
    return Reading(rows, groups, meta, phases, _table(inner, offsets, sizes), None)


@lru_cache(_KEPT)
def _backward(x: Shape, w: Shape, y: Shape, at: _Geometry) -> Reading:
    groups = at.groups
    sizes, kernel, out = three(x[2:], 1), three(w[2:], 1), three(y[2:], 1)
    before = three([a for a, _ in at.pads], 0)
    strides, dilations = three(at.strides, 1), three(at.dilations, 1)
    inner, channels, size, taps = w[1], w[0] // groups, math.prod(sizes), math.prod(kernel)
    lines = (out[1] * out[2], out[2], 1)
    meta = [
        *sizes, 1, 1, 1, x[1] * size, channels * size, math.prod(out),
        *(s * line for s, line in zip(strides, lines, strict=True)), channels * inner * taps, taps, math.prod(y), 0,
    ]  # fmt: skip
    phases, tables, places = [], [], []
    done = 0
    for phase in product(*(range(min(s, n)) for s, n in zip(strides, out, strict=True))):
        reaching = [
            [k for k in range(n) if (r + a - k * d) % s == 0]
            for n, r, a, d, s in zip(kernel, phase, before, dilations, strides, strict=True)
        ]
        offsets = [
            [(r + a - k * d) // s for k in ks]
            for ks, r, a, d, s in zip(reaching, phase, before, dilations, strides, strict=True)
        ]
        place = _axis(range(channels), 0) * (inner * taps)
        for i, ks in enumerate(reaching):
            place = place + _axis([k * math.prod(kernel[i + 1 :]) for k in ks], i + 1)
        tables.append(_table(channels, offsets, sizes))
        places.append(place.reshape(-1))
        counts = [-(-(n - r) // s) for n, r, s in zip(out, phase, strides, strict=True)]
        start = sum(r * line for r, line in zip(phase, lines, strict=True))
        phases.append([len(tables[-1]), done, *counts, start, 0, 0])
        done += len(tables[-1])
    where = np.concatenate(places).astype(np.int32)
    return Reading(inner, groups, meta, phases, np.concatenate(tables), where)


def window_meta(x: Tensor, counts: Sequence[int], kernel: Sequence[int], node: Node) -> list[int]:
    """Sizes, positions, strides, dilations, padding before and kernel of a window, three of each."""
    attrs = node.attrs
    return [
        *three(x.shape[2:], 1), *three(counts, 1), *three(attrs["strides"], 1),
        *three(attrs.get("dilations", (1,) * len(kernel)), 1), *three([a for a, _ in attrs["pads"]], 0),
        *three(kernel, 1),
    ]  # fmt: skip
