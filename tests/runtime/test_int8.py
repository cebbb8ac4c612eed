"""precision="int8": which products with packed weights round what they are given, and how near the results are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import Graph, PackedArray, Tensor
from rlx.dtypes import PACKED
from rlx.errors import DTypeError, ShapeError, UnsupportedOp
from rlx.ops.packed_int8 import has_integers, rounded_blocks

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(7)
INTEGERS = (
    "q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q3_k q4_k q5_k q6_k tq2_0 mxfp4 iq4_nl iq4_xs int8 int8_zp int4 int4_zp int8_128 "
    "int8_zp_128 int4_128 int4_zp_128"
)


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def ran(
    session: rlx.Session, build: Callable[[Tensor, Tensor], Tensor], x: Array, q: PackedArray
) -> tuple[Array, set[str]]:
    """The result of a program of x and a packed param, and the ops that it ran."""
    g = Graph()
    g.output("y", build(g.input("x", x.shape, x.dtype), g.param("q", q.shape, q.dtype)))
    with session.compile(g) as exe:
        exe.set_param("q", q)
        made = exe.run({"x": x})["y"]
        return np.asarray(made), {d.op for d in exe.report()}


def rounded(x: Array) -> Array:
    """x as integers times scales, the largest magnitudes of 32 numbers over 127: in f32, where ties are."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    top = np.abs(blocks).max(-1, keepdims=True)
    whole, step = np.rint(blocks * (np.float32(127) / top)), top / np.float32(127)
    return np.asarray((whole.astype(np.float64) * step).reshape(x.shape))


def error(got: Array, want: Array) -> float:
    return float(np.sum((got - want) ** 2) / np.sum(want**2))


BUILDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "packed_matmul": lambda x, q: rlx.packed_matmul(x, q),
    "linear": lambda x, q: rlx.linear(x, q),
    "dequantized": lambda x, q: rlx.matmul(x, rlx.dequantize(q), transpose_b=True),
}


@pytest.mark.parametrize("build", BUILDS)
def test_a_session_rounds_what_products_with_packed_weights_are_given(
    session: rlx.Session, build: str
) -> None:
    q, x = rlx.quantize(normal(24, 256), "q4_k"), normal(5, 256)
    made, names = ran(rlx.Session(session.info.id, precision="int8"), BUILDS[build], x, q)
    w = q.dequantize().astype(np.float64)
    assert "packed_matmul_int8" in names and "packed_matmul" not in names
    assert error(made, rounded(x) @ w.T) < 1e-9
    assert 1e-7 < error(made, x.astype(np.float64) @ w.T) < 3e-4


def test_a_product_rounds_where_it_is_asked_to(session: rlx.Session) -> None:
    q, x = rlx.quantize(normal(9, 64), "q8_0"), normal(3, 64)
    made, names = ran(session, lambda x, q: rlx.packed_matmul(x, q, precision="int8"), x, q)
    assert (
        "packed_matmul_int8" in names and error(made, rounded(x) @ q.dequantize().astype(np.float64).T) < 1e-9
    )
    made, names = ran(session, BUILDS["packed_matmul"], x, q)
    assert "packed_matmul_int8" not in names
    vector, _ = ran(session, lambda x, q: rlx.packed_matmul(x, q, precision="int8"), x[0], q)
    assert vector.shape == (9,)


def test_experts(session: rlx.Session) -> None:
    q = rlx.quantize(normal(3, 8, 64), "q5_1")
    x, sizes = normal(6, 64), np.array([2, 0, 3], np.int32)
    made, names = ran(session, lambda x, q: rlx.grouped_packed_matmul(x, q, sizes, precision="int8"), x, q)
    w, near = q.dequantize().astype(np.float64), rounded(x)
    want = np.concatenate([near[:2] @ w[0].T, near[2:5] @ w[2].T, np.zeros((1, 8))])
    assert "grouped_packed_matmul_int8" in names and error(made, want) < 1e-9


@pytest.mark.parametrize("name", PACKED)
def test_which_formats_have_integers(name: str) -> None:
    """The others run in f32 at "int8", and the report says so."""
    kind = PACKED[name]
    assert has_integers(kind) == (name in INTEGERS.split())
    x = normal(2, kind.storage.elements)
    q = PackedArray(name, (3, x.shape[1]), np.zeros(kind.array_shape((3, x.shape[1])), np.uint8))
    names = ran(rlx.Session("cpu", precision="int8"), BUILDS["packed_matmul"], x, q)[1]
    assert ("packed_matmul_int8" if has_integers(kind) else "packed_matmul") in names


@pytest.mark.parametrize(
    "build",
    [
        lambda x, q: rlx.packed_matmul(rlx.cast(x, "f64"), q),
        lambda x, q: rlx.packed_matmul(rlx.sum(x, -1), q, transpose_q=False),
        lambda x, q: rlx.packed_matmul(rlx.sum(x, -1), q, transpose_q=False, precision="int8"),
    ],
)
def test_what_has_no_integers_stays_f32(build: Callable[[Tensor, Tensor], Tensor]) -> None:
    q, x = rlx.quantize(normal(4, 64), "q8_0"), normal(2, 4, 64)
    made, names = ran(rlx.Session("cpu", precision="int8"), build, x, q)
    given = ran(rlx.Session("cpu"), build, x, q)[0]
    np.testing.assert_array_equal(made, given)
    assert "packed_matmul_int8" not in names


def test_products_in_a_loop_round_too() -> None:
    q, x = rlx.quantize(normal(32, 32), "q8_0"), normal(1, 32)

    def build(x: Tensor, q: Tensor) -> Tensor:
        def step(carry: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
            y = rlx.tanh(rlx.packed_matmul(carry, q))
            return y, y

        return rlx.scan(step, x, x.graph.constant(np.zeros(3, np.float32)))[0]

    assert "packed_matmul_int8" in ran(rlx.Session("cpu", precision="int8"), build, x, q)[1]


def test_gradients_are_those_of_the_product_in_f32() -> None:
    q, x = rlx.quantize(normal(5, 32), "q4_0"), normal(3, 32)
    made, names = ran(
        rlx.Session("cpu", precision="int8"),
        lambda x, q: rlx.gradients(rlx.sum(rlx.packed_matmul(x, q)), [x])[0],
        x,
        q,
    )
    np.testing.assert_allclose(made, np.broadcast_to(q.dequantize().sum(0), x.shape), rtol=1e-4, atol=1e-5)
    assert "packed_matmul" in names
    with pytest.raises(UnsupportedOp, match="packed_matmul_int8"):
        ran(
            rlx.Session("cpu"),
            lambda x, q: rlx.gradients(rlx.sum(rlx.packed_matmul(x, q, precision="int8")), [x])[0],
            x,
            q,
        )


def test_rows_with_an_infinity_or_nan_are_nan(session: rlx.Session) -> None:
    q, x = rlx.quantize(normal(4, 64), "q4_1"), normal(4, 64)
    x[1, 40], x[2, 3], x[3] = np.inf, np.nan, 1e-31
    made, _ = ran(session, lambda x, q: rlx.packed_matmul(x, q, precision="int8"), x, q)
    assert np.isfinite(made[0]).all() and np.isnan(made[1:3]).all() and (made[3] == 0).all()


def test_scales_that_are_not_finite_give_what_is_not(session: rlx.Session) -> None:
    q = rlx.quantize(normal(3, 64), "q8_0")
    scales = q.data[:, 64:].view(np.float16)
    scales[1, 0], scales[2, 1] = np.nan, np.inf
    made, _ = ran(session, lambda x, q: rlx.packed_matmul(x, q, precision="int8"), normal(2, 64), q)
    assert np.isfinite(made[:, 0]).all() and not np.isfinite(made[:, 1:]).any()


def test_blocks_are_rounded_to_even_and_reach_127() -> None:
    x = np.zeros((2, 32), np.float32)
    x[0, :6] = 127, 0.5, 1.5, -2.5, -127, 126.5
    whole, scale = rounded_blocks(x)
    assert whole[0, 0, :6].tolist() == [127, 0, 2, -2, -127, 126] and scale.tolist() == [[1], [0]]


def test_bad_input() -> None:
    g = Graph()
    x, q = g.input("x", (2, 64)), g.input("q", (3, 64), "q8_0")
    with pytest.raises(DTypeError, match='precision is \'int4\'; expected "f32" or "int8"'):
        rlx.packed_matmul(x, q, precision="int4")
    with pytest.raises(ShapeError, match="inner dimensions 32 and 64"):
        rlx.packed_matmul(g.input("short", (2, 32)), q, precision="int8")
    with pytest.raises(DTypeError, match="expected a packed dtype"):
        rlx.packed_matmul(x, x, precision="int8")
    with pytest.raises(DTypeError, match="one of f32, tf32, f16, bf16, int8"):
        rlx.Session("cpu", precision="i8")
