"""Every vjp against finite differences in float64, and against torch where the rule is a matter of choice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx.ops as ops
from rlx.autodiff import gradients
from rlx.conformance.oracle import evaluate
from rlx.dtypes import bf16, f16, f32, f64, i32
from rlx.errors import DTypeError, GraphError, ShapeError
from rlx.ir import NOT_DIFFERENTIABLE, REGISTRY, Graph, Tensor
from tests.ops.by_family import GRADIENTS, TIES
from tests.ops.gradient_cases import Build
from tests.outside import outside


def _shape(build: Build, arrays: list[np.ndarray]) -> tuple[int, ...]:
    g = Graph()
    return build(*(g.input(f"x{i}", a.shape, f64) for i, a in enumerate(arrays))).shape


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
    """The gradients by central differences of fourth order."""
    g = Graph()
    t = build(*(g.input(f"x{i}", a.shape, f64) for i, a in enumerate(arrays)))

    def value(moved: list[np.ndarray]) -> float:
        return float(np.sum(evaluate(g, {f"x{i}": a for i, a in enumerate(moved)})[t.id] * weights))

    found = []
    for i, a in enumerate(arrays):
        d = np.zeros_like(a)
        for at in np.ndindex(a.shape):
            values = []
            for step in (-2, -1, 1, 2):
                moved = [b.copy() for b in arrays]
                moved[i][at] += step * h
                values.append(value(moved))
            d[at] = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * h)
        found.append(d)
    return found


DIFFERENTIABLE = sorted(n for n, op in REGISTRY.items() if op.vjp is not NOT_DIFFERENTIABLE)


def _step(x: Tensor, y: int) -> Tensor:
    cache = ops.reshape(x, (2, 2, 1, 2))
    token, at = cache[:, 0], x.graph.constant(np.array([1, 0], np.int32))
    return ops.attention_step(token, token, token, cache, cache, at)[y]


# Each reads one tensor in several places of a node.
REPEATED: dict[str, Build] = {
    "attention_step": lambda x: _step(x, 0),
    "attention_step's cache": lambda x: _step(x, 1),
    "add_rms_norm": lambda x: ops.add_rms_norm(x, x, x[0, 0])[0],
    "add_layer_norm": lambda x: ops.add_layer_norm(x, x, x[0, 0], x[0, 0])[0],
    "attention": lambda x: ops.attention(x[None], x[None], x[None]),
}


def test_every_differentiable_op_is_tried() -> None:
    assert sorted(GRADIENTS) == DIFFERENTIABLE


@pytest.mark.judged
@pytest.mark.parametrize(
    "op, number",
    [(op, i) for op in sorted(GRADIENTS) for i in range(len(GRADIENTS[op]))],
)
@pytest.mark.full(number=lambda number: number > 0)
def test_gradient_is_the_finite_difference(op: str, number: int) -> None:
    case = GRADIENTS[op][number]
    rng = np.random.default_rng(number)
    build, arrays = case.build, case.arrays(rng)
    weights = rng.standard_normal(_shape(build, arrays))
    for got, want in zip(_analytic(build, arrays, weights), _numeric(build, arrays, weights, case.step), strict=True):
        error, power = float(np.sum((got - want) ** 2)), float(np.sum(want**2))
        assert error <= 1e-17 * power + 1e-17, (op, got, want)  # a number rounded to f32 would give 1e-16


def test_second_derivatives() -> None:
    def build(x: Tensor, w: Tensor) -> Tensor:
        y = ops.sum(ops.tanh(ops.matmul(x, w, activation="gelu")) * ops.softmax(x @ w))
        return gradients(y, [x])[0]

    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal((3, 4)), rng.standard_normal((4, 2))]
    weights = rng.standard_normal((3, 4))
    for got, want in zip(_analytic(build, arrays, weights), _numeric(build, arrays, weights), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-8)


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


@pytest.mark.parametrize("name", REPEATED)
def test_a_tensor_that_a_node_reads_several_times(name: str) -> None:
    """Its gradient is the sum over these places, also where the rule follows from parts of the node."""
    build = REPEATED[name]
    x = [np.random.default_rng(3).normal(size=(2, 2, 2))]
    weights = np.random.default_rng(4).normal(size=_shape(build, x))
    np.testing.assert_allclose(_analytic(build, x, weights), _numeric(build, x, weights), rtol=1e-7, atol=1e-8)


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
