"""Rules of random graphs: branches, loops and scans over whatever is there, taken as operands and from around."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import ops
from rlx.autodiff import gradients
from rlx.conformance.random_rules import Made, is_number, rule
from rlx.dtypes import bool_, f32, i32
from rlx.errors import UnsupportedOp
from rlx.ir import Tensor

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder


def _flag(b: Builder) -> Tensor:
    """A bool that is known only in the run."""
    name = f"flag{len(b.made.feeds)}"
    b.made.feeds[name] = np.asarray(b.chance(0.5), np.bool_)
    return b.graph.input(name, (), bool_)


def _mixed(b: Builder, x: Tensor, beside: Tensor) -> Tensor:
    """Something of x's type that may read another tensor of it."""
    way = b.below(5)
    if way == 0:
        return x
    if way == 1:
        return beside
    if not is_number(x):
        return ops.logical_xor(x, beside) if way == 2 else ops.logical_not(x)
    if way == 2:
        return ops.maximum(x, beside)
    return ops.neg(x) if way == 3 else ops.cast(ops.add(ops.abs(x), 1), x.dtype)


@rule("cond")
def _cond(b: Builder) -> Made:
    x = b.any()
    y = b.pick_or(lambda t: t.type == x.type, x.shape, x.dtype)
    ways = [lambda p, q: (_mixed(b, p, y), _mixed(b, q, x)) for _ in range(2)]
    return ops.cond(_flag(b), ways[0], ways[1], x, y)  # type: ignore[no-any-return]


@rule("while_loop")
def _while(b: Builder) -> Made:
    x = b.any()
    y = b.pick_or(lambda t: t.type == x.type, x.shape, x.dtype)
    start = b.graph.constant(b.below(4), i32)
    flag = _flag(b)

    def step(c: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        i, p, q = c
        p, q = (q, p) if b.chance(0.5) else (p, q)
        if b.chance(0.3):
            p = ops.cond(flag, lambda t: _mixed(b, t, y), lambda t: t, p)
        return i + 1, _mixed(b, p, q), _mixed(b, q, y)

    return ops.while_loop(lambda c: c[0] < 3, step, (start, x, y), max_steps=5)[1:]  # type: ignore[no-any-return]


@rule("scan_steps")
def _scan(b: Builder) -> Made:
    xs = b.ranked(1)
    rest = xs.shape[1:]
    c, y = (b.pick_or(lambda t: t.shape == rest and t.dtype == xs.dtype, rest, xs.dtype) for _ in range(2))

    def step(c: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        c = _mixed(b, c, y) if b.chance(0.3) else c
        return _mixed(b, c, x), (_mixed(b, x, c), c) if b.chance(0.5) else _mixed(b, x, c)

    last, ys = ops.scan(step, c, xs, reverse=b.chance(0.5))
    return (last, *ys) if isinstance(ys, tuple) else (last, ys)


def _truth(x: Tensor) -> Tensor:
    """A bool that depends on what a tensor holds."""
    return ops.any(x) if not is_number(x) else ops.max(ops.cast(x, f32)) > 0 if x.size else ops.any(ops.isnan(x))


@rule("nested_control")
def _nested(b: Builder) -> Made:
    """Control ops in control ops, their predicates from data, what they close over from two graphs further out."""
    x = b.any()
    y = b.pick_or(lambda t: t.type == x.type, x.shape, x.dtype)

    def inside(depth: int, p: Tensor, around: Tensor) -> Tensor:
        kind = b.below(4) if depth else 3
        if kind == 0:
            grown = _mixed(b, p, y)
            return ops.cond(_truth(p), lambda t: inside(depth - 1, t, grown), lambda t: _mixed(b, t, around), p)  # type: ignore[no-any-return]
        if kind == 1:
            zero = b.graph.constant(0, i32)
            going = lambda c: ops.logical_and(c[0] < 2, _truth(c[1]))  # noqa: E731
            step = lambda c: (c[0] + 1, inside(depth - 1, c[1], around))  # noqa: E731
            return ops.while_loop(going, step, (zero, p), max_steps=3)[1]  # type: ignore[no-any-return]
        if kind == 2:
            rows = ops.stack([p, around], 0)
            last, ys = ops.scan(lambda c, row: (inside(depth - 1, c, row), _mixed(b, c, y)), p, rows)
            return _mixed(b, last, ys[0])
        return _mixed(b, p, around)

    return (inside(2 + b.below(2), x, y),)


@rule("gradient", rough=True)
def _gradient(b: Builder) -> Made:
    """The gradient of the sum of some float by what came before it; nothing where an op on the way has none."""
    y = b.floating()
    wrt = [t for t in b.pool if t.dtype.is_float and t is not y][-6:]
    if not wrt or len(b.graph.nodes) > 40:
        return ()
    before = len(b.graph.nodes)
    x = b.choose(wrt)
    try:
        return tuple(gradients(ops.sum(y), [x]))
    except UnsupportedOp:
        return tuple(t for n in b.graph.nodes[before:] for t in n.outputs)
