"""Conformance of branches, loops and scans: carries, captures and stacked outputs, with zero to many steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import ops
from rlx.autodiff import gradients
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.f64_cases import none
from rlx.conformance.random_rules import Made, is_number, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import ALL, FLOATS, INTS, NUMBERS, label
from rlx.conformance.tolerances import BITS, NORM, Tolerance
from rlx.dtypes import DType, bool_, f16, f32, i32, i64
from rlx.errors import UnsupportedOp
from rlx.ir import Graph, Tensor, get_op

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

_SHAPES = ((), (0,), (1,), (33,), (3, 5, 7), (65, 129))
_FEW = ((), (33,), (3, 4))


def _case(
    op: str, name: str, specs: Sequence[InputSpec], tolerance: Tolerance, build: Callable[..., Any]
) -> Case:
    """The case of the node that `build` adds to a graph with these inputs; its predicate is also an input of the
    case."""
    graph = Graph(name)
    ins = [graph.input(f"x{i}", s.shape, s.dtype) for i, s in enumerate(specs)]
    build(*ins)
    (node,) = (n for n in graph.nodes if n.op is get_op(op))
    specs_by_id = {t.id: s for t, s in zip(ins, specs, strict=True)}
    taken = tuple(specs_by_id.get(t.id, InputSpec((), bool_)) for t in node.inputs)
    return Case(op, name, taken, node.attrs, tolerance)


def _tolerance(dtype: DType) -> Tolerance:
    return NORM if dtype.is_float else BITS


def _branches() -> Iterator[Case]:
    def mixed(p: Tensor, a: Tensor, b: Tensor) -> Any:
        return ops.cond(p, lambda x: x * b + 1, lambda x: b - x, a)

    def moved(p: Tensor, a: Tensor, b: Tensor) -> Any:
        return ops.cond(p, lambda x, y: (y, ops.flip(x), x), lambda x, y: (x, y, y), a, b)

    for seed in range(2):  # one seed for each value of the predicate
        pred = InputSpec((), bool_, seed=seed)
        for shape in _SHAPES:
            two = (InputSpec(shape, f32), InputSpec(shape, f32, seed=1))
            yield _case("cond", f"f32-{label(shape)}-mixed-{seed}", (pred, *two), NORM, mixed)
        for dtype in NUMBERS:
            two = (InputSpec((9,), dtype), InputSpec((9,), dtype, seed=1))
            yield _case("cond", f"{dtype}-9-mixed-{seed}", (pred, *two), _tolerance(dtype), mixed)
        for dtype in ALL:
            two = (InputSpec((2, 17), dtype, "any"), InputSpec((2, 17), dtype, "any", 1))
            yield _case("cond", f"{dtype}-2x17-moved-{seed}", (pred, *two), BITS, moved)
        product = (InputSpec((5, 8), f32), InputSpec((8, 3), f32, seed=1))
        for k, (then, other) in enumerate(
            (
                (lambda x, w: x @ w, lambda x, w: x[:, :3]),
                (lambda x, w: ops.softmax(x @ w), lambda x, w: ops.tanh(x) @ w),
            )
        ):
            yield _case(
                "cond", f"f32-product-{k}-{seed}", (pred, *product), NORM,
                lambda p, x, w, then=then, other=other: ops.cond(p, lambda: then(x, w), lambda: other(x, w)),
            )  # fmt: skip


def _until(n: int, step: Callable[..., Any]) -> Callable[..., Any]:
    """A builder of a loop that counts from its first input up to n, with `step` on the other carries."""

    def build(i: Tensor, *carry: Tensor) -> Any:
        return ops.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, *step(*c[1:])), (i, *carry))

    return build


def _loops() -> Iterator[Case]:
    specs: tuple[InputSpec, ...]
    for k, shape in enumerate(_SHAPES):
        specs = (InputSpec((), i32, "ties", k), InputSpec(shape, f32))
        yield _case(
            "while_loop", f"f32-{label(shape)}-shrink", specs, NORM, _until(6, lambda x: (x * 0.5 + 1,))
        )
    for dtype in NUMBERS:
        for k, shape in enumerate(_FEW):
            specs = (InputSpec((), i64 if k else i32, "ties", k), InputSpec(shape, dtype))
            build = _until(4, lambda x: (x + x,))
            yield _case("while_loop", f"{dtype}-{label(shape)}-double", specs, _tolerance(dtype), build)
    for dtype in ALL:
        specs = (InputSpec((), i32, "ties"), InputSpec((9,), dtype, "any"), InputSpec((9,), dtype, "any", 1))
        yield _case("while_loop", f"{dtype}-9-swap", specs, BITS, _until(5, lambda a, b: (b, a)))
    for n in (1, 2, 50):
        specs = (InputSpec((), i32, "ties", n), InputSpec((8, 8), f32, "small"), InputSpec((8,), f32))

        def power(i: Tensor, w: Tensor, x: Tensor, n: int = n) -> Any:
            return _until(n, lambda x: (ops.tanh(w @ x + x),))(i, x)

        yield _case("while_loop", f"f32-8-power-{n}", specs, NORM, power)

    def collatz(n: Tensor, steps: Tensor) -> Any:
        half, odd = (lambda m: ops.floor_divide(m, 2)), (lambda m: 3 * m + 1)
        step = lambda c: (ops.cond(ops.equal(c[0] % 2, 0), half, odd, c[0]), c[1] + 1)  # noqa: E731
        return ops.while_loop(lambda c: (c[0] > 1) & (c[1] < 200), step, (n, steps))

    for k in range(4):
        specs = (InputSpec((), i32, "positive", k), InputSpec((), i32, "zeros"))
        yield _case("while_loop", f"i32-collatz-{k}", specs, BITS, collatz)


def _scans() -> Iterator[Case]:
    def running(c: Tensor, xs: Tensor) -> Any:
        return ops.scan(lambda c, x: (c + x, c * 1), c, xs)

    def backwards(c: Tensor, xs: Tensor) -> Any:
        return ops.scan(lambda c, x: (c + x, (c - x, c)), c, xs, reverse=True)

    specs: tuple[InputSpec, ...]
    for length in (0, 1, 2, 17):
        for shape in _FEW:
            specs = (InputSpec(shape, f32), InputSpec((length, *shape), f32))
            name = f"f32-{length}-{label(shape)}"
            yield _case("scan", f"{name}-running", specs, NORM, running)
            yield _case("scan", f"{name}-backwards", specs, NORM, backwards)
    for dtype in NUMBERS:
        specs = (InputSpec((5,), dtype), InputSpec((7, 5), dtype, seed=1))
        yield _case("scan", f"{dtype}-7-5-running", specs, _tolerance(dtype), running)
    for dtype in ALL:
        specs = (InputSpec((5,), dtype, "any"), InputSpec((3, 5), dtype, "any", 1))
        yield _case(
            "scan", f"{dtype}-3-5-shifted", specs, BITS, lambda c, xs: ops.scan(lambda c, x: (x, c), c, xs)
        )
    for dtype in FLOATS:
        specs = (InputSpec((4, 6), dtype), InputSpec((9, 4, 5), dtype), InputSpec((11, 6), dtype, "small"))

        def cell(h: Tensor, xs: Tensor, w: Tensor) -> Any:
            def step(h: Tensor, x: Tensor) -> Any:
                h = ops.tanh(ops.concat([x, h], 1) @ w)
                return h, h

            return ops.scan(step, h, xs)

        if dtype == f32:
            yield _case("scan", f"{dtype}-rnn", specs, NORM, cell)
        yield _case(
            "scan", f"{dtype}-map", specs[1:2], NORM, lambda xs: ops.scan(lambda c, x: (c, x * 2), (), xs)
        )
    for dtype in (*INTS, f16):
        specs = (InputSpec((), dtype, "ties"),)
        build = lambda c: ops.scan(lambda c, _: (c + 1, c), c, None, length=5)  # noqa: E731
        yield _case("scan", f"{dtype}-5-counted", specs, _tolerance(dtype), build)


def _flag(b: Builder) -> Tensor:
    """A bool input, so that its value is known only in a run."""
    name = f"flag{len(b.made.feeds)}"
    b.made.feeds[name] = np.asarray(b.chance(0.5), np.bool_)
    return b.graph.input(name, (), bool_)


def _mixed(b: Builder, x: Tensor, beside: Tensor) -> Tensor:
    """A tensor of x's type, computed from x or `beside`, a tensor of the same type, or from both."""
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
    """A bool that depends on a tensor's values."""
    return ops.any(x) if not is_number(x) else ops.max(ops.cast(x, f32)) > 0 if x.size else ops.any(ops.isnan(x))


@rule("nested_control")
def _nested(b: Builder) -> Made:
    """Control ops within control ops, with predicates from data and captures from two graphs further out."""
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
    """The gradient of the sum of a float tensor with respect to an earlier one.

    If an op between them has no gradient, returns the nodes added until then.
    """
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


# No f64 cases are made from these: their bodies are graphs with f32 tensors, which keep their dtype.
OPS = (
    Conformance("cond", (_branches,), (_cond, _nested), none),
    Conformance("while_loop", (_loops,), (_while, _nested), none),
    Conformance("scan", (_scans,), (_scan, _nested, _gradient), none),
)
