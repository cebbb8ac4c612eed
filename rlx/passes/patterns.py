"""Patterns of ops as data, and their matcher: the means by which passes recognize functions written in small ops.

A pattern is a `Call` of an op over patterns, a `Slot` (any tensor, but the same one for each use of the slot's name),
a `Number` (a constant of one element), or `Either` of several. A match is `closed` if nothing outside it reads its
intermediate results, so that one node may replace it.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.ir import Node, Tensor, get_op
from rlx.records import Record, replace

Array = npt.NDArray[Any]


class Slot(Record):
    """Any tensor that satisfies `where`."""

    name: str
    where: Callable[[Tensor], bool] = lambda t: True


class Number(Record):
    """A constant of one float: about `value`, or any number, which `name` then records; equal for equal names."""

    value: float | None = None
    name: str = ""


class Call(Record):
    """An op over patterns, in either order if the op commutes; the node must satisfy `where`."""

    op: str
    inputs: tuple[Pattern, ...]
    where: Callable[[Node], bool] = lambda node: True


class Either(Record):
    """Any one of several patterns, tried in order."""

    options: tuple[Pattern, ...]


Pattern = Slot | Number | Call | Either


class Match(Record):
    """The tensors of the slots, the numbers by name, and the nodes of the calls, the root first."""

    slots: Mapping[str, Tensor]
    numbers: Mapping[str, float]
    nodes: tuple[Node, ...] = ()

    def closed(self, uses: Counter[int]) -> bool:
        """Whether nothing outside the match reads outputs of its nodes but the root; `uses` counts readers."""
        counts = self.reads()
        return all(uses[t.id] == counts[t.id] for node in self.nodes[1:] for t in node.outputs)

    def reads(self) -> Counter[int]:
        """How often the match's nodes read each tensor."""
        return Counter(t.id for node in {id(n): n for n in self.nodes}.values() for t in node.inputs)


@functools.cache
def ops_of(pattern: Pattern) -> frozenset[str]:
    """The ops that every match of the pattern has: in a graph without one of them it need not be tried."""
    if isinstance(pattern, Call):
        return frozenset({pattern.op}).union(*map(ops_of, pattern.inputs))
    if isinstance(pattern, Either):
        return frozenset.intersection(*map(ops_of, pattern.options))
    return frozenset()


def matches(pattern: Pattern, t: Tensor) -> Iterator[Match]:
    """Every match of the pattern at a tensor."""
    return _matches(pattern, t, Match({}, {})) if _may_match(pattern, t) else iter(())


def _may_match(p: Pattern, t: Tensor) -> bool:
    """False where one look at the node tells that the pattern does not match."""
    if isinstance(p, Call):
        return t.node.op.name == p.op and len(t.node.inputs) == len(p.inputs)
    if isinstance(p, Number):
        return t.node.op.is_constant
    return not isinstance(p, Either) or any(_may_match(option, t) for option in p.options)


def _matches(p: Pattern, t: Tensor, m: Match) -> Iterator[Match]:
    if isinstance(p, Slot):
        known = m.slots.get(p.name)
        if known is t or (known is None and p.where(t)):
            yield replace(m, slots={**m.slots, p.name: t})
    elif isinstance(p, Number):
        value = scalar(t)
        wanted = m.numbers.get(p.name) if p.value is None else p.value
        if value is not None and (wanted is None or _about(value, wanted, t.dtype.is_half)):
            yield m if not p.name else replace(m, numbers={**m.numbers, p.name: value})
    elif isinstance(p, Either):
        for option in p.options:
            if _may_match(option, t):
                yield from _matches(option, t, m)
    else:
        node = t.node
        if node.op is get_op(p.op) and len(node.inputs) == len(p.inputs) and p.where(node):
            for inputs in (node.inputs, node.inputs[::-1]) if node.op.commutes else (node.inputs,):
                if all(map(_may_match, p.inputs, inputs)):
                    yield from _all(p.inputs, inputs, replace(m, nodes=(*m.nodes, node)))


def _all(patterns: Sequence[Pattern], tensors: Sequence[Tensor], m: Match) -> Iterator[Match]:
    if not patterns:
        yield m
        return
    for first in _matches(patterns[0], tensors[0], m):
        yield from _all(patterns[1:], tensors[1:], first)


def _about(a: float, b: float, half: bool) -> bool:
    return math.isclose(a, b, rel_tol=1e-3 if half else 1e-6)


def constant(t: Tensor) -> Array | None:
    """The value of a constant, reshaped or not."""
    shape = t.shape
    while t.node.op.reshapes:
        t = t.node.inputs[0]
    value: Array | None = t.node.attrs["value"] if t.node.op.is_constant else None
    return None if value is None else value.reshape(shape)


def scalar(t: Tensor) -> float | None:
    """The float of a constant of one element; None for any other tensor."""
    if not t.node.op.is_constant or t.size != 1 or not t.dtype.is_float:
        return None
    return float(np.asarray(t.node.attrs["value"]).reshape(-1)[0])
