"""The pass hoist: values that do not change are computed once before the loop, with the same results."""

from __future__ import annotations

from typing import Any

import numpy as np

import rlx
from rlx.conformance.oracle import evaluate
from rlx.ir import bodies, verify
from rlx.passes import hoist, optimize
from tests.passes.values import names


def same(graph: rlx.Graph, made: rlx.Graph, feeds: dict[str, Any]) -> None:
    want, got = evaluate(graph, feeds), evaluate(made, feeds)
    for name, t in graph.outputs.items():
        np.testing.assert_array_equal(got[made.outputs[name].id], want[t.id])


def test_invariants_leave_a_loop_and_what_is_carried_stays() -> None:
    g = rlx.Graph()
    x, w = g.input("x", (4,)), g.param("w", (4, 4))
    step = lambda c: (c[0] + 1, rlx.tanh((w @ w).T @ c[1]) * rlx.exp(x))  # noqa: E731
    g.output("y", rlx.while_loop(lambda c: c[0] < 5, step, (0, x))[1])
    made = hoist(g)
    verify(made)
    (loop,) = (n for n in made.nodes if bodies(n))
    assert {"matmul", "transpose", "exp"} <= set(names(made))
    assert names(loop.attrs["body"]).count("matmul") == 1 and "exp" not in names(loop.attrs["body"])
    assert len(loop.inputs) == 1 + 2 + 2  # predicate, carries, and two results in place of w and x
    rng = np.random.default_rng(0)
    same(g, made, {"x": rng.standard_normal(4), "w": rng.standard_normal((4, 4))})


def test_they_leave_loops_in_loops_and_branches_keep_theirs() -> None:
    g = rlx.Graph()
    xs, w = g.input("xs", (3, 4)), g.param("w", (4,))
    inner = lambda c, _: (c + rlx.exp(w) * 2, None)  # noqa: E731

    def outer(c: rlx.Tensor, x: rlx.Tensor) -> Any:
        c = rlx.cond(rlx.sum(x) > 0, lambda: c + rlx.log(w), lambda: c)
        return rlx.scan(inner, c, None, length=2)[0], rlx.sin(w)

    last, ys = rlx.scan(outer, xs[0], xs)
    g.output("last", last)
    g.output("ys", ys)
    made = hoist(g)
    verify(made)
    assert {"exp", "sin"} <= set(names(made)) and "log" not in names(made)
    same(g, made, {"xs": np.arange(12.0).reshape(3, 4) - 5, "w": np.arange(1.0, 5.0)})


def test_what_would_take_much_memory_stays() -> None:
    g = rlx.Graph()
    x = g.input("x", (1000,))
    wide = lambda c: c + rlx.sum(rlx.concat([x.reshape(1, -1)] * 500), 0)  # noqa: E731
    g.output("y", rlx.while_loop(lambda c: rlx.all(c < 5), wide, x))
    assert "concat" not in names(hoist(g))


def test_nothing_is_left_that_only_the_captures_of_dropped_values_need() -> None:
    g = rlx.Graph()
    x, w = g.input("x", (4,)), g.param("w", (4,))
    g.output("y", rlx.while_loop(lambda c: rlx.all(c < 5), lambda c: (c + 1, w * 2)[0], x))
    made, _ = optimize(g)
    (loop,) = (n for n in made.nodes if bodies(n))
    assert len(loop.inputs) == 2
