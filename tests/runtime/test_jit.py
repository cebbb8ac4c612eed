"""jit and grad: tracing, caching, pytrees, and errors that say what to do."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx.errors import GraphError, RlxError, ShapeError


def test_jit_traces_once_per_shape(caplog):
    calls = []

    @rlx.jit(device="cpu")
    def layer(x, w, b):
        calls.append(x.shape)
        return rlx.relu(x @ w + b)

    rng = np.random.default_rng(0)
    w, b = rng.standard_normal((3, 2)).astype(np.float32), np.ones(2, np.float32)
    with caplog.at_level("INFO", logger="rlx.jit"):
        for n in (4, 4, 5, 4):
            x = rng.standard_normal((n, 3)).astype(np.float32)
            np.testing.assert_allclose(layer(x, w, b), np.maximum(x @ w + b, 0), rtol=1e-5, atol=1e-6)
    assert calls == [(4, 3), (5, 3)]
    assert layer.cache_info()["size"] == 2
    assert len(caplog.records) == 2


def test_nested_containers_and_static_arguments():
    @rlx.jit(device="cpu")
    def f(tree, power, *, names):
        return {"sum": tree["a"][0] + tree["a"][1], names[0]: (tree["b"] ** power, 7)}

    a, b = np.arange(3, dtype=np.float32), np.float32([2, 3, 4])
    got = f({"a": [a, b], "b": b}, 2, names=("sq",))
    np.testing.assert_array_equal(got["sum"], a + b)
    np.testing.assert_allclose(got["sq"][0], b * b, rtol=1e-6)
    assert got["sq"][1] == 7


def test_bool_of_a_tensor_names_the_way_out():
    @rlx.jit(device="cpu")
    def f(x):
        return x if rlx.sum(x) > 0 else -x

    with pytest.raises(RlxError, match=r"rlx\.where|rlx\.cond"):
        f(np.ones(3, np.float32))


def test_a_large_closed_over_array_warns():
    big = np.zeros(300_000, np.float32)

    @rlx.jit(device="cpu")
    def f(x):
        return x + big

    with pytest.warns(UserWarning, match="pass the array as an argument"):
        f(big)


def test_unhashable_static_argument_is_named():
    @rlx.jit(device="cpu")
    def f(x, s):
        return x

    with pytest.raises(GraphError, match="static argument"):
        f(np.ones(2, np.float32), {1, 2})


def test_grad_of_a_loss():
    def loss(w, x):
        return rlx.sum(rlx.tanh(x @ w) ** 2)

    rng = np.random.default_rng(1)
    w, x = (rng.standard_normal(s).astype(np.float32) for s in ((3, 2), (5, 3)))
    t = np.tanh(x.astype(np.float64) @ w)
    np.testing.assert_allclose(
        rlx.grad(loss, device="cpu")(w, x), x.T @ (2 * t * (1 - t * t)), rtol=1e-4, atol=1e-5
    )
    both = rlx.grad(loss, argnums=(0, 1), device="cpu")(w, x)
    assert [g.shape for g in both] == [(3, 2), (5, 3)]


def test_grad_wants_a_scalar():
    with pytest.raises(ShapeError, match="rank-0"):
        rlx.grad(lambda x: x * 2, device="cpu")(np.ones(3, np.float32))


def test_jit_inside_jit_inlines():
    inner = rlx.jit(lambda x: x + 1, device="cpu")
    outer = rlx.jit(lambda x: inner(x) * 2, device="cpu")
    np.testing.assert_array_equal(outer(np.float32([1, 2])), [4, 6])


def test_containers_nested_too_deep_are_refused():
    itself = []
    itself.append(itself)
    deep = fits = np.ones(2, np.float32)
    for _ in range(10_000):
        deep = [deep]
    for _ in range(90):
        fits = [fits]
    for given in (itself, deep, {"k": deep}):
        with pytest.raises(GraphError, match="containers are nested more than 100 deep; does a"):
            rlx.jit(device="cpu")(lambda x: x)(given)
    found = rlx.jit(device="cpu")(lambda x: x)(fits)
    for _ in range(90):
        (found,) = found
    assert found.tolist() == [1, 1]
