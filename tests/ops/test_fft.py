"""rlx.fft against numpy.fft on complex arrays: names, lengths, axes, norms, and what is refused."""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.cpu.host import fft as kernels
from rlx.errors import DTypeError, RlxError, ShapeError
from rlx.ir import Graph, Tensor
from tests.full import sampled

Array = np.ndarray[Any, np.dtype[Any]]
RNG = np.random.default_rng(12)


def _pairs(z: Array) -> Array:
    return np.stack([z.real, z.imag], -1)


def _complex(x: Array) -> Array:
    return np.asarray(x[..., 0] + 1j * x[..., 1])


def _normal(*shape: int, dtype: Any = np.float64) -> Array:
    return RNG.standard_normal(shape).astype(dtype)


def _said(name: str) -> dict[str, bool]:
    """The argument that says that a last axis of 2 holds pairs, for functions that take real numbers too."""
    return {} if name.startswith(("rfft", "ihfft")) else {"pairs": True}


def _same(made: Any, want: Array, tolerance: float = 1e-12) -> None:
    want = _pairs(want) if np.iscomplexobj(want) else want
    assert made.shape == want.shape
    np.testing.assert_allclose(made, want, rtol=0, atol=tolerance * max(1.0, float(np.max(np.abs(want)))))


@pytest.mark.parametrize("norm", [None, "backward", "ortho", "forward"])
@pytest.mark.parametrize("name", ["fft", "ifft", "irfft", "hfft", "rfft", "ihfft"])
@pytest.mark.sample(4)
def test_one_axis(name: str, norm: Any) -> None:
    x = _normal(4, 5, 3) if name in ("rfft", "ihfft") else _normal(4, 5, 3, 2)
    given = x if name in ("rfft", "ihfft") else _complex(x)
    pairs = list(itertools.product((0, 1, -1, -3), (None, 1, 4, 9, 5)))
    for axis, n in sampled(pairs, most=10):
        made = rlx.jit(lambda t, n=n, axis=axis: getattr(rlx.fft, name)(t, n, axis, norm, **_said(name)))(x)
        _same(made, getattr(np.fft, name)(given, n, axis, norm))


@pytest.mark.parametrize("name", ["fft2", "ifft2", "fftn", "ifftn", "irfft2", "irfftn", "rfft2", "rfftn"])
def test_several_axes(name: str) -> None:
    real = name.startswith("rfft")
    x = _normal(4, 5, 3) if real else _normal(4, 5, 3, 2)
    given = x if real else _complex(x)
    for s, axes in ((None, None), (None, (0, 1)), ((2, 6), (0, 2)), ((7, 3), (-1, 0)), ((4,), (1,))):
        keys: dict[str, Any] = {} if axes is None else {"s": s, "axes": axes}
        for norm in (None, "ortho"):
            call = functools.partial(getattr(rlx.fft, name), **keys, norm=norm, **_said(name))
            made = rlx.jit(lambda t, call=call: call(t))(x)
            _same(made, getattr(np.fft, name)(given, **keys, norm=norm))


def test_lengths_alone_are_those_of_the_last_axes() -> None:
    x = _normal(2, 3, 4, 2)
    made = rlx.jit(lambda t: rlx.fft.fftn(t, (5, 2), pairs=True))(x)
    _same(made, np.fft.fftn(_complex(x), (5, 2), (-2, -1)))


def test_other_dtypes_are_computed_in_f32() -> None:
    for dtype in (np.float16, np.int32, np.uint8, np.bool_):
        x = RNG.integers(0, 2, (2, 8)).astype(dtype)
        made = rlx.jit(rlx.fft.rfft)(x)
        assert made.dtype == np.float32
        _same(made, np.fft.rfft(x.astype(np.float64)), 1e-6)


@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 1.2e-7), (np.float64, 2.3e-16)])
def test_every_kind_of_length_is_within_rounding_of_the_judge(dtype: Any, tolerance: float) -> None:
    """The relative error of a whole line, at most a unit in the last place for each binary digit of its length."""
    judge = importlib.import_module("scipy.fft")
    lengths = [*range(1, 70), *range(70, 4097, 97), 509, 1021, 2048, 4093, 4096, 65537, 1 << 17]
    for n in lengths if dtype == np.float32 else sampled(lengths, most=40):
        x = _normal(1, n, 2, dtype=dtype)
        made = rlx.jit(lambda t: rlx.fft.fft(t, pairs=True))(x)
        want = _pairs(judge.fft(_complex(x.astype(np.float64))))
        assert np.linalg.norm(made - want) <= tolerance * (1 + np.log2(n)) * np.linalg.norm(want), n


@pytest.mark.parametrize("library", ["scipy.fft", "numpy.fft"])
def test_the_cpu_takes_either_library(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "library", lambda: importlib.import_module(library))
    for dtype, tolerance in ((np.float32, 2e-6), (np.float64, 1e-13)):
        x = _normal(3, 40, dtype=dtype)
        for norm in ("backward", "ortho", "forward"):
            z = rlx.jit(lambda t, norm=norm: rlx.fft.rfft(t, norm=norm))(x)
            assert z.dtype == dtype
            _same(z, np.fft.rfft(x.astype(np.float64), norm=norm), tolerance)
            _same(rlx.jit(lambda t, norm=norm: rlx.fft.irfft(t, norm=norm))(z), x, tolerance)
            _same(
                rlx.jit(lambda t, norm=norm: rlx.fft.ifft(t, norm=norm, pairs=True))(z),
                np.fft.ifft(_complex(z), norm=norm),
                tolerance,
            )


def test_a_transform_and_its_inverse_are_the_identity_and_its_gradient() -> None:
    x = _normal(3, 7, 2)

    def there_and_back(t: Tensor) -> Tensor:
        return rlx.fft.ifft(rlx.fft.fft(t, norm="ortho", pairs=True), norm="ortho", pairs=True)

    _same(rlx.jit(there_and_back)(x), x)
    weight = _normal(3, 7, 2)
    d = rlx.grad(lambda t: rlx.sum(there_and_back(t) * weight))(x)
    _same(d, weight)


def test_frequencies_and_shifts() -> None:
    for n in (1, 2, 5, 8):
        np.testing.assert_array_equal(rlx.fft.fftfreq(n, 0.1), np.fft.fftfreq(n, 0.1).astype(np.float32))
        assert rlx.fft.rfftfreq(n, dtype="f64").dtype == np.float64
        np.testing.assert_array_equal(rlx.fft.rfftfreq(n, 0.1, "f64"), np.fft.rfftfreq(n, 0.1))
    x = _normal(4, 5, 2)
    for axes in (None, 0, 1, (0, -1)):
        for name in ("fftshift", "ifftshift"):
            moved = rlx.jit(lambda t, axes=axes, name=name: getattr(rlx.fft, name)(t, axes, pairs=True))(x)
            _same(moved, getattr(np.fft, name)(_complex(x), axes))
    _same(rlx.jit(lambda t: rlx.fft.fftshift(t, pairs=False))(x), np.fft.fftshift(x))
    np.testing.assert_array_equal(rlx.fft.fftshift(rlx.fft.fftfreq(5)), np.fft.fftshift(rlx.fft.fftfreq(5)))


def test_arithmetic_of_pairs() -> None:
    a, b = _normal(3, 4, 2), _normal(4, 2)
    _same(rlx.jit(rlx.fft.multiply)(a, b), _complex(a) * _complex(b))
    _same(rlx.jit(rlx.fft.conj)(a), _complex(a).conj())
    _same(rlx.jit(rlx.fft.power)(a), np.abs(_complex(a)) ** 2)
    _same(rlx.jit(rlx.fft.pair)(a[..., 0], a[..., 1]), _complex(a))
    _same(rlx.jit(rlx.fft.pair)(a[..., 0]), a[..., 0] + 0j)
    _same(rlx.jit(rlx.fft.real)(a), a[..., 0])
    _same(rlx.jit(rlx.fft.imag)(a), a[..., 1])


@pytest.mark.parametrize("name", ["fft", "ifft", "fft2", "ifft2", "fftn", "ifftn", "irfft", "hfft", "irfft2", "irfftn"])
def test_of_real_numbers_as_numpy(name: str) -> None:
    x = np.random.default_rng(5).standard_normal((4, 6))
    for array in (x, x.astype(np.float32), np.arange(24).reshape(4, 6)):
        want = getattr(np.fft, name)(array)
        for call in (getattr(rlx.fft, name), rlx.jit(getattr(rlx.fft, name))):
            got = np.asarray(call(array))
            assert got.shape == want.shape and got.dtype.kind == want.dtype.kind
            np.testing.assert_allclose(got, want, atol=1e-12 if array.dtype == np.float64 else 1e-4)


def test_of_real_numbers_go_through_transformations() -> None:
    x = np.random.default_rng(6).standard_normal((4, 6))
    np.testing.assert_allclose(rlx.grad(lambda x: rlx.sum(rlx.abs(rlx.fft.fft(x)) ** 2))(x), 12 * x)
    np.testing.assert_allclose(np.asarray(rlx.vmap(rlx.fft.fft)(x)), np.fft.fft(x), atol=1e-12)
    twice = np.array([1.0, 2, 2, 0, 0, 0])
    turned = rlx.jit(lambda x: rlx.abs(rlx.fft.ifft(rlx.fft.fft(x) * twice)))(x)
    np.testing.assert_allclose(turned, np.abs(np.fft.ifft(np.fft.fft(x) * twice)), atol=1e-12)
    np.testing.assert_array_equal(rlx.fft.fftshift(rlx.array(x)), np.fft.fftshift(x))


def test_magnitudes_neither_overflow_nor_vanish_and_have_a_gradient_at_zero() -> None:
    z = np.array([[3e30, 4e30], [3e-30, -4e-30], [0, 0], [np.inf, 1], [np.nan, 0], [0, -2]], np.float32)
    want = np.array([5e30, 5e-30, 0, np.inf, np.nan, 2], np.float32)
    np.testing.assert_allclose(rlx.jit(rlx.fft.absolute)(z), want, rtol=1e-6)
    d = rlx.grad(lambda t: rlx.sum(rlx.fft.absolute(t)))(z[[0, 1, 2, 5]])
    np.testing.assert_allclose(d, [[0.6, 0.8], [0.6, -0.8], [0, 0], [0, -1]], rtol=1e-5, atol=1e-6)


def _made(call: Callable[[Tensor], Any], *shape: int) -> Any:
    return call(Graph("bad").input("x", shape))


@pytest.mark.parametrize(
    "call, shape, error, message",
    [
        (rlx.fft.fft, (), ShapeError, "as pairs"),
        (lambda x: rlx.fft.fft(x, pairs=True), (0, 2), ShapeError, "at least one element along axis -1"),
        (lambda x: rlx.fft.fft(x, 4, pairs=True), (0, 2), ShapeError, "at least one element"),
        (lambda x: rlx.fft.fft(x, 0, pairs=True), (4, 2), ShapeError, "expected an integer from 1"),
        (lambda x: rlx.fft.fft(x, 2.5, pairs=True), (4, 2), ShapeError, "length of the transform is 2.5"),
        (lambda x: rlx.fft.fft(x, -3, pairs=True), (4, 2), ShapeError, "length of the transform is -3"),
        (lambda x: rlx.fft.fft(x, axis=1, pairs=True), (4, 2), ShapeError, "axis 1 is out of range"),
        (lambda x: rlx.fft.fft(x, norm="unit", pairs=True), (4, 2), ShapeError, "norm is 'unit'"),
        (rlx.fft.irfft, (1, 2), ShapeError, r"give n \(n=1 for a single one\)"),
        (lambda x: rlx.fft.fft(x, pairs=True), (2,), ShapeError, r"one pair.*reshape it to \(1, 2\)"),
        (lambda x: rlx.fft.fft2(x, pairs=True), (2,), ShapeError, r"one pair.*reshape it to \(1, 2\)"),
        (rlx.fft.rfft, (), ShapeError, r"a single number.*reshape it to \(1,\)"),
        (lambda x: rlx.fft.fftn(x, axes=(0, 0), pairs=True), (4, 4, 2), ShapeError, "twice"),
        (lambda x: rlx.fft.fftn(x, axes=(0, -2), pairs=True), (4, 4, 2), ShapeError, "twice"),
        (lambda x: rlx.fft.fftn(x, axes=(), pairs=True), (4, 4, 2), ShapeError, "at least one axis"),
        (lambda x: rlx.fft.fftn(x, (1, 2, 3), pairs=True), (4, 4, 2), ShapeError, "3 lengths"),
        (lambda x: rlx.fft.fftn(x, (1, 2), (0,), pairs=True), (4, 4, 2), ShapeError, "2 lengths for 1 axes"),
        (lambda x: rlx.fft.fft2(x, pairs=True), (4, 2), ShapeError, "out of range"),
        (lambda x: rlx.fft.fftshift(x, pairs=True), (4, 3), ShapeError, "as pairs"),
        (lambda x: rlx.fft.fftfreq(0), (4,), ShapeError, "expected an integer from 1"),
        (lambda x: rlx.fft.fftfreq(4, 0.0), (4,), ShapeError, "spacing"),
        (lambda x: rlx.fft.fftfreq(4, 1j), (4,), ShapeError, "spacing"),
        (lambda x: rlx.fft.fftshift(np.ones(3), 5), (4,), ShapeError, "axis"),
        (lambda x: rlx.fft.fftfreq(4, dtype="f16"), (4,), DTypeError, "expected f32 or f64"),
        (lambda x: rlx.fft.multiply(x, x[..., 0]), (4, 3, 2), ShapeError, "as pairs"),
    ],
)
def test_refused(call: Any, shape: tuple[int, ...], error: type[RlxError], message: str) -> None:
    with pytest.raises(error, match=message):
        _made(call, *shape)


@pytest.mark.parametrize("name", ["fft", "ifft", "fftn", "ifftn", "fft2", "ifft2", "fftshift", "ifftshift"])
def test_a_last_axis_of_two_is_pairs_or_real_numbers_as_the_caller_says(name: str) -> None:
    """It may be either, and NumPy's users mean real numbers: nothing is guessed, eagerly, traced or mapped."""
    function, theirs = getattr(rlx.fft, name), getattr(np.fft, name)
    x = _normal(3, 4, 2)
    for call in (function, rlx.jit(function), rlx.vmap(function)):
        if call is function and name.endswith("shift"):
            continue  # of NumPy arrays it is NumPy's
        with pytest.raises(ShapeError, match=r"may hold pairs .* write pairs=True or pairs=False"):
            call(x)
    want = theirs(x)
    np.testing.assert_allclose(np.asarray(rlx.jit(lambda t: function(t, pairs=False))(x)), want, atol=1e-12)
    _same(rlx.jit(lambda t: function(t, pairs=True))(x), theirs(_complex(x)))
    np.testing.assert_allclose(np.asarray(function(_complex(x))), theirs(_complex(x)), atol=1e-12)
    np.testing.assert_allclose(np.asarray(function(rlx.view_as_complex(rlx.array(x)))), theirs(_complex(x)), atol=1e-12)


@pytest.mark.parametrize("name", ["irfft", "hfft", "irfftn", "irfft2"])
def test_halves_of_spectra_are_pairs_unless_they_are_said_to_be_real(name: str) -> None:
    x = _normal(3, 4, 2)
    np.testing.assert_allclose(getattr(rlx.fft, name)(x), getattr(np.fft, name)(_complex(x)), atol=1e-12)
    np.testing.assert_allclose(getattr(rlx.fft, name)(x, pairs=False), getattr(np.fft, name)(x), atol=1e-12)


def test_the_op_itself_takes_f32_and_f64_alone() -> None:
    x = Graph("half").input("x", (4, 2), "f16")
    with pytest.raises(DTypeError, match="expected f32 or f64"):
        x.graph.add("fft", (x,), {"n": 4, "inverse": False, "scale": 1.0})
    y = x.graph.input("y", (4, 2))
    with pytest.raises(DTypeError, match="expected a bool and a float"):
        x.graph.add("fft", (y,), {"n": 4, "inverse": 1, "scale": 1.0})
