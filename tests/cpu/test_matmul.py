"""Matrix products on the CPU: every layout, dtype and epilogue."""

from __future__ import annotations

import os
import signal
import warnings

import numpy as np
import pytest

import rlx.ops as ops
from rlx.backends.cpu.context import ArrayMemory, BindContext
from rlx.backends.cpu.host.half import widen
from rlx.backends.cpu.host.matmul import blas
from rlx.backends.cpu.host.matmul.dense import bind_matmul
from rlx.ir import Graph
from tests.cpu.programs import Program, assert_close, check, data, graph_of, run_both

SHAPES = [
    (1, 1, 1),
    (3, 5, 7),
    (1, 33, 20),
    (17, 40, 1),
    (16, 384, 384),
    (100, 64, 900),
    (300, 70, 90),
    (4, 1, 5),
]


@pytest.mark.parametrize("transpose_b", (False, True))
@pytest.mark.parametrize("transpose_a", (False, True))
@pytest.mark.parametrize("m,k,n", SHAPES)
def test_layouts(m: int, k: int, n: int, transpose_a: bool, transpose_b: bool) -> None:
    a = data((k, m) if transpose_a else (m, k), seed=1)
    b = data((n, k) if transpose_b else (k, n), seed=2)
    check(lambda x, y: ops.matmul(x, y, transpose_a=transpose_a, transpose_b=transpose_b), a, b)


@pytest.mark.parametrize(
    "dtypes",
    [
        ("f32", "bf16"),
        ("f32", "f16"),
        ("f16", "f16"),
        ("bf16", "bf16"),
        ("f16", "bf16"),
        ("f64", "f64"),
        ("f64", "f32"),
    ],
)
@pytest.mark.parametrize("m", (1, 5, 210))
def test_dtypes(dtypes: tuple[str, str], m: int) -> None:
    a, b = data((m, 48), dtypes[0], 1), data((130, 48), dtypes[1], 2)
    check(lambda x, y: ops.matmul(x, y, transpose_b=True), a, b)
    check(lambda x, y: ops.matmul(x, y), a, np.ascontiguousarray(b.T))


@pytest.mark.parametrize("dtype", ("i32", "i64"))
def test_integers_wrap(dtype: str) -> None:
    check(ops.matmul, data((9, 17), dtype, 1), data((17, 4), dtype, 2))
    big = np.full((2, 3), 2_000_000_000, np.int32)
    check(ops.matmul, big, big.T.copy())


@pytest.mark.parametrize("activation", (None, "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid"))
@pytest.mark.parametrize("dtype", ("f32", "bf16", "f64"))
def test_epilogue(activation: str | None, dtype: str) -> None:
    a, b, bias = data((30, 20), dtype, 1, -1, 1), data((20, 50), dtype, 2, -1, 1), data((50,), dtype, 3)
    check(lambda x, y, z: ops.matmul(x, y, z, activation=activation), a, b, bias)
    check(lambda x, y: ops.matmul(x, y, activation=activation), a, b)


def test_epilogue_of_every_tile() -> None:
    a, b, bias = data((600, 30), seed=1), data((30, 1700), seed=2), data((1700,), seed=3)
    check(lambda x, y, z: ops.matmul(x, y, z, activation="gelu"), a, b, bias, threads=3)
    check(lambda x, y, z: ops.matmul(x, y, z), a[:40], b, bias)


@pytest.mark.parametrize(
    "a,b",
    [
        ((2, 3, 4, 5), (2, 3, 5, 6)),
        ((2, 3, 4, 5), (5, 6)),
        ((2, 1, 4, 5), (3, 5, 6)),
        ((4, 5), (7, 5, 6)),
        ((3, 4, 5), (1, 5, 6)),
    ],
)
def test_batches(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check(ops.matmul, data(a, seed=1), data(b, seed=2))
    check(ops.matmul, data(a, "bf16", seed=1), data(b, "bf16", seed=2))
    check(ops.matmul, data(a, "f64", seed=1), data(b, "f64", seed=2))


def test_empty_inner_axis_gives_the_epilogue_of_zero() -> None:
    check(lambda x, y, z: ops.matmul(x, y, z), data((3, 0)), data((0, 4)), data((4,)))


def test_any_number_of_threads_gives_the_same_bits() -> None:
    a, b = data((500, 384), seed=1), data((384, 800), seed=2)
    g = Graph("threads")
    node = ops.matmul(g.input("a", a.shape), g.input("b", b.shape)).node
    results = []
    for threads in (1, 2, 7):
        out = np.full((500, 800), np.nan, np.float32)
        for step in bind_matmul(node, [a, b], [out], BindContext(ArrayMemory(), threads)):
            step()
        results.append(out.tobytes())
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("transpose_b", (False, True))
def test_without_a_blas_of_our_own(transpose_b: bool) -> None:
    a, b = data((20, 30), seed=1), data((40, 30) if transpose_b else (30, 40), seed=2)
    g = Graph("plain")
    x, y = g.input("a", a.shape), g.input("b", b.shape)
    node = ops.matmul(x, y, transpose_b=transpose_b, activation="relu").node
    out = np.full((20, 40), np.nan, np.float32)
    ctx = BindContext(ArrayMemory())
    ctx.blas = None
    for step in bind_matmul(node, [a, b], [out], ctx):
        step()
    want = a.astype(np.float64) @ (b.T if transpose_b else b)
    assert_close(out, np.maximum(want, 0))


def test_the_private_blas_reads_every_layout() -> None:
    library, described = blas.load()
    if library is None:
        pytest.skip(described)
    rng = np.random.default_rng(0)
    for _ in range(60):
        m, n, k = (int(v) for v in rng.integers(1, 40, 3))
        ta, tb = (bool(v) for v in rng.integers(0, 2, 2))
        # Rows in wider memory, so that leading dimensions matter.
        a_wide = rng.standard_normal((k if ta else m, (m if ta else k) + 3), np.float32)
        b_wide = rng.standard_normal((n if tb else k, (k if tb else n) + 2), np.float32)
        c_wide = np.full((m, n + 5), np.nan, np.float32)
        a, b = a_wide[:, :-3], b_wide[:, :-2]
        left, right = (a.ctypes.data, a_wide.shape[1], ta), (b.ctypes.data, b_wide.shape[1], tb)
        library.sgemm(blas.Product(*left, *right, c_wide.ctypes.data, n + 5, m, n, k, 0.25))()
        want = 0.25 * ((a.T if ta else a).astype(np.float64) @ (b.T if tb else b))
        np.testing.assert_allclose(c_wide[:, :n], want, rtol=1e-4, atol=1e-5)
        assert np.isnan(c_wide[:, n:]).all()


def skinny(m: int = 16, k: int = 384, n: int = 1536) -> tuple[np.ndarray, ...]:
    return data((m, k), seed=1), data((k, n), seed=2), data((n,), seed=3)


@pytest.mark.parametrize("transpose_b", (False, True))
@pytest.mark.parametrize("shape", [(16, 384, 384), (5, 900, 1537), (90, 64, 1000)])
def test_a_list_of_products_gives_the_bits_of_each_by_itself(
    shape: tuple[int, int, int], transpose_b: bool
) -> None:
    library, team = blas.load()[0], blas.load_team()
    if library is None or team is None:
        pytest.skip("no call for lists of products here")
    (m, k, n), cut = shape, shape[2] // 2
    a, b, _ = skinny(m, k, n)
    given = np.ascontiguousarray(b.T) if transpose_b else b
    results = []
    for listed in (False, True):
        out = np.full((m, n + 3), 0.5, np.float32)
        products = [
            blas.Product(a.ctypes.data, k, False, part.ctypes.data, k if transpose_b else n, transpose_b,
                         out[:, at:].ctypes.data, n + 3, m, stop - at, k, 1.0, beta)
            for at, stop, beta in ((0, cut, 0.0), (cut, n, 1.0))
            for part in [given[at:] if transpose_b else given[:, at:]]
        ]  # fmt: skip
        for step in [team.sgemms(products)] if listed else map(library.sgemm, products):
            step()
        results.append(out)
    assert results[0].tobytes() == results[1].tobytes()
    want = a.astype(np.float64) @ b
    want[:, cut:] += 0.5
    assert_close(results[0][:, :n], want)
    assert (results[0][:, n:] == 0.5).all()


def test_products_of_few_rows_give_the_same_bits_on_any_number_of_threads() -> None:
    a, b, c = skinny()
    found = [
        run_both(lambda x, y, z: ops.matmul(x, y, z, activation="gelu"), a, b, c, threads=n)
        for n in (1, 2, 3)
    ]
    assert len({got.tobytes() for ((got, _),) in found}) == 1
    assert_close(*found[0][0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_multiplies() -> None:
    """The library's own threads do not survive a fork either."""
    a, b, _ = skinny()
    graph = graph_of(ops.matmul, [a, b])
    program = Program(graph)
    feeds = {"x0": a, "x1": b}
    want = program.run(feeds)["y0"].tobytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads: what is tested
        child = os.fork()
    if child == 0:
        signal.alarm(60)  # a child that hangs must not hang the tests
        os._exit(7 if program.run(feeds)["y0"].tobytes() == want else 8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert program.run(feeds)["y0"].tobytes() == want
    program.close()


def test_products_of_nan_and_infinity() -> None:
    a = data((20, 30), seed=1)
    a[3, 4], a[5, 6] = np.nan, np.inf
    b = np.abs(data((30, 10), seed=2)) + 0.1
    b = b.astype(np.float32)
    check(ops.matmul, a, b)


def test_every_f16_is_widened_to_its_own_value() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
    source = every.view(np.float16)
    wide = np.empty((256, 256), np.float32)
    for step in widen(source, wide, BindContext(ArrayMemory()), 0):
        step()
    with np.errstate(invalid="ignore"):
        want = source.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(wide), np.isnan(want))
    keep = ~np.isnan(want)
    np.testing.assert_array_equal(wide.view(np.uint32)[keep], want.view(np.uint32)[keep])
