"""Cases of cond, while_loop and scan: what is carried, taken from around, stacked; steps from none to many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.cases.shapes import ALL, FLOATS, INTS, NUMBERS, label
from rlx.conformance.tolerances import BITS, NORM, Tolerance
from rlx.dtypes import DType, bool_, f16, f32, i32, i64
from rlx.ir import Graph, Tensor, get_op

_SHAPES = ((), (0,), (1,), (33,), (3, 5, 7), (65, 129))
_FEW = ((), (33,), (3, 4))


def _case(
    op: str, name: str, specs: Sequence[InputSpec], tolerance: Tolerance, build: Callable[..., Any]
) -> Case:
    """The node that `build` adds to a graph of these inputs, its predicate an input too."""
    graph = Graph(name)
    ins = [graph.input(f"x{i}", s.shape, s.dtype) for i, s in enumerate(specs)]
    build(*ins)
    (node,) = (n for n in graph.nodes if n.op is get_op(op))
    given = {t.id: s for t, s in zip(ins, specs, strict=True)}
    taken = tuple(given.get(t.id, InputSpec((), bool_)) for t in node.inputs)
    return Case(op, name, taken, node.attrs, tolerance)


def _tolerance(dtype: DType) -> Tolerance:
    return NORM if dtype.is_float else BITS


def _branches() -> Iterator[Case]:
    def mixed(p: Tensor, a: Tensor, b: Tensor) -> Any:
        return ops.cond(p, lambda x: x * b + 1, lambda x: b - x, a)

    def moved(p: Tensor, a: Tensor, b: Tensor) -> Any:
        return ops.cond(p, lambda x, y: (y, ops.flip(x), x), lambda x, y: (x, y, y), a, b)

    for seed in range(2):  # one way and the other
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
    """A loop over a counter, from wherever it begins, and the carries; tensors after the carries are captured."""

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


def cases() -> list[Case]:
    return [*_branches(), *_loops(), *_scans()]
