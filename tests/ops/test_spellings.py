"""Keywords by NumPy's and JAX's names: each is ours, another name of ours, or listed as a hole."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import linalg, random, signal
from rlx.conformance.names import LACKING, NUMPY, OTHERS
from rlx.conformance.names_page import entries, ours
from rlx.errors import DTypeError, ShapeError
from rlx.ops.spellings import parameters, respelled

# Of arrays in memory, which rlx's are not, and of ufuncs' loops.
_MEMORY = {"out", "order", "subok", "casting", "signature", "device", "copy", "like"}
_LOOPS = {"where", "dtype", "axes", "axis", "keepdims"}
X = np.arange(12.0).reshape(3, 4) ** 1.5
RISING = X[:, 0] < 20.0


def lacking(module: str, name: str) -> set[str]:
    """The keywords of a function of NumPy that rlx's takes under no name."""
    theirs = getattr(importlib.import_module(module), name)
    mine = inspect.unwrap(eval(ours(module.partition(".")[2], name), {"rlx": rlx}))
    try:
        listed = inspect.signature(theirs).parameters.values()
    except ValueError:  # some functions in C have none
        return set()
    names = {p.name for p in listed if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)} - _MEMORY
    names -= _LOOPS if isinstance(theirs, np.ufunc) else set()
    return {n for n in names if not respelled(name, mine, {n: None}).keys() <= parameters(mine)}


@pytest.mark.parametrize("module, words", [
    *(("numpy", words) for words in NUMPY.values()), ("numpy.linalg", OTHERS["numpy.linalg"][1]),
    ("numpy.fft", OTHERS["numpy.fft"][1]),
])  # fmt: skip
def test_every_keyword_of_numpy_is_taken_or_a_hole_of_the_page(module: str, words: str) -> None:
    names = [theirs for theirs, mine in entries(words) if theirs == mine and ours(module.partition(".")[2], mine)]
    assert len(names) >= 5
    assert {n: lacking(module, n) for n in names if lacking(module, n)} == {
        n: set(LACKING[n].split()) for n in names if n in LACKING
    }


@pytest.mark.parametrize("got, wanted", [
    (lambda: rlx.std(a=X, axis=0, ddof=1), np.std(X, axis=0, ddof=1)),
    (lambda: rlx.array(X).var(ddof=1), np.var(X, ddof=1)),
    (lambda: rlx.jit(lambda x: x.var(axis=1, ddof=1))(X), np.var(X, axis=1, ddof=1)),
    (lambda: rlx.linspace(0, 1, num=3), np.linspace(0, 1, num=3)), (lambda: rlx.linspace(0, 1), np.linspace(0, 1)),
    (lambda: rlx.eye(N=2, M=3, k=1), np.eye(N=2, M=3, k=1)), (lambda: rlx.tile(A=X, reps=(2, 1)), np.tile(X, (2, 1))),
    (lambda: rlx.transpose(a=X, axes=(1, 0)), X.T), (lambda: rlx.full((2,), fill_value=3.0), np.full(2, 3.0)),
    (lambda: rlx.pad(array=X, pad_width=((1, 0), (0, 0)), constant_values=2.0),
     np.pad(X, ((1, 0), (0, 0)), constant_values=2.0)),
    (lambda: rlx.split(ary=X, indices_or_sections=2, axis=1)[1], np.split(X, 2, 1)[1]),
    (lambda: rlx.clip(X, a_min=1.0, a_max=5.0), np.clip(X, 1.0, 5.0)),
    (lambda: rlx.where(condition=X > 3, x=X, y=0.0), np.where(X > 3, X, 0.0)),
    (lambda: rlx.copysign(x1=X, x2=-1.0), np.copysign(X, -1.0)), (lambda: rlx.atan2(x1=X, x2=1.0), np.arctan2(X, 1.0)),
    (lambda: rlx.one_hot(x=np.array([2, 0]), num_classes=3), np.eye(3)[[2, 0]]),
    (lambda: rlx.leaky_relu(-X, negative_slope=0.5), -X / 2), (lambda: random.split(random.key(3), num=3)[2],
                                                               random.split(random.key(3), 3)[2]),
    (lambda: random.uniform(random.key(1), (4,), minval=2.0, maxval=3.0),
     random.uniform(random.key(1), (4,), 2.0, 3.0)),
    (lambda: rlx.cond(RISING[0], true_fun=lambda: X + 1.0, false_fun=lambda: X), X + 1.0),
    (lambda: rlx.while_loop(cond_fun=lambda x: x < 5.0, body_fun=lambda x: x * 2.0, init_val=np.float64(1.0)), 8.0),
    (lambda: rlx.scan(lambda c, x: (c + x, c), 0.0, X[0], unroll=2)[0], X[0].sum()),
    (lambda: rlx.einsum("ij->j", X, optimize=True), X.sum(0)), (lambda: rlx.sort(X[::-1], axis=0, stable=True), X),
    (lambda: signal.get_window("hann", Nx=8), signal.get_window("hann", 8)),
    (lambda: linalg.matrix_rank(A=X), 3), (lambda: rlx.grad(fun=rlx.sum)(X), np.ones_like(X)),
    (lambda: rlx.zeros_like(a=X, shape=(2, 2)), np.zeros((2, 2))),
])  # fmt: skip
def test_by_their_names(got: Callable[[], Any], wanted: Any) -> None:
    np.testing.assert_allclose(np.asarray(got()), np.asarray(wanted), rtol=1e-6)


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("name, options", [
    ("sum", {}), ("mean", {}), ("prod", {}), ("any", {}), ("all", {}), ("std", {}), ("var", {"ddof": 1}),
    ("max", {"initial": -5.0}), ("min", {"initial": 9.0}), ("sum", {"initial": 2.0}), ("prod", {"initial": 2.0}),
])  # fmt: skip
def test_reductions_of_what_counts(name: str, options: dict[str, float], jitted: bool) -> None:
    x = np.where(RISING[:, None], X, np.nan)  # what does not count may be anything
    for axis in (None, 0):
        def call(x: Any, counted: Any, axis: Any = axis) -> Any:
            return getattr(rlx, name)(x, axis=axis, where=counted, **options)

        got = (rlx.jit(call) if jitted else call)(x, RISING[:, None])
        wanted = getattr(np, name)(x, axis=axis, where=RISING[:, None], **options)
        np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-12)


def test_gradients_do_not_see_what_does_not_count() -> None:
    x, counted = np.array([1.0, np.inf, 3.0, 5.0]), np.array([True, False, True, True])
    slope = rlx.grad(lambda x: rlx.var(x, where=counted))(x)
    np.testing.assert_allclose(slope, [-4 / 3, 0, 0, 4 / 3], atol=1e-12)
    np.testing.assert_allclose(rlx.grad(lambda x: rlx.mean(x, where=counted))(x), [1 / 3, 0, 1 / 3, 1 / 3])


def test_dtype_is_what_it_is_computed_in() -> None:
    ints = np.array([1, 2, 4], np.int8)
    for name in ("mean", "std", "var", "cumsum", "cumprod", "sum", "prod"):
        got = getattr(rlx, name)(ints, dtype="f64")
        assert got.dtype == rlx.f64
        np.testing.assert_allclose(np.asarray(got), getattr(np, name)(ints, dtype=np.float64), rtol=1e-14)


@pytest.mark.parametrize("call, error, text", [
    (lambda: rlx.sum(X, 0, np.float64), DTypeError, "keepdims is <class 'numpy.float64'>; expected a bool"),
    (lambda: rlx.cumsum(X, 0, True), DTypeError, "True is not an rlx dtype"),
    (lambda: rlx.isin(X, X, True), TypeError, "positional argument"),
    (lambda: rlx.nan_to_num(X, True), DTypeError, "nan is True, NumPy's `copy`.*expected a number"),
    (lambda: rlx.histogram(X, 3, None, np.ones(X.size)), DTypeError, "density is .* expected a bool"),
    (lambda: rlx.sort(X, -1, "stable"), DTypeError, "descending is 'stable'; expected a bool"),
    (lambda: rlx.argmax(X, 0, np.int32), DTypeError, "keepdims is .* expected a bool"),
    (lambda: rlx.max(X, where=X > 1), ShapeError, "give initial="),
    (lambda: rlx.sum(X, where=X), DTypeError, "where is f64.*expected bool"),
    (lambda: rlx.sum(X[0], where=X > 1), ShapeError, "expected it to broadcast"),
    (lambda: rlx.std(X, ddof=1, correction=1), TypeError, "'ddof' and 'correction', which are one argument"),
    (lambda: rlx.sin(X, optimize=True), TypeError, "unexpected keyword argument 'optimize'"),
    (lambda: rlx.mean(X, dims=0), TypeError, "did you mean 'axis'"),
])  # fmt: skip
def test_what_is_no_keyword_is_refused(call: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()
