"""x.at[key].set(values) and the like, beside NumPy's assignment to elements and `ufunc.at`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import DTypeError, ShapeError
from rlx.runtime import eager

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 5))
KEYS: list[Any] = [
    1, -1, slice(1, 3), (slice(None), 2), (1, slice(1, 4)), slice(None, None, 2), slice(3, None, -1), np.array([0, 2]),
    [0, 2], (np.array([0, 2]), np.array([1, 3])), (slice(None), np.array([1, 1])), (..., 0), (None, 1),
    (np.array([[0], [2]]), np.array([1, 3])), (np.array([0, 2]), slice(None), None), X > 0.5,
    np.array([True, False, True, False]), slice(1, 1),
]  # fmt: skip
METHODS: dict[str, Callable[..., Any] | None] = {
    "set": None, "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
    "min": np.minimum, "max": np.maximum,
}  # fmt: skip


def _wanted(key: Any, values: Any, ufunc: Any, x: Any = X) -> Any:
    want = x.copy()
    if ufunc is None:
        want[key] = values
    else:
        ufunc.at(want, key, values)
    return want


@pytest.mark.parametrize("key", KEYS, ids=map(str, range(len(KEYS))))
def test_keys_as_numpy_has_them(key: Any) -> None:
    values = RNG.standard_normal(X[key].shape)
    for name, ufunc in METHODS.items():
        got = getattr(rlx.array(X, device="cpu").at[key], name)(values)
        np.testing.assert_allclose(np.asarray(got), _wanted(key, values, ufunc), rtol=1e-15)
    traced = rlx.jit(lambda x, v: (x.at[key].set(v), x.at[key].add(1.0), x.at[key].get()), device="cpu")(X, values)
    np.testing.assert_array_equal(traced[0], _wanted(key, values, None))
    np.testing.assert_allclose(traced[1], _wanted(key, 1.0, np.add), rtol=1e-15)
    np.testing.assert_array_equal(traced[2], X[key])


def test_indices_that_only_a_run_knows() -> None:
    one = rlx.jit(lambda x, i, v: x.at[i].set(v), device="cpu")
    np.testing.assert_array_equal(one(X, np.array([3, 0]), np.float64(7)), _wanted([3, 0], 7.0, None))
    np.testing.assert_array_equal(one(X, np.array([9, -9]), np.float64(7)), X)  # out of range: nothing
    pair = rlx.jit(lambda x, i, j: x.at[i, j].add(1.0), device="cpu")
    i, j = np.array([1, 1, -1]), np.array([2, 2, 0])  # the first place twice
    np.testing.assert_array_equal(pair(X, i, j), _wanted((i, j), 1.0, np.add))
    np.testing.assert_array_equal(pair(X, np.array([1, 9, 0]), np.array([2, 2, -6])), _wanted((1, 2), 1.0, np.add))
    part = rlx.jit(lambda x, i: x.at[i, 1:3].multiply(2.0), device="cpu")
    np.testing.assert_array_equal(part(X, np.int32(2)), _wanted((2, slice(1, 3)), 2.0, np.multiply))
    mask = rlx.jit(lambda x: x.at[x > 0].set(0.0), device="cpu")
    np.testing.assert_array_equal(mask(X), np.where(X > 0, 0, X))


def test_gradients_and_many_examples() -> None:
    slope = rlx.grad(lambda x, v: rlx.sum(x.at[1].set(v) ** 2), (0, 1), device="cpu")(X, X[0])
    want = 2 * X
    want[1] = 0
    np.testing.assert_array_equal(slope[0], want)
    np.testing.assert_array_equal(slope[1], 2 * X[0])
    rows = np.array([0, 1, 2, 3])
    many = rlx.vmap(lambda x, i: x.at[i].set(0.0), device="cpu")(X, rows)
    np.testing.assert_array_equal(many, _wanted((rows, rows), 0.0, None))
    np.testing.assert_array_equal(rlx.array(X).at[0].power(2.0).numpy(), _wanted(0, X[0] ** 2, None))
    np.testing.assert_array_equal(rlx.array(X).at[:, 1].apply(rlx.abs).numpy()[:, 1], np.abs(X[:, 1]))


def test_a_loop_over_places_compiles_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = eager.Cache()
    monkeypatch.setattr(eager, "CACHE", cache)
    x = rlx.array(np.zeros(9), device="cpu")
    for i in range(9):
        x = x.at[i].set(float(i))
    np.testing.assert_array_equal(x.numpy(), np.arange(9.0))
    assert len(cache.programs) == 1


@pytest.mark.parametrize(
    "use, kind, text",
    [
        (lambda x: x.at[9].set(1.0), ShapeError, "9 to 9 leave axis 0"),
        (lambda x: x.at[np.array([0, -7])].set(1.0), ShapeError, "axis 0 of"),
        (lambda x: x.at[0, 0, 0].set(1.0), ShapeError, "3 indices"),
        (lambda x: x.at[:3].set(np.ones(4)), ShapeError, "broadcast"),
        (lambda x: x.at[np.ones(3, bool)].set(1.0), ShapeError, "a mask of shape"),
        (lambda x: x.at[0].set(np.ones(9)), ShapeError, "broadcast"),
        (lambda x: x.at[np.array([0, 1])].add(np.ones(9)), ShapeError, "broadcast"),
        (lambda x: x.at[1.5].set(1.0), DTypeError, "an index is 1.5"),
        (lambda x: x.astype("i32").at[0].set(1.5), DTypeError, "cast one"),
        (lambda x: x.at[0].put(1.0), AttributeError, "it has set, add"),
        (lambda x: x.__setitem__(0, 1.0), TypeError, "x.at\\[key\\].set"),
    ],
)
def test_what_a_key_must_not_be(use: Any, kind: Any, text: str) -> None:
    with pytest.raises(kind, match=text):
        use(rlx.array(X, device="cpu"))


def test_created_arrays_have_at_outside_a_trace_as_inside() -> None:
    def filled(values: Any) -> Any:
        return rlx.zeros(3).at[np.array([0, 2, 0])].add(values)

    np.testing.assert_array_equal(filled(np.ones(3, np.float32)), [2, 0, 1])
    np.testing.assert_array_equal(rlx.jit(filled)(np.ones(3, np.float32)), [2, 0, 1])
    np.testing.assert_array_equal(rlx.arange(4).at[1:3].set(7), [0, 7, 7, 3])
    np.testing.assert_array_equal(rlx.eye(2).at[0].multiply(3.0), [[3, 0], [0, 1]])
    zeros = rlx.zeros(3)
    assert type(zeros + 1) is np.ndarray and isinstance(zeros.sum(), np.float32)
    assert repr(zeros) == repr(np.zeros(3, np.float32))
