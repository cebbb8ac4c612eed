"""Packed weights in programs: how they are given and read, the memory they take, and where they are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import Graph, PackedArray, Tensor
from rlx.errors import DTypeError, RlxError, ShapeError
from rlx.packed.decode import split_planes
from rlx.passes import optimize

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(2)


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def product(name: str = "q8_0", n: int = 24, k: int = 64) -> Graph:
    g = Graph("product")
    g.output("y", rlx.packed_matmul(g.input("x", (3, k)), g.param("w", (n, k), name)))
    return g


def expected(x: Array, w: PackedArray) -> Array:
    return np.asarray(x.astype(np.float64) @ w.dequantize("f64").T)


def test_weights_are_set_shared_and_read_back(session: rlx.Session) -> None:
    x, packed = normal(3, 64), rlx.quantize(normal(24, 64), "q8_0")
    weights = rlx.Weights(session.device)
    with (
        weights,
        session.compile(product(), weights=weights) as exe,
        session.compile(product(), weights=weights) as twin,
    ):
        exe.set_param("w", packed)
        for program in (exe, twin):
            np.testing.assert_allclose(program.run({"x": x})["y"], expected(x, packed), rtol=1e-4, atol=1e-4)
        read = weights.get("w")
        assert (
            isinstance(read, PackedArray)
            and read.tobytes() == packed.tobytes()
            and read.shape == packed.shape
        )
        again = rlx.quantize(normal(24, 64), "q8_0")
        exe.set_param("w", again)
        np.testing.assert_allclose(twin.run({"x": x})["y"], expected(x, again), rtol=1e-4, atol=1e-4)


def test_packed_inputs_outputs_and_constants(session: rlx.Session) -> None:
    packed = rlx.quantize(normal(4, 256), "q4_k")
    g = Graph()
    q, c = g.input("q", (4, 256), "q4_k"), g.constant(packed)
    g.output("same", q)
    g.output("constant", rlx.dequantize(c, "bf16"))
    g.output("decoded", rlx.dequantize(q))
    g.output("wide", rlx.dequantize(q, "f64"))
    with session.compile(g) as exe:
        made = exe.run({"q": packed})
    assert made["same"].tobytes() == packed.tobytes()
    np.testing.assert_array_equal(made["decoded"], packed.dequantize())
    np.testing.assert_array_equal(made["wide"], packed.dequantize("f64"))
    np.testing.assert_array_equal(made["constant"], packed.dequantize("bf16"))


def test_functions_take_packed_arrays() -> None:
    x, packed = normal(2, 32), rlx.quantize(normal(5, 32), "q4_0")
    layer = rlx.jit(lambda x, p: rlx.linear(x, p["w"], p["b"], activation="relu"), device="cpu")
    bias = normal(5)
    got = layer(x, {"w": packed, "b": bias})
    np.testing.assert_allclose(got, np.maximum(expected(x, packed) + bias, 0), rtol=1e-4, atol=1e-5)
    assert layer.cache_info()["size"] == 1
    d = rlx.grad(lambda x, w: rlx.sum(rlx.packed_matmul(x, w)), device="cpu")(x, packed)
    np.testing.assert_allclose(d, np.broadcast_to(packed.dequantize().sum(0), d.shape), rtol=1e-4, atol=1e-5)


def test_a_packed_weight_in_a_loop_stays_packed() -> None:
    packed, x = rlx.quantize(normal(64, 64), "q8_0"), normal(1, 64)
    g = Graph()
    w = g.param("w", (64, 64), "q8_0")

    def step(carry: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        y = rlx.tanh(rlx.linear(carry, w))
        return y, y

    last, _ = rlx.scan(step, g.input("x", (1, 64)), g.constant(np.zeros(4, np.float32)))
    g.output("y", last)
    with rlx.Session("cpu").compile(g) as exe:
        exe.set_param("w", packed)
        got = exe.run({"x": x})["y"]
    for _ in range(4):
        x = np.tanh(expected(x, packed)).astype(np.float32)
    np.testing.assert_allclose(got, x, rtol=1e-3, atol=1e-5)


def test_rows_of_a_packed_table_are_taken_packed(session: rlx.Session) -> None:
    """As embeddings are: of the table only the rows that are read are dequantized."""
    table = rlx.quantize(normal(50, 256), "q6_k")
    g = Graph()
    rows = rlx.gather(g.param("table", (50, 256), "q6_k"), g.input("ids", (2, 3), "i32"))
    g.output("rows", rows)
    g.output("y", rlx.dequantize(rows))
    ids = np.array([[3, 49, -1], [0, 3, 7]], np.int32)
    with session.compile(g) as exe:
        exe.set_param("table", table)
        made = exe.run({"ids": ids})
    np.testing.assert_array_equal(made["y"], table.dequantize()[ids])
    assert isinstance(made["rows"], PackedArray) and made["rows"].shape == (2, 3, 256)


WRITTEN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "transpose_b": lambda x, w: rlx.matmul(x, w, transpose_b=True),
    "transposed": lambda x, w: x @ w.T,
    "linear": lambda x, w: rlx.linear(x, w),
}


@pytest.mark.parametrize("written", WRITTEN)
def test_products_with_dequantized_weights_are_packed_products(written: str) -> None:
    packed, x = rlx.quantize(normal(32, 32), "q5_1"), normal(2, 3, 32)
    g = Graph()
    w = rlx.dequantize(g.param("w", (32, 32), "q5_1"))
    g.output("y", WRITTEN[written](g.input("x", x.shape), w))
    g.output("other", rlx.matmul(g.input("z", (2, 32)), w))  # two products read one dequantized weight
    names = [n.op.name for n in optimize(g, verify=True)[0].nodes if not n.op.leaf]
    assert names == ["packed_matmul"] * 2
    with rlx.Session("cpu").compile(g) as exe:
        exe.set_param("w", packed)
        made = exe.run({"x": x, "z": x[0, :2]})
    np.testing.assert_allclose(made["y"], expected(x, packed), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(made["other"], x[0, :2] @ packed.dequantize(), rtol=1e-4, atol=1e-4)


def test_products_of_experts_with_dequantized_weights_are_packed() -> None:
    g = Graph()
    w = rlx.dequantize(g.param("w", (3, 8, 32), "int4"))
    g.output("y", rlx.grouped_matmul(g.input("x", (9, 32)), w, np.array([4, 0, 5]), transpose_w=True))
    names = [n.op.name for n in optimize(g, verify=True)[0].nodes if not n.op.leaf]
    assert names == ["grouped_packed_matmul"]


@pytest.mark.parametrize("name", ["q4_k", "iq1_s", "int4_128"])
@pytest.mark.sample(vulkan=1)
def test_a_product_takes_little_more_memory_than_its_packed_weight(session: rlx.Session, name: str) -> None:
    """In f32 the weight would be 7 to 20 times as large."""
    n, k = 512, 2048
    g = product(name, n, k)
    with session.compile(g) as exe:
        nbytes = g.params["w"].type.nbytes
        exe.set_param("w", PackedArray.from_gguf(np.zeros(nbytes, np.uint8), name, (n, k)))
        exe.run({"x": normal(3, k)})
        assert exe.weights.nbytes <= nbytes * 1.05 + 65536
        assert exe.plan.total_bytes <= 3 * 4 * (n + k) + 4096


@pytest.mark.parametrize("rows", [1, 5, 20])
@pytest.mark.parametrize("name", ["q8_0", "q4_k", "int4"])
@pytest.mark.sample(2, vulkan=2)
def test_scales_that_are_no_numbers_reach_the_rows_that_they_scale(
    session: rlx.Session, name: str, rows: int
) -> None:
    """No product with another row of the weight is touched, whichever kernel takes these rows of x."""
    packed, x = rlx.quantize(normal(24, 256), name), normal(rows, 256)
    for field, plane in split_planes(packed.dtype, packed.data).items():
        if field in ("d", "dm", "s"):
            for row, scale in ((3, np.nan), (11, np.inf)):
                plane[row, 0] = np.full(4, scale, np.float32 if field == "s" else np.float16).view(np.uint8)[
                    : plane.shape[2]
                ]
    g = Graph()
    w = g.param("w", packed.shape, name)
    g.output("y", rlx.packed_matmul(g.input("x", x.shape), w))
    g.output("back", rlx.packed_matmul(g.input("d", (rows, 24)), w, transpose_q=False))
    with session.compile(g) as exe:
        exe.set_param("w", packed)
        made = exe.run({"x": x, "d": np.ones((rows, 24), np.float32)})
    others = np.isin(np.arange(24), (3, 11), invert=True)
    w64 = packed.dequantize("f64")[others]
    np.testing.assert_allclose(made["y"][:, others], x.astype(np.float64) @ w64.T, rtol=1e-4, atol=1e-3)
    assert not np.isfinite(made["y"][:, ~others]).any() and np.isnan(made["y"][:, 3]).all()
    first = packed.dtype.storage.elements
    assert np.isnan(made["back"][:, :first]).all()


MISTAKES: dict[str, tuple[Callable[[Tensor], object], type[RlxError], str]] = {
    "add": (lambda q: q + 1.0, DTypeError, "add: takes no packed weights, got q8_0; rlx.dequantize"),
    "matmul": (lambda q: rlx.matmul(q.graph.constant(np.ones((1, 32), np.float32)), q), DTypeError, "packed_matmul"),
    "exp": (rlx.exp, DTypeError, "rlx.dequantize"),
    "cast": (lambda q: rlx.cast(q, "f32"), DTypeError, "cast: takes no packed"),
    "made": (lambda q: rlx.cast(q.graph.constant(np.ones(32, np.float32)), "q8_0"), DTypeError, "rlx.quantize"),
    "reshape": (lambda q: rlx.reshape(q, (2, 2, 32)), DTypeError, "reshape"),
    "within blocks": (lambda q: rlx.gather(q, np.array([0]), 1), ShapeError, "expected an axis before the last"),
    "plain q": (lambda q: rlx.dequantize(q.graph.constant(1.0)), DTypeError, "expected a packed dtype"),
    "inner": (lambda q: rlx.packed_matmul(q.graph.constant(np.ones((2, 64), np.float32)), q), ShapeError, "64 and 32"),
    "rank": (
        lambda q: rlx.packed_matmul(q.graph.constant(np.ones((2, 32), np.float32)), q.graph.input("r", (32,), "q8_0")),
        ShapeError, "expected rank 2",
    ),
    "result": (lambda q: rlx.dequantize(q, "i32"), DTypeError, "dtype is i32; expected f32, f16, bf16 or f64"),
    "blocks": (lambda q: q.graph.input("b", (4, 48), "q8_0"), ShapeError, "expected a multiple of 32"),
    "constant": (
        lambda q: q.graph.constant(PackedArray.from_gguf(bytes(34), "q8_0", (32,)), "f32"), DTypeError, "is not f32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_graph_says_what_to_do(mistake: str) -> None:
    build, error, text = MISTAKES[mistake]
    with pytest.raises(error, match=text):
        build(Graph().input("q", (4, 32), "q8_0"))


def test_a_mistake_in_what_is_given_says_what_to_do(session: rlx.Session) -> None:
    packed = rlx.quantize(normal(24, 64), "q8_0")
    with session.compile(product()) as exe:
        for wrong, error, text in (
            (packed.data, DTypeError, "expected a PackedArray of q8_0.24,64., got ndarray; rlx.quantize"),
            (normal(24, 64), DTypeError, "PackedArray.from_gguf"),
            (rlx.quantize(normal(24, 64), "q4_0"), DTypeError, "expected q8_0"),
            (rlx.quantize(normal(24, 32), "q8_0"), ShapeError, "expected q8_0"),
        ):
            with pytest.raises(error, match=text):
                exe.set_param("w", wrong)
        exe.set_param("w", packed)
        with pytest.raises(DTypeError, match=r"expected numbers, got PackedArray\(q8_0"):
            exe.run({"x": packed})
        with pytest.raises(DTypeError, match="cannot be kept as f16"):
            exe.set_param("w", packed, dtype="f16")


@pytest.mark.parametrize(
    ("bias", "activation", "text"),
    [
        (np.ones((5, 3, 40), np.float32), None, r"linear: bias is \(5, 3, 40\); expected \(40,\)"),
        (np.ones(39, np.float32), None, r"linear: bias is \(39,\); expected \(40,\)"),
        (1.0, None, r"linear: bias is \(\); expected \(40,\)"),
        (None, "zz", "linear: activation 'zz'; expected None or one of"),
        (None, ["gelu"], r"linear: activation \['gelu'\]; expected None or one of"),
    ],
)
def test_linear_takes_one_bias_for_each_row_of_the_weight(bias: Any, activation: Any, text: str) -> None:
    """What a dense weight refuses, a packed one refuses too: no result of another shape."""
    weight = rlx.quantize(normal(40, 64), "q8_0")
    with pytest.raises(ShapeError, match=text):
        rlx.jit(lambda x, w: rlx.linear(x, w, bias, activation=activation), device="cpu")(normal(3, 64), weight)
