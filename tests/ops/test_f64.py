"""f64 is computed in f64 throughout: no value, constant or literal is of f32; results are right to the last digits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import rlx
import rlx.ops as ops
from rlx.autodiff import gradients
from rlx.dtypes import f64
from rlx.ir import Graph, Node, Tensor, bodies
from rlx.ir import expr as ex
from tests.devices import session_here
from tests.ops.test_finite_gradients import TRIED

Array = np.ndarray[Any, np.dtype[Any]]
Wide = np.longdouble


def _rounded(value: Any) -> bool:
    """Whether a number was rounded to f32: f32 holds it exactly, and it is no short one such as 0.375 or 4096."""
    numbers = np.asarray(value, np.float64).ravel()
    numbers = numbers[np.isfinite(numbers)]
    with np.errstate(over="ignore"):
        single = numbers.astype(np.float32) == numbers
    part = np.frexp(numbers)[0] * 2.0**16
    return bool(np.any(single & (part != np.rint(part))))


def _numbers(value: Any) -> Iterator[float]:
    """The floats in an attribute, also those within tuples and expression trees."""
    if isinstance(value, ex.Expr):
        for e in ex.linearize([value]):
            assert not e.dtype.is_float or e.dtype == f64, f"{e.prim} of {e.dtype}"
            if e.prim == "lit" and e.dtype.is_float:
                yield float(e.value or 0)
    elif isinstance(value, tuple | list):
        for v in value:
            yield from _numbers(v)
    elif isinstance(value, float):
        yield value


def _want_f64(node: Node) -> None:
    for t in node.outputs:
        assert not t.dtype.is_float or t.dtype == f64, f"{node} gives {t.dtype}"
    if node.op.name == "constant":
        assert node.output.dtype != f64 or not _rounded(node.attrs["value"]), f"{node} holds numbers of f32"
        return
    trees = []
    if node.op.expr is not None and node.op.name != "fused":  # its trees are an attribute
        trees.append(node.op.expr([ex.arg(i, t.dtype) for i, t in enumerate(node.inputs)], node.attrs))
    for number in _numbers([*node.attrs.values(), *trees]):
        assert not _rounded(number), f"{node}: {number} is rounded to f32"
    for body in bodies(node).values():
        for inner in body.nodes:
            _want_f64(inner)


# These are tried with a target of f32.
LOSSES = {op for op in TRIED if op.endswith("_loss") or op.startswith("binary_cross_entropy")} - {"nll_loss"}
# The format defines them in f32: blocks of 8-bit numbers with an f16 scale each.
F32_BY_DEFINITION = {"q8_0_blocks", "q8_0_numbers"}


@pytest.mark.parametrize("op", [op for op in TRIED if op not in LOSSES | F32_BY_DEFINITION])
def test_no_f32_in_values_gradients_and_decompositions(op: str) -> None:
    for build, shapes in TRIED[op]:
        g = Graph()
        xs = [g.input(f"x{i}", s, "f64") for i, s in enumerate(shapes)]
        y = build(*xs)
        gradients(y, xs, g.constant(np.ones(y.shape), "f64"))
        for node in list(g.nodes):
            if node.op.decompose is not None:
                node.op.decompose(node.inputs, node.attrs)
        for node in g.nodes:
            _want_f64(node)


@pytest.mark.parametrize("build", [
    lambda x, n: ops.atan2(n, x), lambda x, n: ops.div(n, x), lambda x, n: ops.add(x, n), lambda x, n: ops.pow(x, n),
    lambda x, n: ops.layer_norm(x, n, n), lambda x, n: ops.rms_norm(x, n), lambda x, n: ops.maximum(x, n),
    lambda x, n: ops.conv(ops.reshape(x, (1, 1, 3)), ops.reshape(n, (1, 1, 3))), lambda x, n: ops.matmul(x, n),
    lambda x, n: ops.group_norm(ops.reshape(x, (1, 3, 1)), 3, n, n), lambda x, n: ops.where(x > 0, x, n),
    lambda x, n: ops.fake_quantize(x, 0.1, 0), lambda x, n: ops.fake_quantize(x, np.float64(0.1)),
])  # fmt: skip
def test_integers_and_numbers_beside_f64_become_f64(build: Callable[[Tensor, Tensor], Tensor]) -> None:
    g = Graph()
    assert build(g.input("x", (3,), "f64"), g.input("n", (3,), "i64")).dtype == f64
    for node in g.nodes:
        _want_f64(node)


def test_a_traced_number_beside_f64_is_f64() -> None:
    def scaled(x: Any, scale: float) -> Any:
        return ops.fake_quantize(x, scale, bits=24), ops.maximum(x * scale, scale)

    x = np.array([0.31, 1.47, -2.2])
    quantized, product = (np.asarray(y) for y in rlx.jit(device="cpu")(scaled)(x, 0.1))
    np.testing.assert_allclose(quantized, np.rint(x / 0.1) * 0.1, rtol=1e-15)
    np.testing.assert_allclose(product, np.maximum(x * 0.1, 0.1), rtol=1e-15)


def test_a_rounded_number_is_found() -> None:
    assert _rounded(float(np.float32(0.1))) and _rounded([1.0, 1.67326319217681884765625])
    assert not _rounded([0.1, 0.375, 1.0, 4096.0, 0.0, math.inf, 1e300, math.pi])


@pytest.fixture(scope="module")
def session(request: pytest.FixtureRequest) -> rlx.Session:
    return session_here(request.param)


def _gelu_tanh(x: Any) -> Any:
    return x / 2 * (1 + np.tanh(Wide("0.797884560802865355879892119868764") * (x + Wide("0.044715") * x**3)))


def _elu(x: Any, alpha: Any) -> Any:
    return np.where(x > 0, x, alpha * np.expm1(x))


# Functions, and their definitions computed in long double.
VALUES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Any], Any]]] = {
    "selu": (ops.selu, lambda x: Wide("1.05070098735548049342") * _elu(x, Wide("1.67326324235437728482"))),
    "elu": (lambda x: ops.elu(x, 0.7), lambda x: _elu(x, Wide(0.7))),
    "silu": (ops.silu, lambda x: x / (1 + np.exp(-x))),
    "sigmoid": (ops.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "softplus": (ops.softplus, lambda x: np.log1p(np.exp(x))),
    "mish": (ops.mish, lambda x: x * np.tanh(np.log1p(np.exp(x)))),
    "gelu_tanh": (lambda x: ops.gelu(x, "tanh"), _gelu_tanh),
    "hard_swish": (ops.hard_swish, lambda x: x * np.clip(x + 3, 0, 6) / 6),
    "hard_sigmoid": (lambda x: ops.hard_sigmoid(x, 0.2), lambda x: np.clip(Wide(0.2) * x + Wide(0.5), 0, 1)),
    "leaky_relu": (lambda x: ops.leaky_relu(x, 0.01), lambda x: np.where(x < 0, Wide(0.01) * x, x)),
    "exp2": (ops.exp2, np.exp2), "log2": (lambda x: ops.log2(x * x), lambda x: 2 * np.log2(np.abs(x))),
    "log10": (lambda x: ops.log10(x * x), lambda x: 2 * np.log10(np.abs(x))),
    "normalize": (ops.normalize, lambda x: x / np.sqrt(np.sum(x * x))),
    "std": (ops.std, lambda x: np.sqrt(np.mean((x - np.mean(x)) ** 2))),
    "logsumexp": (ops.logsumexp, lambda x: np.log(np.sum(np.exp(x)))),
    "resize": (lambda x: ops.resize(x, 77, mode="linear"), lambda x: _resized(x, 77)),
    "gradient of resize": (lambda x: gradients(ops.resize(x, 77, mode="linear"), [x], _seed(x, 77))[0],
                           lambda x: _resized_back(len(x), 77)),
    "fake_quantize": (lambda x: ops.fake_quantize(x, 0.1), lambda x: np.rint(x / Wide(0.1)) * Wide(0.1)),
    "axial_rope": (lambda x: ops.axial_rope(ops.reshape(x[:48], (12, 4)), 3, 4), lambda x: _turned(x[:48])),
}  # fmt: skip


def _matrix(n: int, size: int) -> Any:
    """The matrix (size, n) of linear resizing by half pixels."""
    made = np.zeros((size, n), Wide)
    for i in range(size):
        at = (Wide(2 * i + 1) * n) / (2 * size) - Wide(0.5)
        low = int(np.floor(at))
        for k, weight in ((low, 1 - (at - low)), (low + 1, at - low)):
            made[i, min(max(k, 0), n - 1)] += weight
    return made


def _seed(x: Tensor, size: int) -> Tensor:
    return x.graph.constant(1 / np.arange(1.0, size + 1), "f64")


def _resized(x: Any, size: int) -> Any:
    return _matrix(len(x), size) @ x


def _resized_back(n: int, size: int) -> Any:
    return _matrix(n, size).T @ (1 / np.arange(1.0, size + 1)).astype(Wide)


def _turned(x: Any) -> Any:
    """Rope of heads of four on a grid of 3 by 4: the first pair is rotated by the column, the second by the row."""
    rows = x.reshape(12, 2, 2)
    angle = np.stack([np.arange(12) % 4, np.arange(12) // 4], axis=1).astype(Wide)
    cos, sin = np.cos(angle), np.sin(angle)
    a, b = rows[..., 0], rows[..., 1]
    return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(12, 4)


@pytest.mark.parametrize("session", ["cpu", "vulkan", "cuda"], indirect=True)
def test_values_hold_to_the_last_digits(session: rlx.Session) -> None:
    x = np.concatenate([np.linspace(-5, 5, 60), [-0.01, 0.003, 1e-5]])
    g = Graph()
    t = g.input("x", x.shape, "f64")
    for name, (build, _) in VALUES.items():
        g.output(name, build(t))
    with session.compile(g) as compiled:
        got = compiled.run({"x": x})
    for name, (_, formula) in VALUES.items():
        want = formula(x.astype(Wide))
        error = np.max(np.abs(got[name] - want) / (0.1 + np.abs(want)))
        assert error <= 1e-14, (name, error)
