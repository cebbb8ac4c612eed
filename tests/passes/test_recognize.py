"""Functions written out in small ops become the one op that has a kernel, with the same values; similar ones stay."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import Tensor, ops
from rlx.ir import Graph, Node
from rlx.passes import optimize, recognize, simplify
from rlx.passes.rewriting import Support

RNG = np.random.default_rng(5)
Array = np.ndarray[Any, Any]
B, H, S, D = 2, 3, 5, 8


def made(build: Callable[..., Tensor], *shapes: tuple[int, ...], dtype: str = "f32") -> tuple[Graph, Counter[str]]:
    """The graph of a function, and how many ops of each kind the optimizer leaves."""
    g = Graph("written")
    g.output("y", build(*(g.input(f"x{i}", shape, dtype) for i, shape in enumerate(shapes))))
    return g, Counter(n.op.name for n in optimize(g, verify=True)[0].nodes if not n.op.leaf)


def ran(g: Graph, *arrays: Array) -> Array:
    with rlx.Session("cpu").compile(g) as program:
        return np.asarray(program.run({f"x{i}": a for i, a in enumerate(arrays)})["y"])


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def erf(x: Array) -> Array:
    return np.vectorize(math.erf)(x)


def gelu64(x: Array) -> Array:
    x = x.astype(np.float64)
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def tanh_gelu64(x: Array) -> Array:
    x = x.astype(np.float64)
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ROOT = math.sqrt(2)
GELUS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Array], Array]]] = {
    "as in the paper": (lambda x: 0.5 * x * (1 + ops.erf(x / ROOT)), gelu64),
    "a factor of the root": (lambda x: x * 0.5 * (ops.erf(x * (1 / ROOT)) + 1.0), gelu64),
    "half of all": (lambda x: 0.5 * (x * (1 + ops.erf(x / ROOT))), gelu64),
    "half of the sum": (lambda x: x * (0.5 * (1 + ops.erf(x / ROOT))), gelu64),
    "by tanh": (
        lambda x: 0.5 * x * (1 + ops.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        tanh_gelu64,
    ),
    "by tanh of products": (
        lambda x: 0.5 * x * (1 + ops.tanh(0.7978845608028654 * (x + 0.044715 * (x * x * x)))),
        tanh_gelu64,
    ),
}


@pytest.mark.parametrize("name", GELUS)
def test_gelu(name: str) -> None:
    build, want = GELUS[name]
    g, found = made(build, (7, 9))
    x = normal(7, 9) * 3
    assert found == {"gelu": 1}
    assert np.allclose(ran(g, x), want(x), rtol=1e-5, atol=1e-6)


def test_gelu_behind_a_layer_is_in_the_product() -> None:
    _, found = made(lambda x, w, b: GELUS["as in the paper"][0](ops.matmul(x, w) + b), (4, 8), (8, 6), (6,))
    assert found == {"matmul": 1}


@pytest.mark.parametrize(
    "build",
    [
        lambda x: 0.51 * x * (1 + ops.erf(x / ROOT)),
        lambda x: 0.5 * x * (1 + ops.erf(x / 1.4142)),
        lambda x: 0.5 * x * (1.001 + ops.erf(x / ROOT)),
        lambda x: 0.5 * x * (1 + ops.tanh(0.79 * (x + 0.044715 * x**3))),
        lambda x: 0.5 * ops.sin(x) * (1 + ops.erf(x / ROOT)),
    ],
)
def test_what_is_not_gelu_stays(build: Callable[[Tensor], Tensor]) -> None:
    assert "gelu" not in made(build, (7, 9))[1]


def layer_norm64(x: Array, gamma: Array, beta: Array, eps: float) -> Array:
    x = x.astype(np.float64)
    c = x - x.mean(-1, keepdims=True)
    return c / np.sqrt((c * c).mean(-1, keepdims=True) + eps) * gamma + beta


def _mean(x: Tensor) -> Tensor:
    return ops.mean(x, axis=-1, keepdims=True)


LAYER_NORMS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "quotient": lambda x, g, b: (x - _mean(x)) / ops.sqrt(_mean((x - _mean(x)) ** 2) + 1e-3) * g + b,
    "reciprocal root": lambda x, g, b: b + g * ((x - _mean(x)) * ops.rsqrt(_mean((x - _mean(x)) ** 2) + 1e-3)),
    "one by the root": lambda x, g, b: (
        (1 / ops.sqrt(1e-3 + _mean((x - _mean(x)) * (x - _mean(x))))) * (x - _mean(x)) * g + b
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYER_NORMS)
def test_layer_norm(name: str) -> None:
    g, found = made(LAYER_NORMS[name], (4, 3, 33), (33,), (33,))
    arrays = normal(4, 3, 33) * 2 + 1, normal(33), normal(33)
    assert found == {"layer_norm": 1}
    assert np.allclose(ran(g, *arrays), layer_norm64(*arrays, 1e-3), rtol=1e-5, atol=1e-6)


def test_a_residual_sum_goes_into_a_norm_written_out() -> None:
    _, found = made(lambda x, r, g, b: LAYER_NORMS["quotient"](x + r, g, b), (4, 33), (4, 33), (33,), (33,))
    assert found == {"add_layer_norm": 1}


def test_rms_norm() -> None:
    g, found = made(lambda x, w: x * ops.rsqrt(_mean(x * x) + 1e-6) * w, (4, 33), (33,))
    x, w = normal(4, 33), normal(33)
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-6) * w
    assert found == {"rms_norm": 1}
    assert np.allclose(ran(g, x, w), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "build",
    [
        lambda x, g, b: (x - _mean(x)) / ops.sqrt(_mean((x - _mean(x)) ** 2) - 1e-3) * g + b,
        lambda x, g, b: (x - _mean(x)) / ops.sqrt(ops.mean((x - _mean(x)) ** 2, axis=0, keepdims=True) + 1e-3) * g + b,
        lambda x, g, b: (x - ops.mean(x)) / ops.sqrt(_mean((x - ops.mean(x)) ** 2) + 1e-3) * g + b,
        lambda x, g, b: (x - _mean(x)) / ops.sqrt(_mean(x**2) + 1e-3) * g + b,
        lambda x, g, b: (x - _mean(x)) / ops.sqrt(_mean((x - _mean(x)) ** 2) + 1e-3) * ops.reshape(g, (33, 1)) + b,
    ],
)
def test_what_is_not_layer_norm_stays(build: Callable[..., Tensor]) -> None:
    assert "layer_norm" not in made(build, (33, 33), (33,), (33,))[1]


def attention64(q: Array, k: Array, v: Array, mask: Array | None = None, scale: float = D**-0.5) -> Array:
    scores = np.einsum("bhid,bhjd->bhij", q.astype(np.float64), k) * scale
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask
    with np.errstate(invalid="ignore"):
        e = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("bhij,bhjd->bhid", e / e.sum(-1, keepdims=True), v)


def _turned(x: Tensor) -> Tensor:
    return ops.transpose(x, (0, 1, 3, 2))


ATTENTIONS: dict[str, Callable[..., Tensor]] = {
    "scale after": lambda q, k, v: ops.matmul(ops.softmax(ops.matmul(q, _turned(k)) * D**-0.5), v),
    "divided": lambda q, k, v: ops.matmul(ops.softmax(ops.matmul(q, _turned(k)) / math.sqrt(D)), v),
    "scale before": lambda q, k, v: ops.matmul(ops.softmax(ops.matmul(q * D**-0.5, k, transpose_b=True)), v),
    "half before each": lambda q, k, v: ops.matmul(ops.softmax(ops.matmul(q * D**-0.25, _turned(k * D**-0.25))), v),
}
QKV = ((B, H, S, D),) * 3


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention(name: str) -> None:
    g, found = made(ATTENTIONS[name], *QKV)
    arrays = [normal(B, H, S, D) for _ in range(3)]
    assert found == {"attention": 1}
    assert np.allclose(ran(g, *arrays), attention64(*arrays), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_attention_with_a_mask(kind: str) -> None:
    """Rows without any visible key are NaN, as in the small ops."""

    def build(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = ops.matmul(q, _turned(k)) * D**-0.5
        hidden = ops.where(mask > 0, scores, -math.inf) if kind == "bool" else scores + mask
        return ops.matmul(ops.softmax(hidden), v)

    g, found = made(build, *QKV, (B, 1, S, S))
    arrays = [normal(B, H, S, D) for _ in range(3)]
    keep = RNG.random((B, 1, S, S)) < 0.6
    keep[0, 0, 1] = False
    keep[1] |= np.eye(S, dtype=np.bool_)
    given = np.where(keep, 1, 0) if kind == "bool" else np.where(keep, 0.5, -np.inf)
    want = attention64(*arrays, keep if kind == "bool" else given)
    assert found["attention"] == 1 and "softmax" not in found
    assert np.isnan(want[0, :, 1]).all() and np.isfinite(want[1]).all()
    assert np.allclose(ran(g, *arrays, given.astype(np.float32)), want, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("lead", [1, 2])
def test_attention_in_windows(lead: int) -> None:
    """A bias of each head, then a mask of each window, with axes of length 1 before."""

    def build(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, windows: Tensor) -> Tensor:
        scores = ops.matmul(q * D**-0.5, _turned(k)) + bias
        wide = ops.reshape(scores, (*(1,) * lead, *scores.shape)) + windows
        return ops.matmul(ops.softmax(ops.reshape(wide, scores.shape)), v)

    shapes = (1, H, S, S), (*(1,) * lead, B, 1, S, S)
    g, found = made(build, *QKV, *shapes)
    assert found["attention"] == 1 and "softmax" not in found
    arrays, bias = [normal(B, H, S, D) for _ in range(3)], normal(*shapes[0])
    windows = np.where(RNG.random(shapes[1]) < 0.5, 0, -100).astype(np.float32)
    want = attention64(*arrays, bias + windows.reshape(B, 1, S, S))
    assert np.allclose(ran(g, *arrays, bias, windows), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "build",
    [
        lambda q, k, v: ops.matmul(ops.softmax(ops.matmul(q, _turned(k)) * -0.3), v),
        lambda q, k, v: ops.matmul(ops.softmax(ops.matmul(q, _turned(k)), axis=2), v),
        lambda q, k, v: ops.matmul(ops.softmax(ops.matmul(q, _turned(k)), axis=-1) * 2, v),
    ],
)
def test_what_is_not_attention_stays(build: Callable[..., Tensor]) -> None:
    assert "attention" not in made(build, *QKV)[1]


def test_weights_of_attention_that_are_wanted_stay() -> None:
    g = Graph("weights")
    q, k, v = (g.input(name, (B, H, S, D)) for name in "qkv")
    p = ops.softmax(ops.matmul(q, _turned(k)))
    g.output("p", p)
    g.output("y", ops.matmul(p, v))
    assert "attention" not in {n.op.name for n in optimize(g)[0].nodes}


def test_only_what_the_device_has_a_kernel_for() -> None:
    def support(node: Node) -> Support:
        return "host" if node.op.name in ("gelu", "attention") else "native"

    g, _ = made(GELUS["as in the paper"][0], (3,))
    plain = simplify(g)
    assert recognize(plain, support) is plain
    assert "gelu" in {n.op.name for n in recognize(plain).nodes}


def test_f64_and_halves() -> None:
    for dtype in ("f16", "bf16", "f64"):
        _, found = made(ATTENTIONS["scale after"], *QKV, dtype=dtype)
        assert found == {"attention": 1}


def test_in_the_body_of_a_loop() -> None:
    g = Graph("loop")
    x = g.input("x", (4,))
    g.output("y", rlx.while_loop(lambda c: rlx.all(c < 5), lambda c: GELUS["as in the paper"][0](c) + 1, x))
    (loop,) = (n for n in optimize(g)[0].nodes if n.op.control)
    before = np.full(4, 0.5, np.float32)
    assert "# gelu+" in str(loop.attrs["body"])
    want = before
    while (want < 5).all():
        want = gelu64(want) + 1
    with rlx.Session("cpu").compile(g) as program:
        assert np.allclose(program.run({"x": before})["y"], want, rtol=1e-5)


GRADIENTS: dict[str, tuple[Callable[..., Tensor], Callable[..., Array], tuple[tuple[int, ...], ...]]] = {
    "gelu": (GELUS["as in the paper"][0], gelu64, ((3, 4),)),
    "layer norm": (LAYER_NORMS["quotient"], lambda x, g, b: layer_norm64(x, g, b, 1e-3), ((3, 6), (6,), (6,))),
    "attention": (ATTENTIONS["scale after"], attention64, ((1, 2, 3, D),) * 3),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_those_of_the_function(name: str) -> None:
    """The gradients against central differences of the function in f64, along a direction for each input."""
    build, want, shapes = GRADIENTS[name]
    arrays = [normal(*shape) for shape in shapes]
    outside = normal(*want(*arrays).shape)
    loss = rlx.jit(rlx.grad(lambda *xs: ops.sum(build(*xs) * outside), argnums=tuple(range(len(shapes)))))
    for i, (got, x) in enumerate(zip(loss(*arrays), arrays, strict=True)):
        way, step = normal(*x.shape).astype(np.float64), 1e-6

        def at(t: float, i: int = i, way: Array = way) -> float:
            given = [a.astype(np.float64) for a in arrays]
            given[i] = given[i] + t * way
            return float((want(*given) * outside).sum())

        slope = (at(step) - at(-step)) / (2 * step)
        assert math.isclose(float((np.asarray(got, np.float64) * way).sum()), slope, rel_tol=1e-3, abs_tol=1e-4)
