"""cond, while_loop and scan while a graph is built: tracing, captures, and the errors of bad use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.autodiff import gradients
from rlx.errors import DTypeError, GraphError, ShapeError, UnsupportedOp
from rlx.ir import bodies, verify
from rlx.ir.body import MAX_DEPTH
from rlx.passes import optimize


def graph() -> tuple[rlx.Graph, rlx.Tensor, rlx.Tensor]:
    g = rlx.Graph("outer")
    return g, g.input("x", (3,)), g.param("w", (3,))


def test_closures_become_captures_and_work_stays_in_its_branch() -> None:
    g, x, w = graph()
    y = rlx.cond(rlx.sum(x) > 0, lambda: rlx.exp(w) * w, lambda: w)
    assert not any(n.op.name == "exp" for n in g.nodes)
    node = y.node
    assert [t.id for t in node.inputs[1:]] == [w.id]
    assert [list(b.params) for b in bodies(node).values()] == [["k0"], ["k0"]]
    verify(g)


def test_small_constants_are_built_in_and_large_ones_captured() -> None:
    g, x, _ = graph()
    small, large = g.constant(np.ones(3, np.float32)), g.constant(np.ones((2000, 3), np.float32))
    y = rlx.while_loop(lambda c: rlx.all(c < 5), lambda c: c + small + rlx.sum(large, 0), x)
    assert y.node.inputs[-1] is large and len(y.node.inputs) == 3


def test_large_constants_made_inside_lie_outside() -> None:
    g, x, _ = graph()
    table = np.ones((2000, 3), np.float32)

    def inner(c: rlx.Tensor) -> Any:
        return rlx.cond(c[0] > 0, lambda: c + table[0], lambda: c + rlx.sum(c.graph.constant(table), 0))

    y = rlx.while_loop(lambda c: rlx.all(c < 5), inner, x)
    (large,) = (n for n in g.nodes if n.op.name == "constant" and n.output.size > 3)
    assert y.node.inputs[-1] is large.output
    verify(g)


def test_python_bools_choose_at_once() -> None:
    g, x, _ = graph()
    assert rlx.cond(True, lambda t: t, lambda t: t * 2, x) is x
    assert rlx.cond(np.bool_(False), lambda t: t * 2, lambda t: t, x) is x
    assert len(g.nodes) == 2


def test_a_known_predicate_leaves_no_branch() -> None:
    g, x, w = graph()
    flag = g.constant(np.float32(1)) > 0
    g.output("y", rlx.cond(flag, lambda t: t + w, lambda t: t - w, x))
    made, _ = optimize(g)
    assert [n.op.name for n in made.nodes if not n.op.leaf] == ["add"]


def test_equal_loops_share_nothing_by_accident() -> None:
    """Bodies are compared by identity: two loops over one input stay two nodes, one loop used twice stays one."""
    g, x, _ = graph()

    def once(k: float) -> rlx.Tensor:
        return rlx.while_loop(lambda c: rlx.all(c < 5), lambda c: c + k, x)  # type: ignore[no-any-return]

    a, b = once(1.0), once(2.0)
    g.output("y", a + b)
    assert sum(n.op.name == "while_loop" for n in optimize(g)[0].nodes) == 2


def test_nested_containers_come_back_in_their_shape() -> None:
    _, x, w = graph()
    c, ys = rlx.scan(lambda c, t: ({"a": c["b"], "b": c["a"] + t["u"]}, [c["a"], {"t": t["v"]}]),
                     {"a": x[0], "b": x[1]}, {"u": x, "v": w})  # fmt: skip
    assert set(c) == {"a", "b"} and ys[0].shape == (3,) and ys[1]["t"].shape == (3,)
    assert rlx.scan(lambda c, t: (c, None), x[0], x)[1] is None


def test_the_text_shows_bodies_indented() -> None:
    g, x, w = graph()
    g.output("y", rlx.while_loop(lambda c: rlx.all(c < 5), lambda c: c * w, x))
    text = str(g)
    assert "while_loop(%" in text and "{body=body}" in text
    assert "\n    graph body:\n      %0: f32[3] = input()" in text


def test_declarations_inside_are_refused() -> None:
    g, x, _ = graph()
    for declare in (lambda: g.input("z", (3,)), lambda: g.param("z", (3,)), lambda: g.state("z", (3,))):
        with pytest.raises(GraphError, match="declared inside a function"):
            rlx.cond(rlx.sum(x) > 0, lambda declare=declare: declare() + x, lambda: x)
    g.input("z", (3,))  # and the graph is as it was


USES: dict[str, Callable[[rlx.Tensor, rlx.Tensor], Any]] = {
    "behind": lambda x, t: x + t,
    "in front": lambda x, t: t + x,
    "add behind": rlx.add,
    "add in front": lambda x, t: rlx.add(t, x),
    "with itself": lambda x, t: rlx.mul(t, t),
    "with a number": lambda x, t: rlx.maximum(t, 2),
    "one operand": lambda x, t: rlx.exp(t),
    "a method": lambda x, t: t.reshape(3, 1),
    "a list": lambda x, t: rlx.concat([t, x], 0),
    "an index": lambda x, t: t[1:],
    "several results": lambda x, t: rlx.top_k(t, 2),
    "a composite": lambda x, t: rlx.softmax(t, 0),
    "a constant": lambda x, t: rlx.zeros_like(t),
    "a predicate": lambda x, t: rlx.cond(t[0] > 0, lambda: x, lambda: x),
    "an operand of a cond": lambda x, t: rlx.cond(rlx.sum(x) > 0, lambda a: a, lambda a: a, t),
    "a carry": lambda x, t: rlx.scan(lambda c, _: (c, None), t, length=2),
    "a capture": lambda x, t: rlx.scan(lambda c, _: (c + t, None), x, length=2),
    "another body's operand": lambda x, t: rlx.scan(lambda c, _: (rlx.add(t, c), None), x, length=2),
    "a gradient": lambda x, t: gradients(t, [t], seed=1.0),
    "an output": lambda x, t: x.graph.output("t", t),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("op", ["while_loop", "cond", "scan"])
def test_a_value_of_a_body_does_not_leave_it(op: str, use: str) -> None:
    g, x, _ = graph()
    kept: list[rlx.Tensor] = []

    def step(c: rlx.Tensor) -> rlx.Tensor:
        kept.append(c * 2)
        return c + 1

    if op == "while_loop":
        rlx.while_loop(lambda c: rlx.all(c < 5), step, x)
    elif op == "cond":
        rlx.cond(rlx.sum(x) > 0, step, lambda c: c, x)
    else:
        rlx.scan(lambda c, _: (step(c), None), x, length=3)
    held = len(kept[0].graph.nodes)
    with pytest.raises(GraphError, match="return it there, and use what the op gives"):
        USES[use](x, kept[0])
    assert held == len(kept[0].graph.nodes)
    verify(g)


def test_a_function_that_failed_leaves_nothing_to_use() -> None:
    _, x, _ = graph()
    kept: list[rlx.Tensor] = []

    def fails(c: rlx.Tensor) -> rlx.Tensor:
        kept.append(c * 2)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        rlx.cond(rlx.sum(x) > 0, fails, lambda c: c, x)
    with pytest.raises(GraphError, match="whose function has returned"):
        rlx.exp(kept[0])
    assert rlx.exp(x).graph is x.graph


def _nested(depth: int, x: rlx.Tensor) -> rlx.Tensor:
    deeper = (lambda t: _nested(depth - 1, t)) if depth else (lambda t: t + 1)
    return rlx.cond(rlx.sum(x) > 0, deeper, lambda t: t, x)  # type: ignore[no-any-return]


def test_nesting_has_a_limit() -> None:
    _, x, _ = graph()
    _nested(MAX_DEPTH - 1, x)
    with pytest.raises(GraphError, match=f"more than {MAX_DEPTH} deep"):
        _nested(MAX_DEPTH, x)


LESS = lambda c: rlx.all(c < 5)  # noqa: E731
REFUSED: dict[str, tuple[Callable[[rlx.Tensor], Any], type[Exception], str]] = {
    "predicate dtype": (lambda x: rlx.cond(rlx.sum(x), lambda: x, lambda: x), DTypeError, r"f32\[\].*bool\[\]"),
    "predicate shape": (lambda x: rlx.cond(x > 0, lambda: x, lambda: x), ShapeError, r"bool\[3\].*bool\[\]"),
    "predicate type": (lambda x: rlx.while_loop(lambda c: 1, lambda c: c, x), DTypeError, "int"),
    "branch shapes": (lambda x: rlx.cond(rlx.sum(x) > 0, lambda: x, lambda: x[:2]), ShapeError, r"f32\[3\].*f32\[2\]"),
    "branch dtypes": (lambda x: rlx.cond(rlx.sum(x) > 0, lambda: x, lambda: rlx.cast(x, "i32")), DTypeError,
                      r"f32\[3\] and i32\[3\]"),
    "branch structure": (lambda x: rlx.cond(rlx.sum(x) > 0, lambda: x, lambda: (x, x)), GraphError,
                         r"\* and \(\*, \*\)"),
    "carry shape": (lambda x: rlx.while_loop(LESS, lambda c: rlx.concat([c, c]), x), ShapeError,
                    r"carry 0.*f32\[3\].*f32\[6\]"),
    "carry dtype": (lambda x: rlx.while_loop(LESS, lambda c: rlx.cast(c, "f16"), x), DTypeError, r"f32\[3\].*f16\[3\]"),
    "carry structure": (lambda x: rlx.while_loop(LESS, lambda c: (c, c), x), GraphError,
                        r"\* and comes back as \(\*, \*\)"),
    "no carry": (lambda x: rlx.while_loop(lambda c: x[0] > 0, lambda c: c, ()), GraphError, "no tensor"),
    "max_steps": (lambda x: rlx.while_loop(LESS, lambda c: c, x, max_steps=-1), ShapeError, "max_steps"),
    "half a step": (lambda x: rlx.while_loop(LESS, lambda c: c, x, max_steps=2.5), ShapeError, "max_steps is 2.5"),
    "lengths": (lambda x: rlx.scan(lambda c, t: (c, t[0]), x, (x, x[:2])), ShapeError, r"f32\[3\], f32\[2\]"),
    "length given": (lambda x: rlx.scan(lambda c, t: (c, t), x, x, length=4), ShapeError, "length is 4"),
    "no length": (lambda x: rlx.scan(lambda c, t: (c, t), x), ShapeError, "length is None"),
    "scalar xs": (lambda x: rlx.scan(lambda c, t: (c, t), x, x[0]), ShapeError, r"f32\[\]"),
    "no pair": (lambda x: rlx.scan(lambda c, t: c, x, x), GraphError, "pair"),
    "nothing": (lambda x: rlx.scan(lambda c, t: (c, None), (), x), GraphError, "neither"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_with_both_types(name: str) -> None:
    build, error, text = REFUSED[name]
    g, x, _ = graph()
    with pytest.raises(error, match=text):
        build(x)
    verify(g)
    assert rlx.sum(x).graph is g  # tracing has ended


def test_a_while_loop_has_no_gradient_and_says_so() -> None:
    _, x, _ = graph()
    y = rlx.while_loop(LESS, lambda c: c * 2, x)
    with pytest.raises(UnsupportedOp, match="while_loop"):
        gradients(rlx.sum(y), [x])


def test_pythons_numbers_in_a_carry_take_the_dtype_that_comes_back() -> None:
    x = np.arange(4.0)
    assert rlx.scan(lambda c, r: (c + r, None), 0.1, x)[0].dtype == rlx.f64
    total, count = rlx.jit(lambda x, s: rlx.scan(lambda c, r: ((c[0] + r, c[1] + 1), None), (s, 0), x)[0])(x, 0.1)
    assert total == 0.1 + 6.0 and total.dtype == np.float64 and count == 4
    assert rlx.scan(lambda c, r: (c + r, None), 0, x.astype(np.float32))[0].dtype == rlx.f32
    assert rlx.jit(lambda x, n: rlx.fori_loop(0, n, lambda i, v: v + x[1], 0.1))(x, 3) == 3.1
    slope = rlx.grad(lambda x: rlx.scan(lambda c, r: (c * 2 + r, None), 0.0, x)[0])(x)
    np.testing.assert_array_equal(slope, [8, 4, 2, 1])
    for step in (lambda c, r: (c + x, None), lambda c, r: (c > 0, None)):
        with pytest.raises((DTypeError, ShapeError), match="carry 0 goes in and comes back"):
            rlx.scan(step, 0.0, x)
