"""Functions transformed anew in each call, as `rlx.grad(f)(x)`: one program for equal graphs, what they close over is
read in each call, and neither programs nor functions stay."""

from __future__ import annotations

import gc
import importlib
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.runtime import shared
from rlx.runtime.shared import SHARED, graph_key

RNG = np.random.default_rng(0)
X = RNG.standard_normal(5)


def _square(x: Any) -> Any:
    return rlx.sum(x * x)


CALLS: dict[str, tuple[Callable[[], Any], Any]] = {
    "grad": (lambda: rlx.grad(_square)(X), 2 * X),
    "grad of a new function": (lambda: rlx.grad(lambda x: _square(x) * 3.0)(X), 6 * X),
    "jvp": (lambda: rlx.jvp(_square, (X,), (X,))[1], 2 * X @ X),
    "vjp": (lambda: rlx.vjp(_square, X)[1](np.float64(2.0))[0], 4 * X),
    "hvp": (lambda: rlx.hvp(_square, (X,), (X,)), 2 * X),
    "hessian": (lambda: rlx.hessian(_square)(X), 2 * np.eye(5)),
    "jacfwd": (lambda: rlx.jacfwd(lambda x: x * x)(X), np.diag(2 * X)),
    "vmap": (lambda: rlx.vmap(_square)(np.stack([X, 2 * X])), np.array([X @ X, 4 * (X @ X)])),
    "vmap of a loop": (
        lambda: rlx.vmap(lambda x: rlx.fori_loop(0, 3, lambda i, c: c + x, x))(X),
        4 * X,
    ),
    "checkpoint": (lambda: rlx.checkpoint(_square)(X), X @ X),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_second_call_compiles_nothing(name: str) -> None:
    call, want = CALLS[name]
    np.testing.assert_allclose(call(), want, rtol=1e-14)
    before = SHARED.compiled
    np.testing.assert_allclose(call(), want, rtol=1e-14)
    assert SHARED.compiled == before


def test_what_a_function_closes_over_is_read_in_each_call() -> None:
    """As where every op computes at once. Constants that change are inputs of one program from the second value on."""
    before = SHARED.compiled
    for step in range(5):
        data, rate = RNG.standard_normal((4, 5)), 0.5 + step
        got = rlx.grad(lambda x, data=data, rate=rate: rlx.sum((data @ x) ** 2) * rate)(X)  # type: ignore[misc]
        np.testing.assert_allclose(got, 2 * rate * data.T @ (data @ X), rtol=1e-12)
    assert SHARED.compiled <= before + 2


def test_a_function_that_is_kept_reads_it_once_as_jit_does() -> None:
    scale = [2.0]
    kept = rlx.grad(lambda x: rlx.sum(x) * scale[0])
    first = kept(X)
    scale[0] = 3.0
    np.testing.assert_array_equal(kept(X), first)


@pytest.mark.parametrize(
    "one, other",
    [
        (lambda x: rlx.sum(x / 0.0), lambda x: rlx.sum(x / -0.0)),
        (lambda x: rlx.sum(x[:3]), lambda x: rlx.sum(x[1:4])),
        (lambda x: rlx.sum(rlx.cumsum(x)), lambda x: rlx.sum(rlx.cumprod(x))),
        (lambda x: rlx.scan(lambda c, _: (c * 2.0, None), x, length=2)[0].sum(),
         lambda x: rlx.scan(lambda c, _: (c * 3.0, None), x, length=2)[0].sum()),
        (lambda x: rlx.cast(x, "f16") * 2.0, lambda x: rlx.cast(x, "bf16") * 2.0),
    ],
)  # fmt: skip
def test_other_graphs_have_other_keys(one: Any, other: Any) -> None:
    keys = [graph_key(rlx.jit(f).graph(X.astype(np.float32))) for f in (one, one, other)]
    assert keys[0] == keys[1] and hash(keys[0]) == hash(keys[1])
    assert keys[0] != keys[2]


def test_no_more_programs_stay_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "PROGRAMS", 4)
    own = shared.SharedPrograms()
    monkeypatch.setattr(importlib.import_module("rlx.runtime.jit"), "SHARED", own)
    for n in range(1, 8):
        np.testing.assert_array_equal(rlx.grad(_square)(np.ones(n)), np.full(n, 2.0))
    assert len(own) == 4 and len(own._seen) == 4 and own.compiled == 7
    rlx.grad(_square)(np.ones(7))
    assert own.compiled == 7
    monkeypatch.setattr(shared, "PROGRAM_BYTES", 1)
    rlx.grad(_square)(np.ones(9))
    assert len(own) == 1


class _Model:
    def __init__(self) -> None:
        self.w = np.ones(3)

    def loss(self, x: Any) -> Any:
        return rlx.sum(x * self.w)


def _differentiated() -> weakref.ref[_Model]:
    model = _Model()
    rule = rlx.custom_vjp(model.loss)
    rule.defvjp(lambda x: (model.loss(x), x), lambda x, ct: (ct * x,))
    rlx.grad(rule)(np.ones(3))
    rlx.grad(rlx.checkpoint(model.loss))(np.ones(3))
    rlx.jvp(model.loss, (np.ones(3),), (np.ones(3),))
    return weakref.ref(model)


def test_no_program_keeps_a_function_alive() -> None:
    gone = _differentiated()
    gc.collect()
    assert gone() is None
