"""Calls of small jitted functions on the memory of their arguments: the bits of a recorded run, and nobody else's
memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.cpu import choice
from rlx.errors import ArenaError, DTypeError
from rlx.runtime.compiled import CompiledGraph

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "one result": (lambda x: rlx.tanh(x) * 2.0 + 1.0, (X,)),
    "a tree": (lambda x, w: {"y": x @ w, "z": (rlx.sum(x), w[0])}, (X, X.T.copy())),
    "rank 0": (lambda x: rlx.mean(x * x), (X,)),
    "no elements": (lambda x: x[:0] + 1, (X,)),
    "an argument again": (lambda x: (x, x + 1), (X,)),
    "a view": (lambda x: x.reshape(12), (X,)),
    "other dtypes": (lambda x: (x > 0, x.astype("f16"), x.astype("bf16"), rlx.argmax(x, axis=1)), (X,)),
    "numbers": (lambda x, a, b: x * a + rlx.where(x > b, 1.0, a), (X, 0.25, -1)),
    "a number of two dtypes": (lambda x, a: (x * a, x.astype("f16") * a, x.astype("f64") * a), (X, 0.1)),
    "an index": (lambda x, at: rlx.take(x, at, axis=0), (X, np.array([2, 0, 7]))),
    "a loop": (lambda x: rlx.scan(lambda c, v: (c + v, c * v), x[0], x)[1], (X,)),
    "complex numbers": (lambda x, a: (x * x * a, rlx.abs(x)), (X + 1j * X[::-1], 0.5)),
    "a result that is a number": (lambda x, n: (x * n, n + 1), (X, 3)),
}


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(choice.ENGINE_ENV, "" if choice.why_not() else "compiled")  # NumPy's steps have no addresses


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the recorded programs that ran."""
    seen: list[str] = []
    run = CompiledGraph.run

    def counted(self: CompiledGraph, *args: Any, **kwargs: Any) -> Any:
        seen.append(self.graph.name)
        return run(self, *args, **kwargs)

    monkeypatch.setattr(CompiledGraph, "run", counted)
    return seen


def same(ours: Any, theirs: Any) -> None:
    pairs = zip(rlx.tree.leaves(ours), rlx.tree.leaves(theirs), strict=True)
    for a, b in pairs:
        assert type(a) is type(b)
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b), strict=True)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("out", ["host", "device"])
def test_later_calls_give_the_bits_of_the_first(name: str, out: Any) -> None:
    function, args = FUNCTIONS[name]
    f = rlx.jit(function, device="cpu", out=out)
    arrays = [rlx.array(a, device="cpu") if isinstance(a, np.ndarray) else a for a in args]
    for given in (args, arrays):
        first = f(*given)  # a recorded program; from the second call on the arguments' memory
        same(f(*given), first)
        same(f(*given), first)
    assert f.cache_info()["size"] == 1
    assert "cpu" in str(f.report())


def test_a_small_function_does_not_run_its_recorded_program_again(runs: list[str]) -> None:
    if choice.why_not():
        pytest.skip("the CPU's engine is not here")
    f = rlx.jit(lambda x: x * 2.0 + 1.0, device="cpu")
    for _ in range(3):
        np.testing.assert_array_equal(f(X), X * 2 + 1)
    assert len(runs) == 1
    g = rlx.jit(lambda x: x * 2.0 + 1.0, device=rlx.Session("cpu"))  # whose limits and options are the user's
    for _ in range(3):
        g(X)
    assert len(runs) == 4


def test_results_and_arguments_are_each_their_own_memory() -> None:
    f = rlx.jit(lambda x: x + 1, device="cpu")
    x = X.copy()
    f(x)
    first, second = f(x), f(x)
    x[...] = 0
    first[...] = 7
    np.testing.assert_array_equal(second, X + 1)
    np.testing.assert_array_equal(f(x), np.ones_like(X))
    np.testing.assert_array_equal(f(X[:, ::-1]), X[:, ::-1] + 1)  # in another order
    assert f(X.astype("f8")).dtype == np.float64
    read_only = X.copy()
    read_only.flags.writeable = False
    np.testing.assert_array_equal(f(read_only), X + 1)


def test_each_call_has_its_own_numbers_and_their_errors() -> None:
    f = rlx.jit(lambda x, n: x * n, device="cpu")
    x = rlx.array(np.ones(3, np.int32), device="cpu")
    for n in (1, 2, -5, 1 << 20):
        np.testing.assert_array_equal(f(x, n), np.full(3, n, np.int32))
    with pytest.raises(DTypeError, match="is not a value of i32"):
        f(x, 1 << 40)
    y = rlx.array(np.ones(3), device="cpu")
    np.testing.assert_array_equal(f(y, 2), [2.0] * 3)
    with pytest.raises(DTypeError):
        f(y, 1 << 70)  # as a constant of a program
    with pytest.raises(DTypeError):
        y * (1 << 70)


def test_an_array_that_is_gone_says_so() -> None:
    f = rlx.jit(lambda x: x + 1, device="cpu", out="device")
    x = rlx.array(X, device="cpu")
    f(x), f(x)
    x.close()
    with pytest.raises(ArenaError, match="was closed"):
        f(x)


def test_a_call_within_a_trace_is_inlined_after_calls_of_arrays() -> None:
    f = rlx.jit(lambda x: x * x, device="cpu")
    x = rlx.array(X, device="cpu")
    f(x), f(x)
    outer = rlx.jit(lambda v: f(v) + f(x), device="cpu")
    np.testing.assert_array_equal(outer(X), X * X * 2)
    np.testing.assert_allclose(rlx.grad(lambda v: rlx.sum(f(v)))(X), 2 * X)
