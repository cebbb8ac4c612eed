"""Every vjp against finite differences in float64, and against torch where the rule is a matter of choice."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx.ops as ops
from rlx.autodiff import gradients
from rlx.conformance.oracle import evaluate
from rlx.dtypes import bf16, f16, f32, f64, i32
from rlx.errors import DTypeError, GraphError, ShapeError
from rlx.ir import NOT_DIFFERENTIABLE, REGISTRY, Graph, Tensor
from rlx.ir import expr as ex
from tests.outside import outside

Build = Callable[..., Tensor]
Shape = tuple[int, ...]


def _positive(x: np.ndarray) -> np.ndarray:
    return np.abs(x) + 0.5


def _apart(x: np.ndarray) -> np.ndarray:
    """No two closer than the step of the difference, none near 0 or a whole number."""
    return np.round(x * 7) / 7 + 1 / 14 + np.arange(x.size).reshape(x.shape) * 1e-3


def _one_zero(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[0, 1] = 0.0
    x[1, 0] = x[1, 2] = 0.0
    return x


def _fused(x: Tensor, y: Tensor) -> Tensor:
    a, b = ex.arg(0, f64), ex.arg(1, f64)
    tree = ex.call("mul", ex.call("tanh", ex.call("add", a, b)), ex.call("exp", a))
    other = ex.call("select", ex.call("lt", a, b), ex.call("mul", b, b), ex.call("neg", a))
    outs = x.graph.add("fused", (x, y), {"trees": (tree, other), "shape": (3, 4)})
    return outs[0] * 2.0 + outs[1]


def _mask(x: Tensor) -> Tensor:
    return x.graph.constant(np.arange(12).reshape(3, 4) % 3 == 0)


def _indices(x: Tensor, values: Any) -> Tensor:
    return x.graph.constant(np.array(values, np.int64))


S = (3, 4)
# op: list of (function, shapes, what to do to the inputs first)
CASES: dict[str, list[tuple[Build, list[Shape], Callable[[np.ndarray], np.ndarray] | None]]] = {
    **{name: [(getattr(ops, name), [S], None)] for name in
       ("exp", "sin", "cos", "tanh", "erf", "sigmoid", "silu", "neg", "copy")},
    **{name: [(getattr(ops, name), [S], _positive)] for name in ("log", "sqrt", "rsqrt", "reciprocal")},
    **{name: [(getattr(ops, name), [S], _apart)] for name in ("abs", "relu", "sign", "round", "floor", "ceil")},
    "gelu": [(ops.gelu, [S], None), (lambda x: ops.gelu(x, "tanh"), [S], None)],
    **{name: [(getattr(ops, name), [S, S], None), (getattr(ops, name), [(2, 1, 4), (3, 1)], None)]
       for name in ("add", "sub", "mul")},
    "div": [(ops.div, [S, (4,)], _positive), (lambda x: 2.0 / x, [()], _positive)],
    "pow": [(ops.pow, [S, (3, 1)], _positive), (lambda x: x**3.0, [S], None), (lambda x: x**2, [S], None)],
    "maximum": [(ops.maximum, [S, (4,)], _apart)],
    "minimum": [(ops.minimum, [S, (4,)], _apart)],
    "where": [(lambda x, y: ops.where(_mask(x), x, y), [S, (4,)], None),
              (lambda x, y: ops.where(_mask(x), x, y), [(3, 1), ()], None)],
    "cast": [(lambda x: ops.cast(ops.cast(x, "f64") * 2.0, "f64"), [S], None)],
    "clip": [(lambda x: ops.clip(x, -0.5, 0.6), [S], _apart), (lambda x: ops.clip(x, max=0.3), [S], _apart)],
    "reshape": [(lambda x: x.reshape(2, -1) * ops.exp(x.reshape(2, 6)), [S], None)],
    "transpose": [(lambda x: ops.transpose(x, (2, 0, 1)), [(2, 3, 4)], None)],
    "expand": [(lambda x: ops.expand(x, (2, 3, 4)), [(3, 1)], None), (lambda x: ops.expand(x, (2, 2)), [()], None)],
    "slice": [(lambda x: x[1:, ::2], [S], None), (lambda x: x[::-1, 3:0:-2], [S], None),
              (lambda x: x[2, None, 1:3], [S], None), (lambda x: x[:, 1:1], [S], None),
              (lambda x: x[..., 1::3], [(2, 3, 8)], None)],
    "concat": [(lambda x, y: ops.concat([x, y, x], 1), [S, (3, 2)], None)],
    "sum": [(lambda x: ops.sum(x, (0, 2)), [(2, 3, 4)], None), (lambda x: x.sum(keepdims=True), [S], None)],
    "mean": [(lambda x: ops.mean(x, 1), [S], None), (lambda x: x.mean(), [S], None)],
    "prod": [(lambda x: ops.prod(x, 1), [S], None), (lambda x: ops.prod(x, 1), [S], _one_zero),
             (lambda x: ops.prod(x, (0, 2), keepdims=True), [(2, 3, 2)], None)],
    "max": [(lambda x: ops.max(x, 1), [S], _apart), (lambda x: ops.max(x), [S], _apart)],
    "min": [(lambda x: ops.min(x, 0, keepdims=True), [S], _apart)],
    "matmul": [
        (ops.matmul, [(3, 4), (4, 5)], None),
        (lambda a, b: ops.matmul(a, b, transpose_a=True), [(4, 3), (4, 5)], None),
        (lambda a, b: ops.matmul(a, b, transpose_b=True), [(2, 3, 4), (5, 4)], None),
        (lambda a, b: ops.matmul(a, b, transpose_a=True, transpose_b=True), [(4, 3), (2, 5, 4)], None),
        (lambda a, b: a @ b, [(4,), (2, 4, 3)], None), (lambda a, b: a @ b, [(3, 4), (4,)], None),
        (lambda a, b: a @ b, [(4,), (4,)], None), (ops.matmul, [(2, 1, 3, 4), (5, 4, 2)], None),
        *[(lambda a, b, c, act=act: ops.matmul(a, b, c, activation=act), [(3, 4), (4, 5), (5,)], None)
          for act in (None, "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "relu")],
    ],
    "softmax": [(ops.softmax, [S], None), (lambda x: ops.softmax(x, 0), [S], None)],
    "layer_norm": [(ops.layer_norm, [(2, 3, 5), (5,), (5,)], None)],
    "rms_norm": [(ops.rms_norm, [(3, 5), (5,)], None), (ops.rms_norm, [(3, 5), (5,), (5,)], None)],
    "gather": [
        (lambda x: ops.gather(x, _indices(x, [[0, 2, -1], [2, 2, 0]])), [S], None),
        (lambda x: ops.gather(x, _indices(x, [1, 1]), axis=1), [(2, 3, 4)], None),
        (lambda x: ops.gather(x, _indices(x, 3), axis=-1), [(2, 3, 4)], None),
    ],
    "fused": [(_fused, [S, (4,)], _apart)],
}  # fmt: skip
# Families with cases of their own: gradients_<family>.py beside this file.
for _path in sorted(Path(__file__).parent.glob("gradients_*.py")):
    CASES.update(importlib.import_module(f"tests.ops.{_path.stem}").CASES)


def _value(build: Build, arrays: list[np.ndarray], weights: np.ndarray | None) -> tuple[float, np.ndarray]:
    g = Graph()
    t = build(*(g.input(f"x{i}", a.shape, f64) for i, a in enumerate(arrays)))
    y = evaluate(g, {f"x{i}": a for i, a in enumerate(arrays)})[t.id]
    return (0.0 if weights is None else float(np.sum(y * weights))), y


def _analytic(build: Build, arrays: list[np.ndarray], weights: np.ndarray) -> list[np.ndarray]:
    g = Graph()
    xs = [g.input(f"x{i}", a.shape, f64) for i, a in enumerate(arrays)]
    y = build(*xs)
    grads = gradients(y, xs, g.constant(weights, f64))
    values = evaluate(g, {f"x{i}": a for i, a in enumerate(arrays)})
    for x, d in zip(xs, grads, strict=True):
        assert d.type == x.type
    return [values[d.id] for d in grads]


def _numeric(
    build: Build, arrays: list[np.ndarray], weights: np.ndarray, h: float = 1e-3
) -> list[np.ndarray]:
    """Central differences of fourth order."""
    found = []
    for i, a in enumerate(arrays):
        d = np.zeros_like(a)
        for at in np.ndindex(a.shape):
            values = []
            for step in (-2, -1, 1, 2):
                moved = [b.copy() for b in arrays]
                moved[i][at] += step * h
                values.append(_value(build, moved, weights)[0])
            d[at] = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * h)
        found.append(d)
    return found


DIFFERENTIABLE = sorted(n for n, op in REGISTRY.items() if op.vjp is not NOT_DIFFERENTIABLE)


def test_every_differentiable_op_is_tried() -> None:
    assert sorted(CASES) == DIFFERENTIABLE


@pytest.mark.judged
@pytest.mark.parametrize("op, number", [(op, i) for op in sorted(CASES) for i in range(len(CASES[op]))])
def test_gradient_is_the_finite_difference(op: str, number: int) -> None:
    build, shapes, prepare = CASES[op][number]
    rng = np.random.default_rng(number)
    arrays = [rng.standard_normal(s) for s in shapes]
    if prepare is not None:
        arrays = [np.asarray(prepare(a)) for a in arrays]
    if op in (
        "abs",
        "relu",
        "sign",
        "round",
        "floor",
        "ceil",
        "maximum",
        "minimum",
        "max",
        "min",
        "clip",
        "fused",
    ):
        h = 1e-5  # stay on one side of the kink
    else:
        h = 1e-3
    weights = rng.standard_normal(_value(build, arrays, None)[1].shape)
    for got, want in zip(_analytic(build, arrays, weights), _numeric(build, arrays, weights, h), strict=True):
        error, power = float(np.sum((got - want) ** 2)), float(np.sum(want**2))
        assert error <= 1e-17 * power + 1e-17, (op, got, want)  # numbers rounded to f32 give 1e-16


def test_second_derivatives() -> None:
    def build(x: Tensor, w: Tensor) -> Tensor:
        y = ops.sum(ops.tanh(ops.matmul(x, w, activation="gelu")) * ops.softmax(x @ w))
        return gradients(y, [x])[0]

    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal((3, 4)), rng.standard_normal((4, 2))]
    weights = rng.standard_normal((3, 4))
    for got, want in zip(_analytic(build, arrays, weights), _numeric(build, arrays, weights), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-8)


TIES: dict[str, tuple[Build, Callable[..., Any]]] = {
    "maximum": (lambda x, y: ops.maximum(x, y), lambda torch, x, y: torch.maximum(x, y)),
    "minimum": (lambda x, y: ops.minimum(x, y), lambda torch, x, y: torch.minimum(x, y)),
    "max": (lambda x, y: ops.max(x, 1) + ops.max(y), lambda torch, x, y: torch.amax(x, 1) + torch.amax(y)),
    "min": (lambda x, y: ops.min(x, 1) + ops.min(y), lambda torch, x, y: torch.amin(x, 1) + torch.amin(y)),
    "relu": (lambda x, y: ops.relu(x) * y, lambda torch, x, y: torch.relu(x) * y),
    "abs": (lambda x, y: ops.abs(x) * y, lambda torch, x, y: torch.abs(x) * y),
    "clip": (lambda x, y: ops.clip(x, -1.0, 1.0) * y, lambda torch, x, y: torch.clamp(x, -1.0, 1.0) * y),
    "pow": (lambda x, y: ops.pow(ops.abs(x), 2.0) * y, lambda torch, x, y: torch.pow(torch.abs(x), 2.0) * y),
    "pow_zero": (lambda x, y: ops.pow(ops.abs(x), ops.abs(y)), lambda torch, x, y: torch.pow(x.abs(), y.abs())),
}  # fmt: skip


@pytest.mark.judged
@pytest.mark.parametrize("name", TIES)
def test_ties_and_kinks_follow_torch(name: str) -> None:
    torch = outside("torch")
    mine, theirs = TIES[name]
    rng = np.random.default_rng(2)
    arrays = [rng.integers(-2, 3, (4, 5)).astype(np.float64) for _ in range(2)]
    if name == "pow_zero":
        arrays[1] = np.abs(arrays[1]) + 1.0
    leaves = [torch.tensor(a, requires_grad=True) for a in arrays]
    out = theirs(torch, *leaves)
    weights = rng.standard_normal(tuple(out.shape))
    (out * torch.from_numpy(weights)).sum().backward()
    for got, leaf in zip(_analytic(mine, arrays, weights), leaves, strict=True):
        np.testing.assert_allclose(got, leaf.grad.numpy(), rtol=1e-12, atol=1e-14)


def test_a_tensor_of_wrt_may_be_made_from_another() -> None:
    g = Graph()
    x = g.input("x", (3,), f64)
    h = ops.exp(x)
    y = ops.sum(h * x)
    dx, dh = gradients(y, [x, h])
    feed = np.array([0.1, -0.5, 2.0])
    values = evaluate(g, {"x": feed})
    np.testing.assert_allclose(values[dx.id], np.exp(feed) * (1 + feed), rtol=1e-14)
    np.testing.assert_allclose(values[dh.id], feed, rtol=1e-14)


def test_what_the_output_does_not_depend_on_gets_zeros() -> None:
    g = Graph()
    x, y = g.input("x", (3,)), g.input("y", (2, 2), bf16)
    dx, dy = gradients(ops.sum(x), [x, y])
    values = evaluate(g, {"x": np.ones(3), "y": np.ones((2, 2))})
    assert dy.type == y.type
    np.testing.assert_array_equal(values[dx.id], np.ones(3))
    np.testing.assert_array_equal(values[dy.id], np.zeros((2, 2)))


@pytest.mark.parametrize("dtypes", [(f16, f16), (f32, bf16), (bf16, bf16), (f16, f32)])
def test_gradients_have_the_dtype_of_their_tensor(dtypes: tuple[Any, Any]) -> None:
    g = Graph()
    x, w = g.input("x", (3, 4), dtypes[0]), g.input("w", (4, 5), dtypes[1])
    b = g.input("b", (5,), dtypes[1])
    y = ops.layer_norm(ops.matmul(x, w, b, activation="gelu"), b, b)
    y = ops.softmax(y) * ops.mean(y) + ops.max(y) + ops.prod(y, 0)
    for t, d in zip((x, w, b), gradients(ops.sum(y), [x, w, b]), strict=True):
        assert d.type == t.type


def test_integers_and_comparisons_pass_no_gradient() -> None:
    g = Graph()
    x, n = g.input("x", (3,), f64), g.input("n", (3,), i32)
    y = ops.sum(ops.cast(x > 0, "f64") * x * n + ops.cast(ops.cast(x, "i32"), "f64"))
    (d,) = gradients(y, [x])
    values = evaluate(g, {"x": np.array([-1.5, 0.5, 2.0]), "n": np.array([3, 4, 5])})
    np.testing.assert_array_equal(values[d.id], [0.0, 4.0, 5.0])


def test_bad_arguments() -> None:
    g, other = Graph("one"), Graph("two")
    x, n, z = g.input("x", (3,)), g.input("n", (3,), i32), other.input("z", (3,))
    with pytest.raises(ShapeError, match="seed"):
        gradients(x * 2, [x])
    with pytest.raises(ShapeError, match="seed"):
        gradients(x * 2, [x], g.constant(np.ones(4, np.float32)))
    with pytest.raises(DTypeError, match=r"wrt\[0\]"):
        gradients(ops.sum(x), [n])
    with pytest.raises(GraphError, match="two"):
        gradients(ops.sum(x), [z])
    with pytest.raises(GraphError, match=r"wrt\[0\].*float"):
        gradients(ops.sum(x), [1.0])  # type: ignore[list-item]
