"""Elementwise ops and fused trees on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import special

import rlx.ops as ops
from rlx.dtypes import as_dtype, f32
from rlx.ir import Expr, Graph, apply, apply_multi
from rlx.ir import expr as ex
from tests.cpu.programs import Program, assert_close, check, data, graph_of, run_both

FLOATS = ("f32", "f16", "bf16", "f64")
NUMBERS = (*FLOATS, "i32", "i64", "i8", "u8")
EVERY = (*NUMBERS, "bool")
SHAPES = ((), (1,), (7,), (3, 5), (2, 0, 3), (2, 3, 4, 5))
POSITIVE = {"log", "sqrt", "rsqrt", "reciprocal"}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "name",
    ["exp", "log", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tanh", "erf", "sigmoid", "silu", "gelu", "relu",
     "neg", "abs", "sign", "round", "floor", "ceil", "logical_not", "copy"],
)  # fmt: skip
def test_unary(name: str, dtype: str) -> None:
    for shape in SHAPES:
        check(getattr(ops, name), data(shape, dtype, low=0.1 if name in POSITIVE else -3.0))


@pytest.mark.parametrize("dtype", ("i32", "i64", "i8", "u8"))
@pytest.mark.parametrize("name", ("neg", "abs", "sign", "relu", "logical_not", "copy"))
def test_unary_of_integers(name: str, dtype: str) -> None:
    check(getattr(ops, name), data((5, 7), dtype))


@pytest.mark.parametrize(
    "name", ("exp", "log", "sqrt", "rsqrt", "reciprocal", "sin", "tanh", "erf", "sigmoid", "relu")
)
def test_special_values(name: str) -> None:
    check(
        getattr(ops, name),
        np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e38, -1e38, 88.0, -104.0], np.float32),
    )


def test_gelu_tanh() -> None:
    check(lambda x: ops.gelu(x, "tanh"), data((33, 9)))


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("name", ("add", "sub", "mul", "maximum", "minimum"))
def test_binary(name: str, dtype: str) -> None:
    for a, b in (
        ((3, 5), (3, 5)),
        ((3, 5), (5,)),
        ((3, 5), (3, 1)),
        ((4, 1, 6), (1, 5, 1)),
        ((), (2, 3)),
        ((1,), (1,)),
    ):
        check(getattr(ops, name), data(a, dtype, 1), data(b, dtype, 2))


@pytest.mark.parametrize(
    "pair", [("f16", "bf16"), ("f32", "bf16"), ("i32", "f16"), ("u8", "i8"), ("i64", "f32"), ("bool", "i32")]
)
def test_binary_of_mixed_dtypes(pair: tuple[str, str]) -> None:
    check(ops.add, data((6, 4), pair[0], 1), data((6, 4), pair[1], 2))


@pytest.mark.parametrize("dtype", FLOATS)
def test_div_and_pow(dtype: str) -> None:
    check(ops.div, data((9, 4), dtype, 1), data((9, 4), dtype, 2, low=0.5))
    check(ops.pow, data((9, 4), dtype, 1, low=0.1), data((9, 4), dtype, 2, low=-2, high=2))


def test_integer_pow_wraps_and_truncates() -> None:
    base = np.array([2, 3, -1, -1, 1, 0, 7, -5], np.int32)
    check(ops.pow, base, np.array([31, 3, -3, -2, -9, -1, 0, 3], np.int32))


@pytest.mark.parametrize("name", ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"))
def test_comparisons(name: str) -> None:
    for dtype in EVERY:
        check(getattr(ops, name), data((4, 9), dtype, 1), data((4, 9), dtype, 2))
    check(
        getattr(ops, name),
        np.array([np.nan, np.inf, -0.0], np.float32),
        np.array([np.nan, np.inf, 0.0], np.float32),
    )


@pytest.mark.parametrize("name", ("logical_and", "logical_or", "logical_xor"))
def test_logic(name: str) -> None:
    check(getattr(ops, name), data((4, 9), "bool", 1), data((9,), "bool", 2))


@pytest.mark.parametrize("dtype", EVERY)
def test_where(dtype: str) -> None:
    check(ops.where, data((4, 9), "bool"), data((4, 9), dtype, 1), data((9,), dtype, 2))


def test_where_keeps_nan_payloads() -> None:
    a = np.array([0x7FC12345, 0xFFC54321], np.uint32).view(np.float32)
    ((got, _),) = run_both(ops.where, np.array([True, False]), a, np.flip(a).copy())
    np.testing.assert_array_equal(
        got.view(np.uint32), np.where([True, False], a.view(np.uint32), a.view(np.uint32)[::-1])
    )


@pytest.mark.parametrize("target", EVERY)
@pytest.mark.parametrize("source", EVERY)
def test_cast(source: str, target: str) -> None:
    x = data((5, 6), source, low=-300, high=300)
    if as_dtype(source).is_float:
        ends = [
            np.nan,
            np.inf,
            -np.inf,
            3e9,
            -3e9,
            1e19,
            -1e19,
            0.5,
            -0.5,
            127.5,
            -128.5,
            2147483520.0,
            255.9,
        ]
        with np.errstate(over="ignore"):
            x = np.concatenate([x.reshape(-1), np.array(ends).astype(x.dtype)])
    check(lambda t: ops.cast(t, target), x)


def test_clip() -> None:
    x = np.array([-5, -1, 0, 1, 5, np.nan, np.inf, -np.inf], np.float32)
    for low, high in ((-1.0, 1.0), (None, 2.0), (0.0, None), (3.0, -3.0)):
        check(lambda t, low=low, high=high: ops.clip(t, low, high), x)
    check(lambda t: ops.clip(t, -7, 9), data((30,), "i8"))


@pytest.mark.parametrize(
    "x", [np.linspace(-6, 6, 200_001), np.geomspace(1e-38, 1, 50_001)], ids=("wide", "small")
)
def test_erf_is_within_4_ulp(x: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    x32 = x.astype(np.float32)
    ((got, _),) = run_both(ops.erf, x32)
    want = special.erf(x32.astype(np.float64))
    assert (np.abs(got - want) / np.spacing(np.abs(want).astype(np.float32))).max() <= 4


@pytest.mark.parametrize("name", ("exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh"))
def test_primitives_are_within_4_ulp(name: str) -> None:
    x = (
        np.random.default_rng(0)
        .uniform(1e-3 if name in ("log", "sqrt", "rsqrt") else -20, 20, 100_000)
        .astype(np.float32)
    )
    ((got, want),) = run_both(getattr(ops, name), x)
    assert (np.abs(got - want) / np.spacing(np.abs(want).astype(np.float32))).max() <= 4


def test_large_arrays_are_cut_into_blocks() -> None:
    def build(x: Any, row: Any, column: Any) -> Any:
        return ops.gelu(x * row + column), ops.exp(x) - row

    shape = (700, 611)  # rows do not divide the block
    check(
        _fused(build, shape), data(shape, seed=1), data(shape[1:], seed=2), data((700, 1), seed=3), threads=3
    )
    check(
        _fused(build, shape),
        data(shape, "f16", 1),
        data(shape[1:], "f16", 2),
        data((700, 1), "f16", 3),
        threads=2,
    )
    check(ops.add, data((3, 1 << 17), seed=4), data((3, 1), seed=5), threads=2)
    check(ops.mul, data(((1 << 18) + 77,), seed=4), data((1,), seed=5), threads=2)


def _fused(build: Any, shape: tuple[int, ...]) -> Any:
    """The outputs of `build` as one fused node, made from the ops' own expressions."""

    def make(*inputs: Any) -> Any:
        scratch = Graph("trees")
        leaves = [scratch.input(f"x{i}", t.shape, t.dtype) for i, t in enumerate(inputs)]
        made = build(*leaves)
        trees: dict[int, Expr] = {t.id: ex.arg(i, t.dtype) for i, t in enumerate(leaves)}
        for node in scratch.nodes:
            if node.op.name == "constant":
                trees[node.output.id] = ex.lit(node.attrs["value"].item(), node.output.dtype)
            elif not node.op.leaf:
                assert node.op.expr is not None
                trees[node.output.id] = node.op.expr([trees[t.id] for t in node.inputs], node.attrs)
        return apply_multi("fused", *inputs, trees=tuple(trees[t.id] for t in made), shape=shape)

    return make


def test_fused_outputs_may_take_each_others_inputs() -> None:
    """out0 = b lies on a's slot, out1 = a on b's: the second must not read what the first wrote."""
    from rlx.backends.cpu.executable import bind_node

    g = Graph("swap")
    a, b = g.input("a", (6,)), g.input("b", (6,))
    for trees in (
        (ex.arg(1, f32), ex.arg(0, f32)),
        (ex.arg(1, f32) * 2.0, ex.arg(0, f32) + ex.arg(1, f32)),
        (ex.arg(0, f32) + 1.0, ex.arg(0, f32)),
    ):
        node = apply_multi("fused", a, b, trees=trees, shape=(6,))[0].node
        x, y = np.arange(6, dtype=np.float32), np.arange(6, dtype=np.float32) * 10
        want = node.op.reference(x.copy(), y.copy(), **node.attrs)
        bind_node(node, [x, y], [x, y])()
        np.testing.assert_array_equal(x, want[0])
        np.testing.assert_array_equal(y, want[1])


def test_an_output_over_part_of_an_input_is_computed_from_the_old_values() -> None:
    from rlx.backends.cpu.executable import bind_node

    g = Graph("overlap")
    node = apply("mul", g.input("a", (4, 4)), g.input("b", (4,))).node
    memory = np.arange(16, dtype=np.float32).reshape(4, 4)
    want = memory * memory[1]
    bind_node(node, [memory, memory[1]], [memory])()
    np.testing.assert_array_equal(memory, want)


def test_any_number_of_threads_gives_the_same_bits() -> None:
    def build(x: Any, row: Any) -> Any:
        return (ops.gelu(ops.sin(x) * row),)

    arrays = (data((900, 700), seed=1), data((700,), seed=2))
    graph = graph_of(_fused(build, (900, 700)), arrays)
    results = []
    for threads in (1, 2, 5):
        program = Program(graph, threads=threads)
        results.append(program.run({"x0": arrays[0], "x1": arrays[1]})["y0"].tobytes())
        program.close()
    assert results[0] == results[1] == results[2]


def test_half_results_are_rounded_once() -> None:
    x = np.linspace(0, 3, 4001).astype(np.float16)
    graph = graph_of(_fused(lambda t: (ops.sqrt(t) * 1.5,), x.shape), [x])  # of roots f32 has one right value
    program = Program(graph)
    got = program.run({"x0": x})["y0"]
    program.close()
    want = np.sqrt(x.astype(np.float32)) * np.float32(1.5)
    np.testing.assert_array_equal(got, want.astype(np.float16))


def test_assert_close_sees_a_wrong_digit() -> None:
    with pytest.raises(AssertionError):
        assert_close(np.array([1.0, 2.0002], np.float32), np.array([1.0, 2.0]))


def test_large_f16_arrays_keep_every_value() -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    check(ops.neg, x)
    check(lambda t: ops.cast(t, "f32"), x)
    check(lambda t: ops.maximum(t, 1.0), x)
