"""Movement, reductions, norms, attention and gather on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx.ops as ops
from rlx.ir import Graph
from tests.cpu.programs import Program, check, data, graph_of, run_both

EVERY = ("f32", "f16", "bf16", "f64", "i32", "i64", "i8", "u8", "bool")
FLOATS = ("f32", "f16", "bf16", "f64")


# -- movement


@pytest.mark.parametrize("dtype", EVERY)
def test_movement(dtype: str) -> None:
    x = data((3, 4, 5), dtype)
    check(lambda t: ops.reshape(t, (5, 12)), x)
    check(lambda t: ops.transpose(t, (2, 0, 1)), x)
    check(lambda t: ops.transpose(t), x)
    check(lambda t: ops.expand(t, (2, 3, 4, 5)), x)
    check(lambda t: t[1:, ::2, 4:0:-2], x)
    check(lambda t: t[:, ::-1], x)
    check(lambda t: t[::-1, -1], x)
    check(lambda t: t[2:2], x)
    check(lambda a, b, c: ops.concat([a, b, c], axis=1), x, x[:, :0], x[:, 1:3])


def test_large_movement() -> None:
    x = data((40, 300, 64))
    check(lambda t: ops.transpose(t, (1, 0, 2)), x, threads=2)
    check(lambda t: ops.transpose(t, (2, 1, 0)), x, threads=2)
    check(lambda a, b: ops.concat([a, b], axis=2), x, x)
    check(lambda t: ops.expand(t, (1000, 640)), data((640,)), threads=2)


# -- reductions


@pytest.mark.parametrize("dtype", EVERY)
@pytest.mark.parametrize("name", ("sum", "prod", "max", "min", "mean"))
def test_reductions(name: str, dtype: str) -> None:
    fn = getattr(ops, name)
    x = data((3, 4, 1, 5), dtype, low=0.5, high=1.5)
    for axis in (None, 0, 1, 2, 3, (0, 1), (0, 3), (1, 2), (0, 2), (0, 1, 3), ()):
        for keepdims in (False, True):
            check(lambda t, axis=axis, keepdims=keepdims: fn(t, axis, keepdims), x)


def test_reductions_of_nothing() -> None:
    for name in ("sum", "prod", "mean"):
        check(lambda t, name=name: getattr(ops, name)(t, 0), data((0, 3)))
    check(lambda t: ops.max(t, 1), data((0, 3)))


@pytest.mark.parametrize(
    "shape,axis",
    [
        ((300_000,), 0),
        ((1 << 20,), None),
        ((700, 900), 1),
        ((20_000, 7), 0),
        ((5, 3001, 6), 1),
        ((64, 33, 40), (0, 2)),
    ],
)
def test_long_sums_are_summed_in_groups(shape: tuple[int, ...], axis: Any) -> None:
    # All positive and of one size: adding one after the other would lose four digits.
    x = data(shape, low=0.9, high=1.1)
    for got, want in run_both(lambda t: ops.sum(t, axis), x, threads=2):
        assert np.abs(got - want).max() <= 3e-7 * np.abs(want).max()
    check(lambda t: ops.mean(t, axis), x)
    check(lambda t: ops.max(t, axis), x)


def test_nan_comes_through_max_and_sum() -> None:
    x = data((4, 6))
    x[1, 2], x[2, 0], x[3, 1] = np.nan, np.inf, -np.inf
    for name in ("max", "min", "sum", "mean", "prod"):
        for axis in (0, 1):
            check(lambda t, name=name, axis=axis: getattr(ops, name)(t, axis), x)


# -- norms


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axis", (0, 1, 2, -1))
def test_softmax(dtype: str, axis: int) -> None:
    check(lambda t: ops.softmax(t, axis), data((3, 40, 7), dtype, low=-10, high=10))


def test_softmax_of_large_and_infinite_values() -> None:
    x = np.array([[1e38, -1e38, 0], [0, -np.inf, 1], [np.inf, 0, 0], [np.nan, 0, 0]], np.float32)
    check(lambda t: ops.softmax(t, 1), x)
    check(lambda t: ops.softmax(t, 0), data((50, 3000), low=-30, high=30), threads=2)
    check(lambda t: ops.softmax(t, 1), data((500, 1000), low=-30, high=30), threads=2)


@pytest.mark.parametrize("dtype", FLOATS)
def test_layer_and_rms_norm(dtype: str) -> None:
    for shape in ((5,), (4, 33), (2, 3, 64), (900, 384)):
        x, gamma, beta = data(shape, dtype, 1), data(shape[-1:], dtype, 2), data(shape[-1:], dtype, 3)
        check(lambda a, b, c: ops.layer_norm(a, b, c, 1e-5), x, gamma, beta)
        check(lambda a, b: ops.rms_norm(a, b, eps=1e-6), x, gamma)
        check(lambda a, b, c: ops.rms_norm(a, b, c, eps=1e-6), x, gamma, beta)


def test_layer_norm_keeps_its_digits_far_from_zero() -> None:
    x = (data((20, 256)) + 100).astype(np.float32)
    ((got, want),) = run_both(
        lambda a, b, c: ops.layer_norm(a, b, c, 1e-5), x, np.ones(256, np.float32), np.zeros(256, np.float32)
    )
    assert np.abs(got - want).max() <= 2e-5


# -- attention


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("heads", ((4, 4), (6, 2)))
@pytest.mark.parametrize("lengths", ((1, 9), (5, 9), (20, 20), (33, 40), (9, 5)))
def test_attention(dtype: str, heads: tuple[int, int], lengths: tuple[int, int]) -> None:
    n_q, n_k = lengths
    q = data((2, heads[0], n_q, 8), dtype, 1)
    k, v = data((2, heads[1], n_k, 8), dtype, 2), data((2, heads[1], n_k, 8), dtype, 3)
    check(lambda a, b, c: ops.attention(a, b, c), q, k, v)
    check(lambda a, b, c: ops.attention(a, b, c, causal=True, scale=0.5), q, k, v)
    for shape in ((2, 1, 1, n_k), (2, heads[0], n_q, n_k), (n_q, 1), (1, heads[0], 1, n_k)):
        check(lambda a, b, c, d: ops.attention(a, b, c, d), q, k, v, data(shape, "bool", 4))
        check(lambda a, b, c, d: ops.attention(a, b, c, d, causal=True), q, k, v, data(shape, "f32", 5))


def test_attention_in_blocks_of_queries() -> None:
    q, k, v = (data((1, 2, 700, 16), seed=i) for i in range(3))
    mask = data((1, 1, 700, 700), "bool", 4)
    check(lambda a, b, c, d: ops.attention(a, b, c, d, causal=True), q, k, v, mask, threads=3)
    check(lambda a, b, c: ops.attention(a, b, c), q, k, v, threads=2)


def test_a_row_without_keys_is_zero_and_a_masked_nan_is_not_seen() -> None:
    q, k, v = (data((1, 1, 20, 4), seed=i) for i in range(3))
    mask = np.ones((20, 20), bool)
    mask[3] = False
    mask[:, 7] = False
    k[0, 0, 7] = np.nan
    ((got, _),) = run_both(lambda a, b, c, d: ops.attention(a, b, c, d), q, k, v, mask)
    assert (got[0, 0, 3] == 0).all() and np.isfinite(got).all()
    check(lambda a, b, c, d: ops.attention(a, b, c, d), q, k, v, mask)


@pytest.mark.parametrize("build", [
    lambda q, k, v: ops.attention(q, k, v),
    lambda q, k, v: ops.softmax(q * 3),
    lambda q, k, v: ops.layer_norm(q, k[0, 0, 0], v[0, 0, 0], 1e-5),
    lambda q, k, v: ops.sum(q, (0, 3)),
])  # fmt: skip
def test_any_number_of_threads_gives_the_same_bits(build: Any) -> None:
    arrays = [data((4, 8, 200, 32), seed=i) for i in range(3)]
    results = []
    for threads in (1, 2, 5):
        program = Program(graph_of(build, arrays), threads=threads)
        results.append(program.run({f"x{i}": a for i, a in enumerate(arrays)})["y0"].tobytes())
        program.close()
    assert results[0] == results[1] == results[2]


# -- gather


@pytest.mark.parametrize("dtype", EVERY)
@pytest.mark.parametrize("indices", ("i32", "i64"))
def test_gather(dtype: str, indices: str) -> None:
    x = data((5, 6, 3), dtype)
    wanted = np.array([[0, 4, -1], [-5, 2, 2]], indices.replace("i", "int"))
    for axis in (0, 1):
        check(lambda t, i, axis=axis: ops.gather(t, i, axis), x, wanted)
    check(lambda t, i: ops.gather(t, i, 0), x, np.array(3, indices.replace("i", "int")))


def test_indices_out_of_range_are_clamped() -> None:
    check(lambda t, i: ops.gather(t, i), data((5, 2)), np.array([7, -9, 2**31 - 1, -(2**31)], np.int32))


# -- state


def test_states_swap() -> None:
    g = Graph("swap")
    a, b = g.state("a", (3,)), g.state("b", (3,))
    x = g.input("x", (3,))
    g.output("y", a + x)
    g.update("a", b + 1)
    g.update("b", a + x)
    from rlx.runtime.session import Session

    exe = Session("cpu").compile(g)
    one = np.ones(3, np.float32)
    for _ in range(3):
        exe.run({"x": one})
    # a, b: (0,0) → (1,1) → (2,2) → (3,3)
    np.testing.assert_array_equal(exe.get_state("a"), 3 * one)
    np.testing.assert_array_equal(exe.get_state("b"), 3 * one)
    exe.close()
