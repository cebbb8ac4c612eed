"""Complex numbers beside NumPy: operators at once and in programs, Fourier transforms, gradients as JAX's."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import DTypeError, RlxError, ShapeError

RNG = np.random.default_rng(11)


def numbers(*shape: int, dtype: Any = np.complex128) -> Any:
    return (RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)).astype(dtype)


Z, W, X = numbers(3, 4), numbers(4), RNG.standard_normal((3, 4))
BINARY: list[Callable[[Any, Any], Any]] = [operator.add, operator.sub, operator.mul, operator.truediv]
UNARY: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "abs": (rlx.abs, np.abs), "angle": (rlx.angle, np.angle), "conj": (rlx.conj, np.conj), "real": (rlx.real, np.real),
    "imag": (rlx.imag, np.imag), "neg": (operator.neg, operator.neg), "sum": (rlx.sum, np.sum),
    "sum of an axis": (lambda z: rlx.sum(z, 1), lambda z: np.sum(z, 1)), "mean": (rlx.mean, np.mean),
    "reshape": (lambda z: rlx.reshape(z, (2, -1)), lambda z: np.reshape(z, (2, -1))),
    "transpose": (rlx.transpose, np.transpose),
    "degrees": (lambda z: rlx.angle(z, deg=True), lambda z: np.angle(z, True)),
    "rows": (lambda z: z[1:, 0], lambda z: z[1:, 0]),
    "attributes": (lambda z: z.real + z.imag, lambda z: z.real + z.imag),
    "ellipsis": (lambda z: z[..., -1], lambda z: z[..., -1]),
    "fft": (lambda z: rlx.fft.fft(z, axis=0), lambda z: np.fft.fft(z, axis=0)), "ifftn": (rlx.fft.ifftn, np.fft.ifftn),
    "irfft": (rlx.fft.irfft, np.fft.irfft),
    "shift": (lambda z: rlx.fft.fftshift(rlx.conj(z), 1), lambda z: np.fft.fftshift(z.conj(), 1)),
    "exp": (rlx.exp, np.exp), "log": (rlx.log, np.log), "sqrt": (rlx.sqrt, np.sqrt), "square": (rlx.square, np.square),
    "stack": (lambda z: rlx.stack([z, z * 2], -1), lambda z: np.stack([z, z * 2], -1)),
    "concat": (lambda z: rlx.concatenate([z, z[:1]]), lambda z: np.concatenate([z, z[:1]])),
    "where": (lambda z: rlx.where(X > 0, z, 0.0), lambda z: np.where(X > 0, z, 0.0)),
    "there and back": (lambda z: rlx.view_as_complex(rlx.view_as_real(z)), lambda z: z),
}  # fmt: skip


def close(found: Any, wanted: Any, limit: float = 1e-12) -> None:
    found = np.asarray(found)
    assert found.shape == np.shape(wanted) and found.dtype.kind == np.asarray(wanted).dtype.kind
    np.testing.assert_allclose(found, wanted, rtol=limit, atol=limit)


@pytest.mark.parametrize("op", BINARY)
def test_operators(op: Callable[[Any, Any], Any]) -> None:
    """Of complex, real and Python's numbers, on both sides."""
    program = rlx.jit(lambda a, b: op(a, b), device="cpu")
    for a, b in ((Z, W), (Z, X), (X, Z), (W, Z), (Z[0, 0], Z)):
        close(program(a, b), op(a, b))
        close(op(rlx.array(a), rlx.array(b)), op(a, b))
        close(op(rlx.array(a), b) if a.ndim else op(a, rlx.array(b)), op(a, b))
    for scalar in (2, 0.5, 1 - 2j):
        close(rlx.jit(lambda z, c=scalar: op(z, c), device="cpu")(Z), op(Z, scalar))
        close(rlx.jit(lambda z, c=scalar: op(c, z), device="cpu")(Z), op(scalar, Z))
    close(rlx.jit(lambda x: op(x, 2j), device="cpu")(X), op(X, 2j), 1e-6)
    single = program(Z.astype(np.complex64), W.astype(np.complex64))
    assert single.dtype == np.complex64
    close(single, op(Z, W), 2e-6)


@pytest.mark.parametrize("name", UNARY)
def test_functions(name: str) -> None:
    ours, numpys = UNARY[name]
    close(rlx.jit(lambda z: ours(z), device="cpu")(Z), numpys(Z))
    close(ours(rlx.array(Z)), numpys(Z))


def test_products_of_matrices() -> None:
    a, b = numbers(2, 3, 4), numbers(4, 5)
    program = rlx.jit(lambda a, b: a @ b, device="cpu")
    for x, y in ((a, b), (a, b.real), (a.real, b), (a[0, 0], b), (a, b[:, 0])):
        close(program(x, y), x @ y)
        close(rlx.matmul(x, y), x @ y)


def test_division_neither_overflows_nor_vanishes() -> None:
    big = np.array([1e300 + 1e300j, 1e-300 + 1e-300j, 3 + 0j])
    close(rlx.div(big, big), np.ones(3, complex))
    assert not np.isfinite(np.asarray(rlx.div(Z, np.zeros((), complex)))).any()


def test_roots_keep_their_digits_and_signs() -> None:
    z = np.array([0, 1, -1, 1j, -1j, -4, complex(-4, -1e-30), complex(1e-200, 1e-200), 1e-300, complex(-1e8, 1)])
    np.testing.assert_allclose(rlx.sqrt(z), np.sqrt(z), rtol=1e-15)
    slope = rlx.grad(lambda x: rlx.sum(rlx.abs(rlx.exp(rlx.complex(x, 2 * x)))))(np.array([0.3, -0.5]))
    np.testing.assert_allclose(slope, np.exp([0.3, -0.5]), rtol=1e-14)
    mixed = rlx.concat([Z, X])
    np.testing.assert_array_equal(mixed, np.concatenate([Z, X]))
    with pytest.raises(ShapeError, match="axis 5"):
        rlx.stack([Z, Z], 5)
    with pytest.raises(DTypeError, match="hstack: an argument is complex128"):
        rlx.hstack([Z, Z])


def test_comparison() -> None:
    other = Z * np.array([1, 1j, 1, 1])
    close(rlx.jit(lambda a, b: a == b, device="cpu")(Z, other), np.broadcast_to([True, False, True, True], (3, 4)))
    close(rlx.array(Z) != Z, np.zeros((3, 4), bool))


def test_arrays_both_ways() -> None:
    held = rlx.array(Z)
    assert isinstance(held, rlx.Complex) and held.dtype == np.complex128 and held.shape == (3, 4)
    np.testing.assert_array_equal(np.asarray(held), Z)
    assert np.asarray(rlx.array(Z.astype(np.complex64))).dtype == np.complex64
    close(rlx.complex(X, 2 * X), X + 2j * X)
    device = rlx.jit(lambda z: {"a": z * z, "b": rlx.abs(z)}, device="cpu", out="device")(Z)
    assert isinstance(device["a"], rlx.Complex)
    close(device["a"], Z * Z)


def test_gradients_are_jaxs() -> None:
    """Of a real function: its slope along x less i times that along y."""
    close(rlx.grad(lambda z: rlx.sum(rlx.abs(z) ** 2))(Z), 2 * Z.conj())
    close(rlx.grad(lambda z: rlx.sum(rlx.real(z * z)))(Z), 2 * Z)
    close(rlx.grad(lambda z: rlx.abs(z))(np.complex128(0)), np.complex128(0))
    value, (dz, dx) = rlx.value_and_grad(lambda z, x: rlx.sum(rlx.imag(rlx.fft.fft(z) * x)), (0, 1))(Z, X)
    close(value, np.sum(np.imag(np.fft.fft(Z) * X)))
    for step in (1e-6, 1e-6j):
        moved = Z.copy()
        moved[1, 2] += step
        slope = (np.sum(np.imag(np.fft.fft(moved) * X)) - value) / 1e-6
        assert float(np.real(dz[1, 2]) if step.imag == 0 else -np.imag(dz[1, 2])) == pytest.approx(slope, rel=1e-5)
    close(dx, np.fft.fft(Z).imag)
    out, pull = rlx.vjp(lambda z: z * z, Z)
    close(out, Z * Z)
    close(pull(W + Z * 0)[0], 2 * Z * W)  # a holomorphic function's slope times the cotangent
    out, tangent = rlx.jvp(lambda z: W / z, (Z,), (Z * 0 + 1j,))
    close(tangent, -1j * W / Z**2)


def test_trees_loops_and_vmap() -> None:
    z = Z[0]
    ends, ys = rlx.jit(lambda z: rlx.scan(lambda c, x: (c * x, c), z[0], z), device="cpu")(z)
    close(ends, z[0] * np.prod(z))
    close(ys, np.concatenate([z[:1], z[0] * np.cumprod(z)[:-1]]))
    close(rlx.vmap(lambda a: rlx.sum(a * W))(Z), Z @ W)
    close(rlx.vmap(lambda a: a * 2, in_axes=-1, out_axes=-1)(Z), Z * 2)
    close(rlx.jit(lambda tree: tree["z"][0] * 2, device="cpu")({"z": (Z,)}), Z * 2)


BAD: list[tuple[Callable[[], Any], type[RlxError], str]] = [
    (lambda: rlx.reshape(Z, (-1, -1)), ShapeError, "more than one dimension"),
    (lambda: rlx.reshape(Z, (5, -1)), ShapeError, "no answer"),
    (lambda: rlx.transpose(Z, (0,)), ShapeError, "transpose"),
    (lambda: rlx.transpose(Z, (0, 0)), ShapeError, "transpose"),
    (lambda: rlx.softmax(Z), DTypeError, "softmax: an argument is complex128"),
    (lambda: rlx.jit(lambda z: rlx.sin(z))(Z), DTypeError, "sin: an argument is complex128"),
    (lambda: rlx.jit(lambda z: rlx.max(z, axis=0))(Z.astype(np.complex64)), DTypeError, "max: .* complex64"),
    (lambda: rlx.jit(lambda z: z**2)(Z), DTypeError, "operator of complex128"),
    (lambda: rlx.jit(lambda z: z < z)(Z), DTypeError, "operator of complex128"),
    (lambda: rlx.jit(lambda z: rlx.hstack([z, z]))(Z), DTypeError, "complex numbers"),
    (lambda: rlx.jit(lambda x, z: x % z)(X, Z), DTypeError, "operator of complex128|mod: an argument"),
    (lambda: rlx.fft.rfft(Z), DTypeError, "rfft: an argument is complex128"),
    (lambda: rlx.signal.hilbert(Z), DTypeError, "hilbert: an argument is complex128"),
    (lambda: rlx.jacrev(lambda z: z * z)(W), DTypeError, "jacrev: argument 0 .* is complex"),
    (lambda: rlx.vmap(lambda z: z, in_axes=1)(W), ShapeError, "no axis"),
    (lambda: rlx.view_as_complex(X), ShapeError, "pairs"),
    (lambda: rlx.array(Z.astype(np.clongdouble)), DTypeError, "complex64 or complex128"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BAD)))
def test_every_other_op_refuses_by_name(number: int) -> None:
    call, error, text = BAD[number]
    with pytest.raises(error, match=text):
        call()
