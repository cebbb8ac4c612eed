"""Draws with parameters, of fixed keys, beside the distributions that SciPy states; conv's other names beside torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.dtypes import as_dtype
from rlx.errors import DTypeError, ShapeError
from rlx.ir import Graph
from rlx.ops.interpret import evaluate
from rlx.random import categorical, choice, key, truncated_normal

K = key(7)
COUNT = 20_000
# 20,000 draws of the right distribution differ from it by more than this once in 10^6 sets of draws (Kolmogorov).
_FAR = 2.7 / COUNT**0.5


def drawn(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What a draw gives, by the ops' references."""
    g = Graph("draw")
    t = function(g.input("key", (2,), "i32"), *args, **options)
    return evaluate(g, {"key": K}, upcast=False)[t.id]


@pytest.mark.parametrize(("low", "high", "dtype"), [
    (-1.0, 2.0, "f32"), (4.0, np.inf, "f32"), (-np.inf, -4.0, "f64"), (0.5, 0.6, "f32"), (-np.inf, np.inf, "f64"),
    (9.0, 11.0, "f32"),
])  # fmt: skip
def test_truncated_normal_is_the_normal_distribution_within_its_ends(low: float, high: float, dtype: str) -> None:
    from scipy.special import ndtr

    x = drawn(truncated_normal, low, high, (COUNT,), dtype)
    assert x.min() >= low and x.max() <= high and x.dtype == as_dtype(dtype).np
    sign = -1.0 if low > 0 else 1.0  # towards the tail where ndtr has small numbers
    a, b, ordered = *sorted((sign * low, sign * high)), np.sort(sign * x.astype(np.float64))
    expected = (ndtr(ordered) - ndtr(a)) / (ndtr(b) - ndtr(a))
    steps = np.arange(COUNT + 1) / COUNT
    assert max(np.abs(expected - steps[1:]).max(), np.abs(expected - steps[:-1]).max()) < _FAR
    assert len(np.unique(x)) > 0.9 * COUNT or high - low < 0.2


def test_truncated_normal_takes_its_ends_as_arrays() -> None:
    low, high = np.array([-1.0, 2.0, 3.0]), np.array([[0.0], [2.5]])
    x = drawn(truncated_normal, low, high, (500, 2, 3), "f64")
    assert (x >= low).all() and (x <= np.maximum(high, low)).all()
    np.testing.assert_array_equal(x[:, 0, 1:], np.broadcast_to(low[1:], (500, 2)))  # beyond the upper end
    assert drawn(truncated_normal, low, high).shape == (2, 3)


def test_categorical_has_the_probabilities_of_softmax() -> None:
    shares = np.array([[0.1, 0.0, 0.2, 0.7], [0.25, 0.25, 0.5, 0.0]])
    logits = np.log(shares, out=np.full((2, 4), -np.inf), where=shares > 0)
    x = drawn(categorical, logits, shape=(COUNT, 2))
    assert x.dtype == np.int32
    for row, expected in enumerate(shares):
        seen = np.bincount(x[:, row], minlength=4) / COUNT
        np.testing.assert_allclose(seen, expected, atol=5 * 0.5 / COUNT**0.5)
        assert (seen[expected == 0] == 0).all()
    assert drawn(categorical, logits.T, axis=0).shape == (2,)


def test_categorical_without_replacement_draws_each_class_once() -> None:
    x = drawn(categorical, np.zeros((3, 5)), shape=(5, 3), replace=False)
    np.testing.assert_array_equal(np.sort(x, 0), np.arange(5)[:, None].repeat(3, 1))


@pytest.mark.parametrize("p", [None, np.array([0.1, 0.0, 0.6, 0.3]), np.array([1.0, 0.0, 6.0, 3.0], np.float32)])
def test_choice_has_its_probabilities(p: Any) -> None:
    x = drawn(choice, 4, (COUNT,), p=p)
    shares = np.full(4, 0.25) if p is None else p / p.sum()
    seen = np.bincount(x, minlength=4) / COUNT
    np.testing.assert_allclose(seen, shares, atol=5 * 0.5 / COUNT**0.5)
    assert (seen[shares == 0] == 0).all()


def test_choice_without_replacement_takes_none_twice_and_the_likely_ones_first() -> None:
    assert sorted(drawn(choice, 9, (9,), replace=False)) == list(range(9))
    p = np.array([0.0, 0.5, 0.5, 0.0])
    assert sorted(drawn(choice, 4, (2,), replace=False, p=p)) == [1, 2]
    x = np.arange(10.0).reshape(2, 5)
    y = drawn(choice, x, (3, 2), axis=1)
    assert y.shape == (2, 3, 2)
    np.testing.assert_array_equal(y[1], y[0] + 5)


@pytest.mark.parametrize("call", [
    lambda k: choice(k, 3, (4,), replace=False), lambda k: choice(k, 3, (), p=[0.5, 0.5]), lambda k: choice(k, 0, (1,)),
    lambda k: categorical(k, np.zeros((2, 3)), shape=()), lambda k: truncated_normal(k, 1.0, 1.0),
    lambda k: categorical(k, np.zeros(3), shape=(4,), replace=False),
    lambda k: truncated_normal(k, np.zeros(3), 1.0, ()),
    lambda k: choice(np.zeros((3, 2), np.int32), 4),
])  # fmt: skip
def test_draws_that_cannot_be_are_refused(call: Callable[[Any], Any]) -> None:
    with pytest.raises(ShapeError, match=r"random\.\w+: .*expected"):
        call(K)


@pytest.mark.parametrize(("size", "kernel", "stride", "dilation"), [
    (7, 3, 1, 1), (8, 4, 1, 1), (8, 4, 3, 1), (9, 2, 2, 3), (5, 5, 5, 1), (6, 1, 4, 1),
])  # fmt: skip
@pytest.mark.parametrize("padding", ["same", "SAME_LOWER", "valid"])
def test_conv_pads_by_a_word(size: int, kernel: int, stride: int, dilation: int, padding: str) -> None:
    """As the definition has it: ⌈size / stride⌉ windows, the padding as even as can be."""
    x, w = np.arange(size) % 3 + 1.0, np.arange(kernel) + 1.0
    reach = dilation * (kernel - 1) + 1
    count = -(-size // stride) if padding != "valid" else (size - reach) // stride + 1
    total = max((count - 1) * stride + reach - size, 0) if padding != "valid" else 0
    before = total // 2 if padding == "same" else total - total // 2
    padded = np.zeros(size + total)
    padded[before : before + size] = x
    expected = [sum(w[k] * padded[i * stride + k * dilation] for k in range(kernel)) for i in range(count)]
    g = Graph("conv")
    y = rlx.conv(g.input("x", (1, 1, size), "f64"), w[None, None], stride=stride, padding=padding, dilation=dilation)
    np.testing.assert_allclose(evaluate(g, {"x": x[None, None]})[y.id][0, 0], expected)


def test_conv_has_one_of_two_names() -> None:
    g = Graph("conv")
    x, w = g.input("x", (1, 1, 9)), np.ones((1, 1, 3), np.float32)
    assert rlx.conv(x, w, stride=2, padding=1).type == rlx.conv(x, w, strides=2, pads=1).type
    assert rlx.conv_transpose(x, w, stride=2, padding=1).type == rlx.conv_transpose(x, w, strides=2, pads=1).type
    for options in ({"stride": 2, "strides": 2}, {"pads": 1, "padding": "same"}, {"dilation": 2, "dilations": 1}):
        with pytest.raises(ShapeError, match="two names of one argument"):
            rlx.conv(x, w, **options)
    with pytest.raises(ShapeError, match="expected 'same', 'same_lower', 'valid', or numbers"):
        rlx.conv(x, w, padding="full")
    with pytest.raises(DTypeError, match="expected a float"):
        truncated_normal(K, 0.0, 1.0, dtype="i32")
