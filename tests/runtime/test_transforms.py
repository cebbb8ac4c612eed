"""Transformations of functions, by closed forms: structures, nesting, control flow, custom rules, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import DTypeError, GraphError, RlxError, ShapeError, StepLimitExceeded, UnsupportedOp

X = np.array([0.3, -1.2, 2.0])
F64 = np.float64
ANGLES = np.outer(np.arange(6.0), [1.0, 0.1])


def _close(got: Any, want: Any) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14)


def test_jvp_and_vjp_take_and_give_pytrees() -> None:
    def f(d: Any, y: Any) -> Any:
        return {"o": rlx.sin(d["a"]) * y, "n": [rlx.sum(d["b"] ** 2)]}

    d, t = {"a": X, "b": X[:2]}, {"a": X * 2, "b": X[1:]}
    out, tangent = rlx.jvp(f, (d, F64(3.0)), (t, F64(0.5)))
    _close(out["o"], np.sin(X) * 3)
    _close(tangent["o"], np.cos(X) * X * 2 * 3 + np.sin(X) * 0.5)
    _close(tangent["n"][0], 2 * X[:2] @ X[1:])
    out, pull = rlx.vjp(f, d, F64(3.0))
    back = pull({"o": X, "n": [F64(2.0)]})
    assert isinstance(back, tuple) and set(back[0]) == {"a", "b"}
    _close(back[0]["a"], np.cos(X) * 3 * X)
    _close(back[0]["b"], 4 * X[:2])
    _close(back[1], np.sin(X) @ X)
    assert len(rlx.vjp(lambda x: (rlx.sin(x), x), X, has_aux=True)) == 3
    _close(rlx.jvp(lambda x: (rlx.sin(x), x * 2), (X,), (X,), has_aux=True)[2], X * 2)


def test_jacobians_and_hessians_have_the_arguments_structure_in_the_results() -> None:
    a = np.arange(6.0).reshape(2, 3) / 5

    def f(p: Any, y: Any) -> Any:
        return {"m": p["w"] @ y, "s": rlx.sum(y**3)}

    for jacobian in (rlx.jacfwd, rlx.jacrev):
        by_p, by_y = (jacobian(f, n)({"w": a}, X) for n in (0, 1))
        both = jacobian(f, (0, 1))({"w": a}, X)
        _close(by_y["m"], a)
        _close(by_y["s"], 3 * X**2)
        _close(by_p["m"]["w"], np.einsum("ik,j->ikj", np.eye(2), X))
        _close(by_p["s"]["w"], 0 * a)
        _close(both["m"][0]["w"], by_p["m"]["w"])
        _close(both["m"][1], a)
    h = rlx.hessian(lambda d: rlx.sum(d["u"] * d["v"] ** 2))({"u": X, "v": X})
    _close(h["u"]["v"], np.diag(2 * X))
    _close(h["v"]["v"], np.diag(2 * X))
    _close(rlx.hvp(lambda x: rlx.sum(x**3), (X,), (X + 1,)), 6 * X * (X + 1))
    _close(rlx.hessian(rlx.vmap(rlx.sin))(X)[1, 1, 1], -np.sin(X[1]))


def test_a_pullback_is_mapped_and_scanned_like_any_function() -> None:
    f = lambda x: rlx.layer_norm(x, np.ones(3), np.ones(3))  # noqa: E731 - its gradient goes by the parts of an op
    columns = np.stack([rlx.jvp(f, (X,), (t,))[1] for t in np.eye(3)], 1)

    def rows(x: Any, each: Any) -> Any:
        pull = rlx.vjp(f, x)[1]
        return each(lambda d: pull(d)[0], np.eye(3))

    _close(rlx.jit(lambda x: rows(x, lambda g, d: rlx.vmap(g)(d)))(X), columns)
    _close(rlx.jit(lambda x: rows(x, lambda g, d: rlx.map(g, rlx.stack([x * 0 + e for e in d]))))(X), columns)
    _close(rlx.jacrev(f)(X), columns)


def test_what_a_function_closes_over_is_constant_to_its_derivative() -> None:
    _close(rlx.jit(lambda x: rlx.grad(lambda y: rlx.sum(y * x))(x))(X), X)
    _close(rlx.jit(lambda x: rlx.grad(lambda a, b: rlx.sum(a * b * b), (0, 1))(x, x))(X)[0], X**2)
    _close(rlx.jit(lambda x: rlx.jvp(lambda y: y * x, (x,), (x,))[1])(X), X * X)
    _close(
        rlx.grad(lambda x: x * rlx.grad(lambda y: x + y)(F64(1.0)))(F64(5.0)), 1.0
    )  # perturbations stay apart
    assert rlx.jit(lambda x: rlx.grad(lambda y: y * x)(x))(3.0) == 3.0
    g = rlx.Graph()
    x = g.input("x", (3,), "f64")
    g.output("d", rlx.grad(lambda y: rlx.sum(y * x))(x))
    _close(rlx.Session("cpu").compile(g).run({"x": X})["d"], X)


def test_derivatives_go_through_loops_and_branches() -> None:
    def newton(a: Any) -> Any:
        return rlx.while_loop(
            lambda x: rlx.abs(x * x - a) > 1e-13, lambda x: (x + a / x) / 2, a, max_steps=40
        )

    _close(rlx.grad(newton)(F64(2.0)), 0.5 / np.sqrt(2))
    _close(rlx.jvp(newton, (F64(2.0),), (F64(1.0),))[1], 0.5 / np.sqrt(2))
    _close(rlx.hessian(newton)(F64(2.0)), -0.25 * 2**-1.5)
    endless = lambda x: rlx.while_loop(lambda c: c < 10, lambda c: c * 2, x)  # noqa: E731
    _close(rlx.jvp(endless, (F64(1.0),), (F64(1.0),))[1], 16.0)
    with pytest.raises(UnsupportedOp, match="max_steps=n"):
        rlx.grad(endless)(1.0)
    with pytest.raises(StepLimitExceeded):
        rlx.grad(lambda x: rlx.while_loop(lambda c: c < 10, lambda c: c * 2, x, max_steps=3))(1.0)
    _close(
        rlx.jacfwd(lambda x: rlx.scan(lambda c, r: (c * r, c), x[0], x)[1])(X)[2],
        [2 * X[0] * X[1], X[0] ** 2, 0],
    )
    _close(rlx.jacfwd(lambda x: rlx.cond(x[0] > 0, lambda v: v * v, lambda v: v, x))(X), np.diag(2 * X))
    summed = lambda x: rlx.fori_loop(1, 4, lambda i, c: c * x + rlx.cast(i, "f64"), x)  # noqa: E731
    _close(rlx.grad(summed)(F64(2.0)), 4 * 2**3 + 2 * 2 + 2)  # of x⁴ + x² + 2x + 3


@pytest.mark.parametrize("low", [np.int64(1 << 40), np.uint32((1 << 32) - 9), np.int64(-5), np.int16(3)])
def test_a_loop_counts_between_all_bounds_that_its_dtypes_hold(low: Any) -> None:
    counted = lambda a, b: rlx.fori_loop(a, b, lambda i, c: c + rlx.cast(i, "f64"), F64(0))  # noqa: E731
    want = float(sum(range(int(low), int(low) + 3)))
    assert counted(int(low), int(low) + 3) == want
    assert rlx.jit(counted, device="cpu")(low, low + type(low)(3)) == want
    with pytest.raises(DTypeError, match="expected an int of 64 bits"):
        counted(0, 1 << 70)


def test_vmap_axes_trees_and_nesting() -> None:
    a = np.arange(24.0).reshape(2, 3, 4)
    _close(rlx.vmap(rlx.sum, in_axes=1)(a), a.sum((0, 2)))
    _close(rlx.vmap(lambda x: x * 2, in_axes=-1, out_axes=-1)(a), a * 2)
    _close(rlx.vmap(lambda x: (x, rlx.sum(x)), out_axes=(2, 0))(a)[0], np.moveaxis(a, 0, 2))
    got = rlx.vmap(lambda d, y: d["a"] + d["b"] + y, in_axes=({"a": 0, "b": None}, None))(
        {"a": X, "b": 1.0}, 2.0
    )
    _close(got, X + 3)
    _close(rlx.vmap(lambda x, y: x + y, in_axes=0)(X, y=X), 2 * X)
    _close(rlx.vmap(lambda x: 3.0)(X), [3.0] * 3)
    outer = rlx.vmap(rlx.vmap(lambda p, q: p * q, in_axes=(None, 0)), in_axes=(0, None))
    _close(outer(X, X[:2]), np.outer(X, X[:2]))
    _close(rlx.jit(lambda x: rlx.vmap(lambda i: x[i] * 2)(np.arange(2)))(X), X[:2] * 2)
    _close(
        rlx.grad(lambda w: rlx.sum(rlx.vmap(lambda x: rlx.sin(w * x))(X)))(F64(0.5)),
        np.sum(np.cos(X / 2) * X),
    )
    _close(rlx.vmap(rlx.grad(lambda x: x**3))(X), 3 * X**2)


@pytest.mark.parametrize("over", [(0, None), (None, 0), (0, 0)])
def test_vmap_of_rope_keeps_the_positions_of_each_batch(over: tuple[int | None, int | None]) -> None:
    """As many examples as the batch has rows: positions of a batch and place are not those of an example."""
    rng = np.random.default_rng(0)
    cos, sin = (np.asarray(t, np.float64) for t in (np.cos(ANGLES), np.sin(ANGLES)))
    x = rng.standard_normal((3, 3, 2, 4))[slice(None) if over[0] == 0 else 0]
    positions = rng.integers(0, 6, (3, 3, 2)).astype(np.int32)[slice(None) if over[1] == 0 else 0]
    result = rlx.vmap(lambda x, at: rlx.rope(x, cos, sin, axis=1, positions=at), in_axes=over)(x, positions)
    x, positions = np.broadcast_to(x, (3, 3, 2, 4)), np.broadcast_to(positions, (3, 3, 2))
    turned = (x[..., :2] + 1j * x[..., 2:]) * np.exp(1j * ANGLES[positions])
    np.testing.assert_allclose(result, np.concatenate([turned.real, turned.imag], -1), rtol=0, atol=1e-15)


def test_vmap_goes_over_control_flow_and_random_keys() -> None:
    starts = np.array([1.0, 3.0, 20.0])
    _close(
        rlx.vmap(lambda x: rlx.while_loop(lambda c: c < 10, lambda c: c * 2, x))(starts), [16.0, 12.0, 20.0]
    )
    _close(rlx.vmap(lambda x: rlx.cond(x > 0, rlx.sin, lambda v: -v, x))(X), np.where(X > 0, np.sin(X), -X))
    _close(
        rlx.vmap(lambda x, k: rlx.cond(k, rlx.sin, lambda v: -v, x), (0, None))(X, np.bool_(True)), np.sin(X)
    )
    rows = np.arange(6.0).reshape(2, 3)
    _close(
        rlx.vmap(lambda r: rlx.scan(lambda c, x: (c + x, c * x), F64(0) + r[0] * 0, r)[0])(rows), rows.sum(1)
    )
    _close(rlx.vmap(lambda r: rlx.map(lambda x: x + r[0], r))(rows), rows + rows[:, :1])
    keys = np.stack([rlx.random.key(n) for n in range(3)])
    drawn = rlx.vmap(lambda key: rlx.random.uniform(key, (5,)))(keys)
    alone = [rlx.jit(lambda key: rlx.random.uniform(key, (5,)))(key) for key in keys]
    assert np.array_equal(drawn, np.stack(alone))


def test_custom_rules_replace_derivatives_wherever_they_are_called() -> None:
    f = rlx.custom_vjp(lambda x, d: x * d["w"])
    f.defvjp(lambda x, d: (x * d["w"], x), lambda x, c: (c * 10, {"w": c * x}))
    d = {"w": F64(2.0)}
    assert f(3.0, d) == 6.0
    assert rlx.grad(f)(F64(3.0), d) == 10.0 and rlx.grad(f, 1)(F64(3.0), d)["w"] == 3.0
    _close(rlx.vmap(rlx.grad(f), (0, None))(X, d), [10.0] * 3)
    _close(rlx.grad(lambda d: rlx.sum(rlx.vmap(f, (0, None))(X, d)))(d)["w"], X.sum())
    _close(rlx.jvp(lambda x: f(x, d), (F64(3.0),), (F64(1.0),))[1], 10.0)
    _close(rlx.grad(lambda x: rlx.scan(lambda c, _: (f(c, d), None), x, length=2)[0])(F64(1.0)), 100.0)
    g = rlx.custom_jvp(lambda x, n: x**n, nondiff_argnums=(1,))
    g.defjvp(lambda n, primals, tangents: (primals[0] ** n, tangents[0] * 5 * primals[0]))
    assert g(F64(2.0), 3) == 8.0
    _close(rlx.grad(lambda x: g(x, 3))(F64(2.0)), 10.0)
    _close(rlx.jvp(lambda x: g(x, 3), (F64(2.0),), (F64(1.0),))[1], 10.0)
    _close(rlx.vmap(rlx.grad(lambda x: g(x, 3)))(X), 5 * X)
    _close(rlx.hessian(lambda x: g(x, 3))(F64(2.0)), 5.0)
    h = rlx.custom_jvp(lambda x, y, z: {"a": x * y, "b": z * 1.0})
    h.defjvps(lambda t, out, x, y, z: {"a": 2 * t * y, "b": t * out["a"]}, None, lambda t, *_: {"a": t, "b": t})
    out, moved = rlx.jvp(h, (F64(2.0), F64(3.0), F64(4.0)), (F64(1.0), F64(10.0), F64(100.0)))
    assert out == {"a": 6.0, "b": 4.0} and moved == {"a": 106.0, "b": 106.0}
    _close(rlx.grad(lambda x: rlx.grad(lambda x: h(x, 3 * x, x)["a"])(x))(F64(2.0)), 6.0)


def test_checkpoint_saves_memory_and_changes_no_value() -> None:
    weights = [np.full((32, 32), 0.1, np.float32) + 0.01 * n for n in range(6)]
    x = np.ones((256, 32), np.float32)

    def layer(w: Any, x: Any) -> Any:
        return x + rlx.tanh(rlx.gelu(x @ w) @ w.T)

    def loss(weights: Any, x: Any, layer: Callable[..., Any] = layer) -> Any:
        for w in weights:
            x = layer(w, x)
        return rlx.mean(x * x)

    spared = lambda weights, x: loss(weights, x, rlx.checkpoint(layer))  # noqa: E731
    plans = [
        rlx.Session("cpu").compile(rlx.value_and_grad(f).graph(weights, x)).plan.arena_bytes
        for f in (loss, spared)
    ]
    assert plans[1] < 0.6 * plans[0], plans
    for a, b in zip(rlx.grad(loss)(weights, x), rlx.grad(spared)(weights, x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    scale = rlx.jit(lambda y: rlx.grad(lambda y: rlx.checkpoint(lambda x: x * y * y)(F64(2.0)))(y))
    _close(scale(F64(3.0)), 12.0)  # what it closes over has its gradient


def test_associative_scan_eval_shape_and_trees() -> None:
    for n in (1, 2, 5, 8):
        x = np.arange(1.0, n + 1)
        _close(rlx.jit(lambda x: rlx.associative_scan(lambda a, b: a * b, x))(x), np.cumprod(x))
        _close(rlx.jit(lambda x: rlx.associative_scan(rlx.add, x, reverse=True))(x), np.cumsum(x[::-1])[::-1])
    pairs = rlx.jit(
        lambda a, b: rlx.associative_scan(lambda l, r: (l[0] * r[0], l[1] * r[0] + r[1]), (a, b), axis=1)
    )
    a, b = np.full((2, 7), 0.5), np.arange(14.0).reshape(2, 7)
    want = np.zeros((2, 7))
    for i in range(7):
        want[:, i] = (want[:, i - 1] * 0.5 if i else 0) + b[:, i]
    _close(pairs(a, b)[1], want)
    made = rlx.eval_shape(lambda x, n: {"a": x @ x.T * n}, np.ones((2, 3)), 2)
    assert made["a"].shape == (2, 2) and str(made["a"].dtype) == "f64"
    assert rlx.tree.map(lambda x, y: (x, y), [1, 2], [[1, 2], {"a": 3}]) == [(1, [1, 2]), (2, {"a": 3})]
    assert rlx.tree.map(lambda x: x + 1, {"a": None, "b": 1}) == {"a": None, "b": 2}
    leaves, structure = rlx.tree.flatten({"b": 1, "a": (2, None)})
    assert leaves == [2, 1] and rlx.tree.unflatten(structure, [3, 4]) == {"b": 4, "a": (3, None)}
    assert rlx.tree.reduce(lambda a, b: a + b, [1, (2, 3)]) == 6
    assert rlx.tree.transpose(
        rlx.tree.structure([0, 0]), rlx.tree.structure({"a": 0}), [{"a": 1}, {"a": 2}]
    ) == {"a": [1, 2]}


def _with_rule(f: Any, bwd: Any = lambda r, c: (c,)) -> Any:
    made = rlx.custom_vjp(f)
    made.defvjp(lambda x: (x, None), bwd)
    return made


_DOUBLE = lambda n: n * 2  # noqa: E731
_CAPTURES = rlx.jit(lambda y: _with_rule(lambda x: x * y)(y))
_FLOAT_BOUND = rlx.jit(lambda x: rlx.fori_loop(0.0, x, lambda i, v: v, x))
_CAPTURES_IN_A_LOOP = rlx.jit(lambda y: rlx.map(lambda r: _with_rule(lambda x: x * y)(r), X))
_NO_TUPLE = rlx.grad(_with_rule(lambda x: x, lambda r, c: c))
_OTHER_TREE = rlx.vmap(lambda d: d["a"], in_axes=({"b": 0},))
WRONG: dict[str, tuple[Callable[[], Any], type[RlxError], str]] = {
    "tangents of another structure": (lambda: rlx.jvp(rlx.sin, ({"a": X},), ({"b": X},)), GraphError, "one structure"),
    "tangents of another shape": (lambda: rlx.jvp(rlx.sin, (X,), (X[:2],)), ShapeError, "same shape"),
    "tangents of another dtype": (lambda: rlx.jvp(rlx.sin, (X,), (X.astype("f4"),)), DTypeError, "cast it"),
    "primals that are no tuple": (lambda: rlx.jvp(rlx.sin, X, X), GraphError, r"jvp\(f, \(x,\), \(t,\)\)"),
    "an integer primal": (lambda: rlx.jvp(_DOUBLE, (np.arange(3),), (X,)), DTypeError, "is integer .*close over"),
    "an integer argument of jacrev": (lambda: rlx.jacrev(lambda n: n * 2.0)(np.arange(3)), DTypeError, "is integer"),
    "an integer result of jacfwd": (lambda: rlx.jacfwd(lambda x: rlx.argmax(x))(X), DTypeError, "no derivative"),
    "no such argument": (lambda: rlx.jacfwd(rlx.sin, 2)(X), GraphError, "there is no argument 2"),
    "a cotangent of another structure": (lambda: rlx.vjp(rlx.sin, X)[1]((X,)), GraphError, "one structure"),
    "a cotangent of another shape": (lambda: rlx.vjp(rlx.sin, X)[1](X[:1]), ShapeError, "same shape"),
    "an axis that is not there": (lambda: rlx.vmap(rlx.sin, in_axes=2)(X), ShapeError, "no axis 2"),
    "different numbers of examples": (lambda: rlx.vmap(rlx.add)(X, X[:2]), ShapeError, "3: .*2: "),
    "nothing is mapped": (lambda: rlx.vmap(rlx.sin, in_axes=None)(X), GraphError, "axis_size"),
    "too few in_axes": (lambda: rlx.vmap(rlx.add, in_axes=(0,))(X, X), GraphError, "1 entries"),
    "in_axes of another tree": (lambda: _OTHER_TREE({"a": X}), GraphError, "container"),
    "in_axes that are no axes": (lambda: rlx.vmap(rlx.sin, in_axes="x"), GraphError, "ints and None"),
    "out_axes None": (lambda: rlx.vmap(rlx.sin, out_axes=None)(X), GraphError, "differs among examples"),
    "out_axes too large": (lambda: rlx.vmap(rlx.sin, out_axes=1)(X), ShapeError, "1 axes"),
    "no rule": (lambda: rlx.grad(rlx.custom_vjp(lambda x: x))(1.0), GraphError, r"defvjp\(fwd, bwd\)"),
    "a captured float": (lambda: _CAPTURES(1.0), GraphError, "pass it as an argument"),
    "a captured float in a loop": (lambda: _CAPTURES_IN_A_LOOP(F64(2)), GraphError, "pass it as an argument"),
    "gradients that are no tuple": (lambda: _NO_TUPLE(1.0), GraphError, "a tuple with"),
    "bounds that are floats": (lambda: _FLOAT_BOUND(X), DTypeError, "an int"),
    "not a function": (lambda: rlx.jvp(X, (X,), (X,)), GraphError, "expected a function"),
    "trees that differ": (lambda: rlx.tree.map(lambda a, b: a, [1, 2], [1, 2, 3]), GraphError, "one structure"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_refusals_say_what_to_write(name: str) -> None:
    call, error, text = WRONG[name]
    with pytest.raises(error, match=text):
        call()


def test_a_rule_may_use_constants_of_any_size_in_a_loop() -> None:
    table = np.arange(1000.0)
    f = _with_rule(lambda x: x * rlx.sum(rlx.stop_gradient(x) * 0 + table), lambda r, c: (c * 7,))
    _close(rlx.vmap(rlx.grad(f))(X), [7.0] * 3)
    _close(rlx.jit(lambda xs: rlx.map(f, xs))(X), X * table.sum())


def test_rules_go_with_lengths_that_vary() -> None:
    f = _with_rule(lambda x: x * 2, lambda r, c: (c * 7,))
    dims = {"x": rlx.Dim("n", max=8)}
    _close(rlx.grad(lambda x: rlx.sum(f(x)), dims=dims)(X), [7.0] * 3)
    _close(rlx.grad(lambda x: rlx.sum(rlx.checkpoint(rlx.sin)(x)), dims=dims)(X), np.cos(X))
    _close(rlx.jit(lambda x: rlx.vmap(f)(x), dims=dims)(X), 2 * X)


def test_linearize_is_the_result_and_its_derivative() -> None:
    y, push = rlx.linearize(lambda a, b: rlx.sin(a) * b, X, X + 1)
    _close(y, np.sin(X) * (X + 1))
    for t in (np.ones_like(X), X):
        _close(push(t, np.zeros_like(X)), np.cos(X) * (X + 1) * t)
    inside = rlx.jit(lambda x, t: rlx.linearize(rlx.sin, x)[1](t), device="cpu")
    _close(inside(X, X), np.cos(X) * X)
    value, push, more = rlx.linearize(lambda x: (x * x, rlx.sum(x)), X, has_aux=True)
    _close(value, X * X)
    _close(more, X.sum())
    _close(push(X), 2 * X * X)


def test_switch_takes_the_branch_of_its_number() -> None:
    branches = [lambda x: x + 1.0, lambda x: x * 2.0, lambda x: -x]
    chosen = rlx.jit(lambda i, x: rlx.switch(i, branches, x), device="cpu")
    for i, want in ((-4, X + 1), (0, X + 1), (1, X * 2), (2, -X), (9, -X)):
        _close(chosen(np.int32(i), X), want)
        _close(rlx.switch(i, branches, X), want)
    each = rlx.vmap(lambda i, x: rlx.switch(i, branches, x), in_axes=(0, None), device="cpu")(np.arange(3), X)
    _close(each, np.stack([X + 1, X * 2, -X]))
    slope = rlx.grad(lambda x, i: rlx.sum(rlx.switch(i, branches, x)), device="cpu")(X, np.array(1))
    _close(slope, np.full_like(X, 2.0))
    for index, kind, text in ((1.5, DTypeError, "an integer of rank 0"), (np.arange(2), DTypeError, "rank 0")):
        with pytest.raises(kind, match=text):
            rlx.switch(index, branches, X)
    with pytest.raises(GraphError, match="no branches"):
        rlx.switch(0, [], X)


def test_loops_of_examples_that_end_at_different_steps_by_a_reduction() -> None:
    """The predicate of each example is a reduction over no axes."""

    def count(limit: Any) -> Any:
        def step(state: Any) -> Any:
            n, done = state
            return n + 1, rlx.logical_or(done, n >= limit)

        return rlx.while_loop(lambda s: rlx.logical_not(rlx.all(s[1])), step, (np.int32(0), np.False_), max_steps=9)

    n, done = rlx.vmap(count)(np.array([1, 4, 2], np.int32))
    assert n.tolist() == [2, 5, 3] and done.all()


def test_there_is_no_tangent_where_the_rule_of_a_custom_vjp_cannot_be_transposed() -> None:
    """The function's own ops would give one, and another than the rule's."""

    @rlx.custom_vjp
    def f(x: Any) -> Any:
        return rlx.sin(x)

    f.defvjp(lambda x: (f(x), x), lambda x, d: (rlx.while_loop(lambda v: v > 1.0, lambda v: v * 0.5, d),))
    assert rlx.grad(f)(np.float64(0.3)) == 1.0
    with pytest.raises(UnsupportedOp):
        rlx.jvp(f, (np.float64(0.3),), (np.float64(1.0),))


@pytest.mark.parametrize("call", [
    lambda f: rlx.jvp(f, (True,), (True,)), lambda f: rlx.vjp(f, True), lambda f: rlx.jacfwd(f)(True),
    lambda f: rlx.jacrev(f)(np.True_), lambda f: rlx.jvp(f, (3,), (1,)),
])  # fmt: skip
def test_bools_and_ints_of_python_have_no_derivative(call: Callable[[Any], Any]) -> None:
    with pytest.raises(DTypeError, match=r"argument 0 of <lambda> is (bool|integer)"):
        call(lambda x: x * 2.0)


@pytest.mark.parametrize("place", [1, -1])
def test_gradients_of_one_element_that_is_replaced(place: int) -> None:
    """An index that is a number, into a vector: as wide an update as there is none."""
    weight = np.array([1.0, 2.0, 3.0])

    def f(x: Any, v: Any) -> Any:
        return rlx.sum(x.at[place].set(v) * weight)

    kept = np.where(np.arange(3) == place % 3, 0, weight)
    for slopes in (rlx.grad(f, (0, 1))(X, F64(2.0)), rlx.jacfwd(f, (0, 1))(X, F64(2.0))):
        _close(slopes[0], kept)
        _close(slopes[1], weight[place])
    _close(rlx.jacrev(lambda x: x.at[place].set(x[0] * x[1]))(X), rlx.jacfwd(lambda x: x.at[place].set(x[0] * x[1]))(X))


def test_python_numbers_are_derivatives_of_any_dtype() -> None:
    _, pull = rlx.vjp(lambda x: {"a": x * x, "b": rlx.sum(x)}, X)
    _close(pull({"a": X, "b": 1.0})[0], 2 * X * X + 1)
    _close(pull({"a": X, "b": 2})[0], 2 * X * X + 2)
    _close(rlx.jit(lambda x: rlx.vjp(lambda x: rlx.sum(x * x), x)[1](0.1)[0])(X), 0.2 * X)
    _close(rlx.jvp(lambda x, y: x * y, (X, F64(3.0)), (X, 1.0))[1], X * 3 + X)
    with pytest.raises(ShapeError, match="cotangent"):
        pull({"a": 1.0, "b": 1.0})


@pytest.mark.parametrize("make", [rlx.grad, rlx.value_and_grad, rlx.jacfwd, rlx.jacrev, rlx.hessian])
def test_arguments_are_named_once(make: Any) -> None:
    def f(x: Any, y: Any) -> Any:
        return rlx.sum(x * y)

    for argnums in ((0, 0), (1, -1)):
        with pytest.raises(GraphError, match="names an argument twice"):
            make(f, argnums)(X, X)
    with pytest.raises(GraphError, match="expected an int or a tuple"):
        make(f, "x")(X, X)
    first = make(f, np.int64(0))(X, X)
    _close((first[1] if make is rlx.value_and_grad else first), X if make is not rlx.hessian else np.zeros((3, 3)))


def test_axes_of_arguments_come_in_a_tuple() -> None:
    with pytest.raises(GraphError, match=r"in_axes is \{'a': 0\}; expected an int, None, or a tuple.*in_axes=\(\{"):
        rlx.vmap(lambda p: p["a"] + 1, in_axes={"a": 0})({"a": X})
    _close(rlx.vmap(lambda p: p["a"] + 1, in_axes=({"a": 0},))({"a": X}), X + 1)
