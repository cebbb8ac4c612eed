"""Packed weights: the kernels of both languages against the definition of each format and products in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.gpu.gemm.packed import (
    DecodedTiles,
    PackedDigits,
    PackedDirect,
    PackedFew,
    PackedLine,
    PackedMatrix,
    PackedMma,
    PackedPanel,
    PackedProblem,
    PackedRows,
    PackedVector,
    candidates,
    choose_packed,
    forcing,
)
from rlx.backends.gpu.program.executable import load_rules
from rlx.backends.gpu.program.lowering import Lowering
from rlx.backends.gpu.program.steps import FileKernel, Launch
from rlx.backends.gpu.program.target import Target
from rlx.backends.gpu.rules import quantized
from rlx.driver import Limits
from rlx.driver.memory.planner import plan
from rlx.dtypes import PACKED, as_dtype, bf16, f16, f32
from rlx.packed import PackedArray
from rlx.packed.decode import split_planes
from tests.full import sampled
from tests.gpu import cuda_host, lowered
from tests.gpu.lowered import ROUNDED, Array, close
from tests.gpu.missed_barriers import every_barrier_is_missed

load_rules()
_LIMITS = Limits(shared_bytes=48 << 10, dynamic_shared_bytes=99 << 10, subgroup=32)
on_host = pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
on_vulkan = pytest.mark.vulkan


def packed(name: str, n: int, blocks: int, seed: int = 0) -> PackedArray:
    """Random bits with bounded scales, one of them subnormal."""
    rng = np.random.default_rng(seed)
    dtype = PACKED[name]
    data = rng.integers(0, 256, (n, blocks * dtype.storage.nbytes), np.uint8)
    for field, plane in split_planes(dtype, data).items():
        if field in ("d", "dm") and name != "nvfp4":
            scale = rng.normal(0, 0.1, (n, blocks, plane.shape[-1] // 2)).astype(np.float16)
            scale[0, 0] = 3e-7
            plane[:] = scale.view(np.uint8)
        elif field == "s":
            plane[:] = rng.normal(0, 0.1, (n, blocks, 1)).astype(np.float32).view(np.uint8)
        elif field == "e":
            plane[:] = rng.integers(120, 130, plane.shape)
        elif name == "iq1_m" and field == "scales":
            plane[..., 1::2] &= 0x3F  # the top bits of these make an f16
    if name.startswith("fp8"):
        data[:, : blocks * dtype.storage.elements] &= 0xBB  # neither infinity nor NaN
    return PackedArray(name, (n, blocks * dtype.storage.elements), data)


def lower(
    op: str, q: PackedArray, given: list[Array], backend: str, **attrs: Any
) -> tuple[rlx.Graph, Any, Lowering, list[Array]]:
    """The op of x, q and sizes (of q alone for dequantize), lowered."""
    graph = rlx.Graph(op)
    ins = [graph.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(given)]
    weight = graph.input("q", q.shape, q.dtype)
    ins[1:1] = [weight]
    if not given:
        ins = [weight]
    order = [*(graph.inputs[f"x{i}"] for i in range(len(given))), weight]
    graph.output("y", graph.add(op, ins, {"format": q.dtype, **attrs})[0])
    planned = plan(graph, planner="bump")
    lowering = Lowering(graph, planned, lowered.target(backend, _LIMITS), "f32")
    lowering.lower(graph.nodes[-1])
    return graph, planned, lowering, [*given, q.data][: len(order)]


def run(op: str, q: PackedArray, *given: Array, backend: str, **attrs: Any) -> Array:
    graph, planned, lowering, values = lower(op, q, list(given), backend, **attrs)
    return lowered.carried_out(graph, planned, lowering, values, backend)["y"]


def bits(a: Array) -> Array:
    """The bits, of every NaN the same ones."""
    same = np.where(np.isnan(a.astype(np.float32)), np.asarray(np.nan, a.dtype), a)
    return same.view(np.uint16 if a.itemsize == 2 else np.uint32)


@on_vulkan
@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("n, blocks", [(5, 1), (3, 8)])  # rows at odd addresses, and at multiples of 16 bytes
@pytest.mark.sample(1)
@pytest.mark.late("vulkan")
def test_dequantized_bits_on_vulkan(name: str, n: int, blocks: int) -> None:
    q = packed(name, n, blocks)
    got = run("dequantize", q, backend="vulkan", dtype=f32)
    np.testing.assert_array_equal(bits(got), bits(q.dequantize()))


@on_vulkan
@pytest.mark.parametrize("dtype", [f16, bf16])
def test_dequantized_halves(dtype: rlx.DType) -> None:
    q = packed("q5_1", 4, 5)
    got = run("dequantize", q, backend="vulkan", dtype=dtype)
    np.testing.assert_array_equal(bits(got), bits(q.dequantize(dtype)))


@on_host
@pytest.mark.parametrize(
    "name, dtype",
    [
        ("q4_0", f32), ("q6_k", f16), ("iq1_m", bf16), ("fp8_e4m3_128", bf16), ("nf4", f16), ("fp4_64", f32),
        ("q4_k", bf16), ("q3_k", f32), ("int4_128", bf16),
    ],
)  # fmt: skip
def test_dequantized_bits_of_the_cuda_source(name: str, dtype: rlx.DType) -> None:
    q = packed(name, 3, 4)
    got = run("dequantize", q, backend="cuda", dtype=dtype)
    np.testing.assert_array_equal(bits(got), bits(q.dequantize(dtype)))


@on_vulkan
def test_all_bytes_of_fp8() -> None:
    data = np.arange(256, dtype=np.uint8).reshape(8, 32)
    scale = np.ones((8, 1), np.float32).view(np.uint8)
    for name in ("fp8_e4m3", "fp8_e5m2"):
        q = PackedArray(name, (8, 32), np.concatenate([data, scale], 1))
        got = run("dequantize", q, backend="vulkan", dtype=f32)
        np.testing.assert_array_equal(bits(got), bits(q.dequantize()))


def product(
    name: str,
    m: int,
    n: int,
    blocks: int,
    dtype: str,
    backend: str,
    sizes: list[int] | None = None,
    **words: Any,
) -> None:
    """A product, and its error against float64."""
    kind = as_dtype(dtype)
    rng = np.random.default_rng(m + n)
    experts = 1 if sizes is None else len(sizes)
    q = packed(name, n * experts, blocks)
    x = rng.standard_normal((m, q.shape[1])).astype(kind.np)
    w = q.dequantize().astype(np.float64).reshape(experts, n, -1)
    wide = x.astype(np.float64)
    with forcing(**words):
        if sizes is None:
            got = run("packed_matmul", q, x, backend=backend, transpose_q=True)
            want, scale = wide @ w[0].T, wide**2 @ w[0].T ** 2
        else:
            stacked = PackedArray(name, (experts, n, q.shape[1]), q.data.reshape(experts, n, -1))
            given = np.array(sizes, np.int32)
            got = run("grouped_packed_matmul", stacked, x, given, backend=backend, transpose_q=True)
            want, scale, stop = np.zeros((m, n)), np.zeros((m, n)), 0
            for e, size in enumerate(sizes):
                start, stop = stop, min(m, stop + max(size, 0))
                want[start:stop], scale[start:stop] = (
                    wide[start:stop] @ w[e].T,
                    wide[start:stop] ** 2 @ w[e].T ** 2,
                )
            assert (got[stop:] == 0).all()
    close(got, want, scale=np.sqrt(scale), **ROUNDED.get(kind.np.type, {}))


@on_vulkan
@pytest.mark.parametrize("m", [1, 3, 16])
@pytest.mark.parametrize("name", ["q4_0", "q2_k", "iq3_xxs", "int4_zp"])
@pytest.mark.sample(vulkan=4)
def test_few_rows(name: str, m: int) -> None:
    product(name, m, 9, 3, "f32", "vulkan")


@on_vulkan
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.sample(vulkan=1)
def test_few_rows_of_halves(dtype: str) -> None:
    product("q4_k", 2, 40, 2, dtype, "vulkan")


@on_vulkan
def test_many_rows_and_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized, "_TILE_BYTES", 16 * 96 * 4)  # several tiles, the last smaller
    for dtype in ("f32", "f16"):
        product("q5_0", 20, 40, 3, dtype, "vulkan")
    q = packed("q8_0", 40, 3)
    x = np.random.default_rng(1).standard_normal((5, 40)).astype(np.float32)
    w = q.dequantize().astype(np.float64)
    got = run("packed_matmul", q, x, backend="vulkan", transpose_q=False)
    close(got, x.astype(np.float64) @ w, scale=np.sqrt(x.astype(np.float64) ** 2 @ w**2))


@pytest.mark.parametrize("backend", [pytest.param("vulkan", marks=on_vulkan), pytest.param("cuda", marks=on_host)])
def test_many_rows_of_bf16_by_a_weight_in_bf16(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized, "_HALF_TILE_BYTES", 16 * 96 * 2)  # several tiles, the last smaller
    monkeypatch.setattr(quantized, "choose_packed", lambda target, problem: DecodedTiles((0,), bf16))
    product("q5_0", 20, 40, 3, "bf16", backend)


@on_vulkan
def test_experts() -> None:
    product("q4_1", 7, 20, 2, "f32", "vulkan", sizes=[3, 0, -2, 2])
    product("iq2_s", 5, 4, 1, "f32", "vulkan", sizes=[4, 9])


@on_vulkan
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_experts_the_other_way(dtype: Any) -> None:
    rng = np.random.default_rng(5)
    q = packed("q4_0", 3 * 10, 2)
    stacked = PackedArray("q4_0", (3, 10, q.shape[1]), q.data.reshape(3, 10, -1))
    x = rng.standard_normal((7, 10)).astype(dtype)
    sizes = np.array([3, -1, 2], np.int32)
    got = run("grouped_packed_matmul", stacked, x, sizes, backend="vulkan", transpose_q=False)
    w, wide = q.dequantize().astype(np.float64).reshape(3, 10, -1), x.astype(np.float64)
    want = np.concatenate([wide[:3] @ w[0], wide[3:5] @ w[2], np.zeros((2, q.shape[1]))])
    scale = np.concatenate([wide[:3] ** 2 @ w[0] ** 2, wide[3:5] ** 2 @ w[2] ** 2, np.zeros((2, q.shape[1]))])
    close(got, want, scale=np.sqrt(scale), **ROUNDED.get(dtype, {}))


@on_host
def test_sixteen_rows_by_multiply_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowered, "SOFTWARE", False)  # a software driver takes four at a time
    product("q4_0", 11, 20, 3, "f32", "cuda", algorithm="rows")


@pytest.fixture
def subnormals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowered, "FEATURES", lowered.FEATURES | {"denorm_preserve"})


_LIFTED = ["q4_0", "q5_1", "q2_k", "q4_k", "q6_k", "iq4_xs", "int8_zp", "fp8_e4m3_128", "fp8_e5m2", "nf4_64"]


@on_host
@pytest.mark.usefixtures("subnormals")
@pytest.mark.parametrize("name", _LIFTED)
def test_quants_as_they_lie_in_their_words(name: str) -> None:
    blocks = 16 if PACKED[name].storage.elements < 256 else 8
    product(name, 2, 37, blocks, "f16", "cuda", algorithm="vector")
    product(name, 2, 37, blocks, "f16", "cuda", algorithm="line")
    if name in sampled(_LIFTED, most=5):  # the same quants in the same words
        product(name, 6, 70, blocks, "f16", "cuda", algorithm="few")


@on_vulkan
@pytest.mark.parametrize("name", _LIFTED)
@pytest.mark.sample(vulkan=2)
@pytest.mark.late
def test_quants_where_subnormal_floats_are_lost(name: str) -> None:
    blocks = 16 if PACKED[name].storage.elements < 256 else 8
    product(name, 2, 37, blocks, "f16", "vulkan", algorithm="vector")


@on_vulkan
@pytest.mark.parametrize("name", ["q4_0", "q6_k"])
@pytest.mark.sample(vulkan=1)
def test_four_rows_where_subnormal_floats_are_lost(name: str) -> None:
    product(name, 6, 70, 16 if name == "q4_0" else 8, "f16", "vulkan", algorithm="few")


@on_host
@pytest.mark.usefixtures("subnormals")
@pytest.mark.parametrize("words", [{"algorithm": "vector", "slab": 32}, {"algorithm": "few", "across": 32}])
def test_rows_of_several_slabs(words: dict[str, Any]) -> None:
    product("q4_0", 3, 37, 80, "f32", "cuda", **words)
    product("q8_0", 1, 37, 24, "bf16", "cuda", **words)


@on_host
@pytest.mark.usefixtures("subnormals", "matrices")
@pytest.mark.parametrize("algorithm", ["vector", "line", "few", "direct", "mma", "matrix"])
@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_an_f32_of_any_size(size: float, algorithm: str) -> None:
    q = packed("q8_0", 16, 8)
    x = (np.random.default_rng(3).standard_normal((2, q.shape[1])) * size).astype(np.float32)
    with forcing(algorithm=algorithm):
        got = run("packed_matmul", q, x, backend="cuda", transpose_q=True)
    w = q.dequantize().astype(np.float64)
    close(got, x.astype(np.float64) @ w.T, scale=np.sqrt(x.astype(np.float64) ** 2 @ w.T**2))


@on_host
@pytest.mark.usefixtures("matrices")
@pytest.mark.parametrize("size", [1e-30, 1e36])
def test_a_row_of_bf16_of_any_size(size: float) -> None:
    q = packed("q4_k", 37, 8)
    scales = split_planes(PACKED["q4_k"], q.data)["dm"]  # so small that sums are finite, though those of quants are not
    scales[:] = np.resize(np.array([1e-4], np.float16).view(np.uint8), scales.shape[-1])
    rng = np.random.default_rng(3)
    x = (rng.uniform(size=(1, q.shape[1])) * size).astype(bf16.np)
    with forcing(algorithm="direct", parts=4, tiles=2):
        got = run("packed_matmul", q, x, backend="cuda", transpose_q=True)
    wide, w = x.astype(np.float64), q.dequantize().astype(np.float64)
    close(got, wide @ w.T, scale=np.sqrt(wide**2 @ w.T**2), **ROUNDED[bf16.np.type])


def in_turn(*cases: tuple[Any, ...]) -> list[Any]:
    """Every other of an algorithm's cases, the rest in `make test-all`: `test_matrix_instructions`, which takes the
    quants out of the same words, has each format."""
    return [pytest.param(*case, marks=pytest.mark.full) if at % 2 else case for at, case in enumerate(cases)]


@pytest.fixture
def matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowered, "FEATURES", lowered.FEATURES | {"coopmat", "bf16_coopmat"})


@pytest.fixture
def much_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}._LIMITS", _LIMITS._replace(dynamic_shared_bytes=227 << 10))


def blocks_of(name: str) -> int:
    """So many that rows begin at multiples of 16 bytes and are whole steps of every algorithm."""
    return 16 if PACKED[name].storage.elements < 256 else 8


@on_host
@pytest.mark.usefixtures("matrices")
@pytest.mark.parametrize(
    "name, m, dtype, sizes",
    [
        ("q4_0", 16, "f16", 2), ("q4_k", 9, "bf16", 2), ("q4_k", 16, "f16", 1), ("q6_k", 3, "f32", 1),
        ("q5_1", 12, "f32", 1), ("q8_0", 2, "bf16", 2), ("q5_0", 9, "f16", 2), ("int8_zp", 4, "bf16", 2),
        ("int4_zp_128", 3, "f16", 2), ("fp8_e4m3", 17, "f16", 1), ("fp8_e5m2", 2, "bf16", 2), ("q2_k", 5, "f16", 1),
        ("q3_k", 2, "f32", 1), ("iq4_xs", 1, "bf16", 2), ("tq2_0", 9, "f16", 2), ("int4", 9, "f16", 2),
    ],
)  # fmt: skip
def test_matrix_instructions(name: str, m: int, dtype: str, sizes: int) -> None:
    words = {"algorithm": "mma", "parts": sizes, "tiles": sizes}
    product(name, m, 150, blocks_of(name), dtype, "cuda", **words)


@on_host
@pytest.mark.usefixtures("matrices")
@pytest.mark.parametrize(
    "name, m, dtype, parts",
    in_turn(
        ("q4_0", 1, "f16", 4), ("q4_1", 2, "f16", 2), ("q4_k", 16, "f16", 4), ("q4_k", 9, "f32", 2),
        ("q6_k", 3, "f16", 4), ("q6_k", 19, "bf16", 2), ("q8_0", 5, "f32", 4), ("int8_zp", 4, "f16", 4),
        ("fp8_e4m3", 17, "f16", 2), ("fp8_e5m2", 2, "bf16", 1), ("q2_k", 5, "f16", 4), ("q3_k", 2, "f32", 4),
        ("q5_k", 4, "f16", 2),
    ),
)  # fmt: skip
def test_matrices_of_unknown_places(name: str, m: int, dtype: str, parts: int) -> None:
    blocks = 32 if PACKED[name].storage.elements < 256 else 8
    product(name, m, 37, blocks, dtype, "cuda", algorithm="matrix", parts=parts)


@on_host
@pytest.mark.usefixtures("matrices")
@pytest.mark.parametrize(
    "name, m, dtype, parts, tiles",
    in_turn(
        ("q4_0", 1, "f16", 8, 1), ("q4_0", 4, "f16", 4, 2), ("q4_k", 3, "f16", 8, 1), ("q4_k", 8, "bf16", 2, 2),
        ("q6_k", 2, "f32", 8, 1), ("q8_0", 8, "f16", 8, 2), ("fp8_e4m3_128", 16, "f16", 8, 1),
        ("fp8_e4m3", 3, "bf16", 8, 1), ("fp8_e5m2", 3, "f16", 8, 1), ("q5_1", 4, "f16", 8, 1), ("q5_k", 4, "f16", 8, 1),
        ("q2_k", 4, "f16", 8, 1), ("iq4_xs", 4, "f16", 8, 1), ("int8_zp", 3, "f16", 8, 1), ("int4", 3, "f32", 4, 1),
        ("tq2_0", 3, "f16", 4, 1), ("q4_k", 1, "bf16", 4, 2), ("q4_k", 1, "f16", 8, 1), ("q5_k", 1, "f16", 4, 1),
    ),
)  # fmt: skip
def test_quants_straight_from_memory(name: str, m: int, dtype: str, parts: int, tiles: int) -> None:
    words = {"algorithm": "direct", "parts": parts, "tiles": tiles}
    product(name, m, 37, blocks_of(name), dtype, "cuda", **words)


@on_host
@pytest.mark.usefixtures("matrices")
@pytest.mark.parametrize(
    "name, m, n, blocks, dtype, parts",
    [
        ("q4_k", 4, 128, 4, "f16", 2), ("q4_k", 11, 64, 4, "f16", 4), ("q4_k", 1, 32, 40, "f16", 8),
        ("q8_0", 3, 128, 32, "bf16", 2), ("q8_0", 16, 64, 32, "f16", 4), ("q8_0", 9, 128, 32, "bf16", 4),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("much_shared_memory")
def test_all_rows_of_x_in_shared_memory(name: str, m: int, n: int, blocks: int, dtype: str, parts: int) -> None:
    product(name, m, n, blocks, dtype, "cuda", algorithm="panel", parts=parts, stages=2)


@on_host
@pytest.mark.usefixtures("matrices", "much_shared_memory")
@pytest.mark.parametrize(
    "name, m, blocks, dtype, cluster",
    [("q4_k", 5, 16, "f16", 2), ("q4_k", 8, 24, "f16", 4), ("q8_0", 9, 128, "bf16", 4)],
)
def test_clusters_part_the_sum(name: str, m: int, blocks: int, dtype: str, cluster: int) -> None:
    product(name, m, 128, blocks, dtype, "cuda", algorithm="panel", parts=2, stages=2, cluster=cluster)


@on_host
@pytest.mark.usefixtures("matrices")
@pytest.mark.parametrize("name, dtype", [("q4_k", f16), ("q8_0", f16), ("q8_0", bf16)])
def test_infinity_beside_all_rows_of_x(name: str, dtype: rlx.DType) -> None:
    q = packed(name, 32, 8192 // PACKED[name].storage.elements)
    x = np.random.default_rng(4).standard_normal((3, q.shape[1])).astype(dtype.np)
    x[1, 7], x[2, 9] = np.inf, np.nan
    with forcing(algorithm="panel", parts=8, stages=2):
        got = run("packed_matmul", q, x, backend="cuda", transpose_q=True)
    got = got.astype(np.float32)
    assert np.isfinite(got[0]).all() and np.isnan(got[2]).all()
    w = q.dequantize()[:, 7]
    np.testing.assert_array_equal(got[1], np.where(w == 0, np.nan, np.sign(w) * np.inf))


@on_host
@pytest.mark.usefixtures("matrices")
@pytest.mark.usefixtures("much_shared_memory")
def test_barriers_around_all_rows_of_x() -> None:
    """Shared memory keeps what the launch before left there, so that launches have to differ."""
    words = {"algorithm": "panel", "parts": 4, "stages": 2}

    def multiplied() -> None:
        for m in (9, 10):
            product("q4_k", m, 64, 4, "f16", "cuda", **words)

    every_barrier_is_missed("packed_panel.h", multiplied)


@on_host
@pytest.mark.usefixtures("matrices")
@pytest.mark.parametrize("algorithm, m", [("mma", 9), ("direct", 3)])
def test_barriers_of_matrix_instructions(algorithm: str, m: int) -> None:
    words = {"algorithm": algorithm, "parts": 2, "tiles": 2}
    every_barrier_is_missed(f"packed_{algorithm}.h", lambda: product("q4_0", m, 128, 64, "f16", "cuda", **words))


@on_host
@pytest.mark.parametrize("header", ["packed_rows.h", "dequantize.h"])
def test_barriers_before_the_numbers_of_a_table(header: str) -> None:
    """On variants that no other test runs: shared memory keeps the numbers from one launch to the next."""

    def decoded() -> None:
        run("dequantize", packed("fp4", 3, 3), backend="cuda", dtype=bf16)

    def multiplied() -> None:
        product("fp4", 1, 9, 3, "bf16", "cuda")

    every_barrier_is_missed(header, decoded if header == "dequantize.h" else multiplied)


@on_host
@pytest.mark.usefixtures("matrices")
def test_matrices_hold_no_numbers_of_a_table() -> None:
    target = lowered.target("cuda", _LIMITS)
    problem = PackedProblem(3, 4096, 4096, f16, PACKED["nf4_64"], 128, True, False)
    found = {c.algorithm for c in candidates(target, problem)}
    assert found == {"rows", "vector", "few", "tiles"}


@on_host
@pytest.mark.usefixtures("matrices")
@pytest.mark.parametrize("algorithm", ["mma", "direct"])
def test_matrix_instructions_for_experts(algorithm: str) -> None:
    product("q4_0", 23, 20, 8, "f16", "cuda", sizes=[3, 0, 9, -1, 4], algorithm=algorithm)


@on_host
@pytest.mark.usefixtures("subnormals", "matrices")
@pytest.mark.parametrize("name", ["q4_k", "q8_0", "q4_1", "q6_k"])
@pytest.mark.parametrize("algorithm", ["vector", "line", "digits", "few"])
def test_sums_before_their_scales_may_leave_f32(name: str, algorithm: str) -> None:
    rng = np.random.default_rng(5)
    w = rlx.quantize(rng.normal(0, 0.01, (3, 256)).astype(np.float32), name)
    x = (3e37 * rng.choice([-1, 1], (1, 256)) * rng.uniform(0.5, 1, (1, 256))).astype(np.float32)
    want = x.astype(np.float64) @ w.dequantize().astype(np.float64).T
    with forcing(algorithm=algorithm):
        got = run("packed_matmul", w, x, backend="cuda", transpose_q=True)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


@on_host
@pytest.mark.usefixtures("subnormals", "matrices")
@pytest.mark.parametrize("algorithm", ["vector", "line", "digits", "few", "direct", "mma", "matrix"])
@pytest.mark.late
def test_a_nan_among_the_quants_or_in_x_reaches_the_rows_it_belongs_to(algorithm: str) -> None:
    q = packed("fp8_e4m3", 20, 16)
    q.data[3, 100] = 0x7F
    x = np.ones((2, q.shape[1]), np.float16)
    with forcing(algorithm=algorithm):
        got = run("packed_matmul", q, x, backend="cuda", transpose_q=True)
        assert (np.isnan(got) == (np.arange(20) == 3)).all()
        for name in ("q8_0", "q4_1"):  # a zero that is taken from the sum, and a minimum
            q = packed(name, 20, 8)
            wide = np.ones((3, q.shape[1]), np.float32)
            wide[1, 7], wide[2, 9] = np.inf, np.nan
            got = run("packed_matmul", q, wide, backend="cuda", transpose_q=True)
            assert np.isfinite(got[0]).all() and np.isnan(got[2]).all()
            w = q.dequantize()[:, 7]
            np.testing.assert_array_equal(got[1], np.where(w == 0, np.nan, np.sign(w) * np.inf))


@on_host
@pytest.mark.usefixtures("subnormals")
@pytest.mark.parametrize("algorithm", ["vector", "few"])
def test_infinity_among_fp8(algorithm: str) -> None:
    q = packed("fp8_e5m2", 20, 16)
    q.data[3, 100] = 0x7C
    with forcing(algorithm=algorithm):
        got = run("packed_matmul", q, np.ones((1, q.shape[1]), np.float16), backend="cuda", transpose_q=True)
    assert np.isinf(got[0, 3]) and np.isfinite(np.delete(got[0], 3)).all()


@pytest.mark.usefixtures("matrices", "subnormals")
def test_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowered, "SOFTWARE", False)
    cuda, vulkan = lowered.target("cuda", _LIMITS), lowered.target("vulkan", _LIMITS)
    vulkan = replace(vulkan, features=vulkan.features - {"denorm_preserve"})

    def chosen(
        target: Target,
        m: int,
        x: rlx.DType = f16,
        n: int = 4096,
        wide: bool = True,
        grouped: bool = False,
        q: rlx.DType = PACKED["q4_k"],
    ) -> Any:
        return choose_packed(target, PackedProblem(m, n, 4096, x, q, 128, wide, grouped))

    one, two = chosen(cuda, 1, n=14336), chosen(cuda, 2, n=14336)
    assert isinstance(one, PackedLine) and (one.parts, one.high) == (2, 4)
    assert isinstance(two, PackedDirect) and (two.columns, two.terms, two.tiles) == (8, 1, 2)
    assert isinstance(chosen(cuda, 1, f32), PackedLine)
    assert isinstance(chosen(vulkan, 1), PackedVector) and isinstance(chosen(vulkan, 2), PackedVector)
    dots = replace(vulkan, features=vulkan.features | {"intdot"})
    large, small = chosen(dots, 1), chosen(dots, 1, n=2048)
    assert isinstance(large, PackedDigits) and isinstance(small, PackedDigits) and (large.high, small.high) == (4, 2)
    assert isinstance(chosen(dots, 1, q=PACKED["nf4_64"]), PackedVector)
    some, many = chosen(cuda, 4, q=PACKED["q4_0"]), chosen(cuda, 16, f32)
    assert isinstance(some, PackedMma) and (some.columns, some.terms) == (8, 1)
    assert isinstance(many, PackedMma) and (many.columns, many.terms) == (32, 2)
    wide = replace(cuda, limits=_LIMITS._replace(dynamic_shared_bytes=227 << 10))
    all_rows, narrower = chosen(wide, 4, n=14336), chosen(wide, 4)
    assert isinstance(all_rows, PackedPanel) and (all_rows.held, all_rows.parts, all_rows.stages) == (4, 2, 3)
    assert isinstance(narrower, PackedDirect) and isinstance(chosen(wide, 4, bf16, n=14336), PackedDirect)
    assert isinstance(chosen(vulkan, 4), PackedFew) and isinstance(chosen(vulkan, 40), DecodedTiles)
    narrow = replace(vulkan, features=vulkan.features | {"narrow_coopmat"})
    few, most = chosen(narrow, 4), chosen(narrow, 16, f32)
    assert isinstance(few, PackedMatrix) and (few.rows, few.terms) == (4, 1)
    assert isinstance(most, PackedMatrix) and (most.rows, most.terms) == (16, 2)
    odd = chosen(cuda, 4, f32, wide=False)
    assert isinstance(odd, PackedRows) and odd.rows == 4
    assert isinstance(chosen(vulkan, 1, grouped=True), PackedRows)


@pytest.mark.usefixtures("matrices", "much_shared_memory")
@pytest.mark.parametrize(
    "name, m, cluster",
    [
        ("q4_k", 4, None), ("q4_k", 5, 2), ("q4_k", 8, 2), ("q4_k", 9, None), ("q8_0", 8, None),
    ],
)  # fmt: skip
def test_the_choice_of_clusters(name: str, m: int, cluster: int | None) -> None:
    """For long sums of rows that only a quarter of the multiprocessors would have."""
    cuda = replace(lowered.target("cuda", _LIMITS), units=132)
    clusters = replace(cuda, matrices=replace(cuda.matrices, warpgroups=True))
    q = PACKED[name]

    def chosen(target: Target, n: int, k: int) -> int | None:
        kernel = choose_packed(target, PackedProblem(m, n, k, f16, q, k // (32 if name == "q4_k" else 16), True, False))
        return kernel.cluster if isinstance(kernel, PackedPanel) else None

    assert chosen(clusters, 4096, 14336) == cluster
    assert chosen(cuda, 4096, 14336) is chosen(clusters, 2048, 14336) is chosen(clusters, 4096, 8192) is None
    assert chosen(clusters, 14336, 4096) == (None if (name, m) == ("q8_0", 4) else 1)


@pytest.mark.usefixtures("matrices")
@pytest.mark.parametrize("backend", ("cuda", "vulkan"))
def test_a_product_over_nothing_needs_no_matrices(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowered, "SOFTWARE", False)
    target = lowered.target(backend, _LIMITS)
    target = replace(target, features=target.features | {"narrow_coopmat"})
    for q in PACKED.values():
        assert isinstance(choose_packed(target, PackedProblem(4, 64, 0, f16, q, 0, True, False)), PackedRows)


@pytest.mark.usefixtures("matrices")
def test_a_product_of_few_rows_is_one_launch_and_writes_no_weight() -> None:
    q = packed("q4_k", 64, 8)
    x = np.ones((4, q.shape[1]), np.float16)
    _, _, lowering, _ = lower("packed_matmul", q, [x], "cuda", transpose_q=True)
    (step,) = lowering.steps
    assert isinstance(step, Launch) and isinstance(step.kernel, FileKernel)
    assert step.kernel.stem == "packed_direct" and lowering.scratch_bytes == 0
