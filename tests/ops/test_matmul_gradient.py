"""The gradient of a matrix that many matrices are multiplied by: one product, of the right value."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx.passes import simplify

RNG = np.random.default_rng(0)

# Shapes of x and of the matrix, whether the matrix is transposed, and the rows whose products are summed.
CASES = [((3, 4, 5), (5, 6), False), ((2, 3, 4, 5), (6, 5), True), ((2, 3, 4, 5), (1, 5, 6), False),
         ((2, 3, 4, 5), (1, 1, 6, 5), True), ((2, 0, 5), (5, 6), False), ((3, 4, 0), (0, 6), False)]  # fmt: skip


def _gradient(x: Any, w: Any, weights: Any, turned: bool) -> Any:
    return rlx.grad(lambda w: rlx.sum(weights * rlx.matmul(x, w, transpose_b=turned)), device="cpu")(w)


def _products(x: Any, w: Any, d: Any, turned: bool) -> list[Any]:
    def loss(w: Any, x: Any, d: Any) -> Any:
        return rlx.sum(d * rlx.matmul(x, w, transpose_b=turned))

    graph = simplify(rlx.grad(loss).graph(w, x, d))
    return [n for n in graph.nodes if n.op.name == "matmul"]


@pytest.mark.parametrize(("xs", "ws", "turned"), CASES)
def test_it_is_one_product_of_all_rows(xs: Any, ws: Any, turned: bool) -> None:
    x, w = RNG.standard_normal(xs), RNG.standard_normal(ws)
    d = RNG.standard_normal((*xs[:-1], ws[-2] if turned else ws[-1]))
    rows, slopes = x.reshape(int(np.prod(xs[:-1])), xs[-1]), d.reshape(-1, d.shape[-1])
    want = (slopes.T @ rows if turned else rows.T @ slopes).reshape(ws)
    got = _gradient(x, w, d, turned)
    assert got.shape == ws
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
    assert all(n.output.ndim == 2 for n in _products(x, w, d, turned))


def test_matrices_of_their_own_stay_batches() -> None:
    x, w, d = (RNG.standard_normal(s) for s in ((3, 4, 5), (3, 5, 6), (3, 4, 6)))
    np.testing.assert_allclose(_gradient(x, w, d, False), np.swapaxes(x, 1, 2) @ d, rtol=1e-12)
    assert [n.output.shape for n in _products(x, w, d, False)] == [(3, 5, 6)]


def test_bf16_is_rounded_once() -> None:
    x, w, d = (
        RNG.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((16, 32, 8), (8, 4), (16, 32, 4))
    )
    exact = x.reshape(-1, 8).astype(np.float64).T @ d.reshape(-1, 4).astype(np.float64)
    got = _gradient(x, w, d, False).astype(np.float64)
    place = 2.0 ** (np.floor(np.log2(np.abs(exact))) - 7)  # the last of bf16's eight bits
    assert (np.abs(got - exact) <= 0.501 * place).all()
