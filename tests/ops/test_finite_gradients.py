"""Where a value is finite its gradient is not NaN: at zeros, in rows of equal elements, beside infinities, far from 0.

Every exported function is tried here or is named as one without a gradient, so that a new one joins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import rlx
import rlx.ops as ops
from rlx.autodiff import gradients
from rlx.conformance.oracle import evaluate
from rlx.ir import NOT_DIFFERENTIABLE, REGISTRY, Graph, Tensor
from tests.devices import session_here
from tests.full import sampled
from tests.ops.by_family import GRADIENTS

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, ...]
Build = Callable[..., Tensor]
S = (3, 4)
HALF = np.full(S, 0.5, np.float32)


def _index(x: Tensor, values: Any) -> Tensor:
    return x.graph.constant(np.array(values, np.int64))


def _masked(mask: Tensor) -> Tensor:
    """Attention whose mask hides keys by -inf, and in some rows all keys."""
    q, k, v = (mask.graph.constant(np.random.default_rng(i).standard_normal((1, 1, 3, 4))) for i in range(3))
    return ops.attention(q, k, v, mask)


def _from_scales(scales: Tensor) -> Tensor:
    codes = scales.graph.constant(np.ones((2, 64), np.int8))
    return ops.cast(ops.q8_0_numbers(codes, scales), scales.dtype)


def _recurrent(layer: Build, gates: int) -> list[tuple[Build, list[Shape]]]:
    shapes = [(2, 1, 3), (2 * gates, 3), (2 * gates, 2), (2 * gates,), (2 * gates,)]
    return [(lambda *t: layer(*t)[0], shapes)]


COMPOSITES: dict[str, list[tuple[Build, list[Shape]]]] = {
    "adaptive_avg_pool": [(lambda x: ops.adaptive_avg_pool(x, 2), [(1, 1, 3, 4)])],
    "binary_cross_entropy": [(lambda x: ops.binary_cross_entropy(x, HALF), [S])],
    "binary_cross_entropy_with_logits": [
        (lambda x: ops.binary_cross_entropy_with_logits(x, HALF, reduction="none"), [S])
    ],
    "copysign": [(ops.copysign, [S, (4,)])],
    "cummax": [(lambda x: ops.cummax(x, 1), [S])],
    "cummin": [(lambda x: ops.cummin(x, 0, reverse=True), [S])],
    "digamma": [(ops.digamma, [S])],
    "einsum": [(lambda x, y: ops.einsum("ij,kj->ik", x, y), [S, S])],
    "embedding": [(lambda x: ops.embedding(x, _index(x, [[0, 2], [2, 2]])), [S])],
    "full": [(lambda x: ops.full((2, 3), x), [()])],
    "gru": _recurrent(ops.gru, 3),
    "huber_loss": [(lambda x: ops.huber_loss(x, HALF, reduction="none"), [S])],
    "hypot": [(ops.hypot, [S, (4,)])],
    "instance_norm": [(ops.instance_norm, [(1, 2, 6)])],
    "kl_div": [(lambda x, t: ops.kl_div(x, t, reduction="none"), [S, S])],
    "l1_loss": [(lambda x: ops.l1_loss(x, HALF, "none"), [S])],
    "lstm": _recurrent(ops.lstm, 4),
    "median": [(lambda x: ops.median(x, 1), [S])],
    "mse_loss": [(lambda x: ops.mse_loss(x, HALF, "none"), [S])],
    "nan_to_num": [(ops.nan_to_num, [S])],
    "nll_loss": [(lambda x: ops.nll_loss(x, np.array([0, -100, 3]), reduction="none"), [S])],
    "outer": [(ops.outer, [S, (4,)])],
    "pixel_shuffle": [(lambda x: ops.pixel_shuffle(x, 2), [(4, 1, 2)])],
    "pixel_unshuffle": [(lambda x: ops.pixel_unshuffle(x, 2), [(1, 2, 4)])],
    "smooth_l1_loss": [(lambda x: ops.smooth_l1_loss(x, HALF, reduction="none"), [S])],
    "mask of attention": [(_masked, [(3, 3)])],
    "axial_rope": [(lambda x: ops.axial_rope(x, 2, 2), [(4, 8)])],
    "broadcast_to": [(lambda x: ops.broadcast_to(x, (2, 3, 4)), [S])],
    "concatenate": [(lambda x, y: ops.concatenate([x, y]), [S, S])],
    "diagonal": [(ops.diagonal, [S])],
    "expand_dims": [(lambda x: ops.expand_dims(x, 1), [S])],
    "flatten": [(ops.flatten, [S])],
    "flip": [(lambda x: ops.flip(x, 0), [S])],
    "gather_nd": [(lambda x: ops.gather_nd(x, _index(x, [[0, 1], [2, 3]])), [S])],
    "global_avg_pool": [(ops.global_avg_pool, [(2, 1, 3, 2)])],
    "global_max_pool": [(ops.global_max_pool, [(2, 1, 3, 2)])],
    "linear": [(ops.linear, [S, (2, 4), (2,)]), (lambda x, w: ops.linear(x, w, activation="gelu"), [S, (2, 4)])],
    "moveaxis": [(lambda x: ops.moveaxis(x, 0, 1), [S])],
    "normalize": [(ops.normalize, [S]), (lambda x: ops.normalize(x, 0), [S]), (ops.normalize, [(3, 1)])],
    "paged_rows": [(lambda x: ops.paged_rows(x, _index(x, [[0, 2], [2, 2]])), [S])],
    "permute_dims": [(ops.permute_dims, [S])],
    "prelu": [(ops.prelu, [S, (4,)]), (ops.prelu, [S, ()])],
    "put_along_axis": [(lambda x, u: ops.put_along_axis(x, _index(x, [[1], [0], [3]]), u, 1), [S, (3, 1)])],
    "q8_0_blocks": [(lambda x: ops.cast(ops.q8_0_blocks(x)[1], x.dtype), [(2, 64)])],
    "q8_0_numbers": [(_from_scales, [(2, 2)])],
    "relu6": [(ops.relu6, [S])],
    "remainder": [(ops.remainder, [S, (4,)])],
    "repeat": [(lambda x: ops.repeat(x, 2, 0), [S])],
    "roll": [(lambda x: ops.roll(x, 1, 0), [S])],
    "scatter_add": [(lambda x, u: ops.scatter_add(x, _index(x, [0, 2]), u), [S, (2, 4)])],
    "scatter_nd": [(lambda x, u: ops.scatter_nd(x, _index(x, [[0, 1], [2, 3]]), u), [S, (2,)])],
    "segment_sum": [(lambda x: ops.segment_sum(x, _index(x, [0, 1, 0]), 2), [S])],
    "split": [(lambda x: ops.split(x, 2, 1)[1], [S])],
    "square": [(ops.square, [S])],
    "squeeze": [(ops.squeeze, [(3, 1)])],
    "stack": [(lambda x, y: ops.stack([x, y]), [S, S])],
    "std": [(lambda x: ops.std(x, 1), [S]), (lambda x: ops.std(x, correction=1), [S]), (ops.std, [(1,)])],
    "swapaxes": [(lambda x: ops.swapaxes(x, 0, 1), [S])],
    "take_along_axis": [(lambda x: ops.take_along_axis(x, _index(x, [[1], [0], [3]]), 1), [S])],
    "tile": [(lambda x: ops.tile(x, (2, 1)), [S])],
    "tril": [(ops.tril, [S])],
    "triu": [(ops.triu, [S])],
    "unsqueeze": [(lambda x: ops.unsqueeze(x, 0), [S])],
    "upsample2x": [(ops.upsample2x, [(1, 1, 2, 2)])],
    "var": [(lambda x: ops.var(x, 1), [S]), (lambda x: ops.var(x, correction=1), [S])],
}
NONE = frozenset({
    "all", "any", "argmin", "argsort", "axial_rope_table", "full_like", "one_hot", "ones_like", "rope_scaling",
    "rope_table", "sample", "zeros_like", "arange", "eye", "isclose", "linspace", "ones", "signbit",
    "zeros", "associative_scan", "fori_loop", "map", "switch",  # the last four have those of scan, cond and functions
}) | {name for name, op in REGISTRY.items() if op.vjp is NOT_DIFFERENTIABLE}  # fmt: skip
# Sums of products: their gradient multiplies a gradient of 0 by the infinite other factor, as in torch and JAX. The
# gradient cases of fused and scan contain such products, that of batch_norm the exp of the variance, and that of
# selective_scan the exp of the decay.
WITH_INFINITY = frozenset({
    "attention", "batch_norm", "conv_transpose", "einsum", "fused", "gru", "lora_matmul", "lstm", "matmul", "outer",
    "scan", "selective_scan",
})  # fmt: skip

TRIED: dict[str, list[tuple[Build, list[Shape]]]] = {
    **{op: [(case.build, case.shapes) for case in found] for op, found in GRADIENTS.items() if op != "cast"},
    **COMPOSITES,
}
# Their gradients, to pairs of floats, are test_complex.py's.
OF_COMPLEX = {"angle", "complex", "conj", "imag", "real", "view_as_complex", "view_as_real"}
# They need ranks; their gradients are those of tests/ranks.
OF_RANKS = {"all_gather", "all_reduce", "all_to_all", "axis_index", "broadcast", "reduce_scatter"}
FILLS = {"zero": 0.0, "minus_zero": -0.0, "equal": 1.5, "negative": -2.0, "inf": np.inf, "minus_inf": -np.inf}


def test_every_differentiable_function_is_tried() -> None:
    assert set(ops.__all__) - {"cast"} <= {*TRIED, *NONE, *OF_COMPLEX, *OF_RANKS}
    assert not set(TRIED) & NONE


def _fills(op: str, shapes: list[Shape]) -> Iterator[list[Array]]:
    """Inputs filled with each special value, wholly or in one element: all inputs at once, and each beside ordinary
    others."""
    rng = np.random.default_rng(len(op))

    def filled(shape: Shape, value: float, whole: bool) -> Array:
        a = np.full(shape, value) if whole else rng.standard_normal(shape)
        if a.size and not whole:
            a.flat[rng.integers(a.size)] = value
        return np.asarray(np.abs(a)) if op == "pow" else a  # real powers need a base ≥ 0

    for name, value in FILLS.items():
        if np.isinf(value) and op in WITH_INFINITY:
            continue
        for whole in (True, False):
            yield [filled(s, value, whole) for s in shapes]
            if len(shapes) > 1:
                for i in range(len(shapes)):
                    yield [filled(s, value if j == i else 0.7, whole and j == i) for j, s in enumerate(shapes)]
        if name == "zero":
            yield [filled(s, 1e-200, True) for s in shapes]


def _graph(build: Build, shapes: list[Shape], dtype: str) -> tuple[Graph, Tensor, tuple[Tensor, ...]]:
    g = Graph()
    xs = [g.input(f"x{i}", s, dtype) for i, s in enumerate(shapes)]
    y = build(*xs)
    return g, y, tuple(gradients(y, xs, g.constant(np.ones(y.shape), dtype)))


@pytest.mark.parametrize("op", TRIED)
def test_gradient_is_no_nan_where_the_value_is_finite(op: str) -> None:
    for build, shapes in TRIED[op]:
        g, y, found = _graph(build, shapes, "f64")
        for arrays in sampled(_fills(op, shapes), most=10):
            values = evaluate(g, {f"x{i}": a for i, a in enumerate(arrays)})
            if np.isfinite(values[y.id]).all():
                assert not any(np.isnan(values[d.id]).any() for d in found), (op, arrays)


ALONE = sorted(op for op, found in TRIED.items() if op in ops.__all__ and found[0][1] == [S])


@pytest.mark.parametrize("op", ALONE)
@pytest.mark.parametrize("dtype, far", [("f32", 1e30), ("f64", 1e200)])
def test_far_out_too(op: str, dtype: str, far: float) -> None:
    """Squares and cubes overflow far from 0. Only single elements are far out, so that no infinities are added."""
    x = np.zeros(S)
    x[1, 1:3] = far, -far
    for build, shapes in TRIED[op]:
        if shapes == [S]:
            g, y, (d,) = _graph(build, shapes, dtype)
            values = evaluate(g, {"x0": x.astype(np.float32 if dtype == "f32" else np.float64)}, upcast=False)
            if np.isfinite(values[y.id]).all():
                assert not np.isnan(values[d.id]).any()


@pytest.fixture(scope="module")
def session(request: pytest.FixtureRequest) -> rlx.Session:
    return session_here(request.param)


@pytest.mark.parametrize("session", ["cpu", "vulkan", "cuda"], indirect=True)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_of_padding_pass_back_numbers(session: rlx.Session, dtype: Any) -> None:
    x = np.zeros((4, 3), dtype)
    x[1], x[3] = (3, 0, 4), (2, 2, 2)
    g = Graph()
    t = g.input("x", x.shape, dtype)
    for name, y in (("normalize", ops.normalize(t)), ("std", ops.std(t, 1)), ("atan2", ops.atan2(t, t * 0.5))):
        g.output(name, gradients(ops.sum(y), [t])[0])
    with session.compile(g) as compiled:
        got = compiled.run({"x": x})
    near = 1e-5 if dtype is np.float32 else 1e-12
    ones = np.full(3, 1e12)  # the gradient is that of Σ x / eps
    unit = (np.full(3, 5.0) - 7 * x[1] / 5) / 25
    np.testing.assert_allclose(got["normalize"], [ones, unit, ones, np.zeros(3)], rtol=near, atol=near)
    deviations = (x[1] - x[1].mean()) / (3 * x[1].std())
    np.testing.assert_allclose(got["std"], [np.zeros(3), deviations, np.zeros(3), np.zeros(3)], rtol=near, atol=near)
    np.testing.assert_allclose(got["atan2"], np.zeros((4, 3)), atol=near)
