"""Consecutive products of one A whose weights lie at equal distances become one batch: the lowered steps, by the
kernels of both backends, against NumPy in float64."""

from __future__ import annotations

from typing import Any, Literal

import ml_dtypes
import numpy as np
import pytest

from rlx.backends.gpu.elementwise.tree import ends_short
from rlx.backends.gpu.gemm.choice import forcing
from rlx.backends.gpu.program.executable import lower_graph
from rlx.backends.gpu.program.steps import FileKernel, Gemm, Launch, Step, TreeKernel
from rlx.backends.gpu.program.target import AddsBias, adds_any_bias
from rlx.driver import Slot
from rlx.driver.memory.planner import plan
from rlx.dtypes import as_dtype, f32
from rlx.ir import Graph
from tests.gpu import cuda_host, lowered
from tests.gpu.lowered import Array, close, execute, memory

_BACKENDS = [
    pytest.param("vulkan", marks=pytest.mark.vulkan),
    pytest.param(
        "cuda", marks=pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
    ),
]
_ATTRS = {"transpose_a": False, "transpose_b": True, "activation": None}


def _run(
    backend: str,
    m: int,
    k: int,
    n: int,
    *,
    weights: Any = np.float32,
    biases: bool = True,
    gaps: tuple[int, ...] = (0, 0, 0),
    activation: str | None = None,
    x_dtype: Any = np.float32,
    bias_dtype: Any = np.float32,
    reshaped: bool = False,
    planner: Literal["reuse", "bump"] = "reuse",
    adds_bias: AddsBias = adds_any_bias,
) -> list[Step]:
    """Lowers and runs three products of one input. Their weights lie in a store, each `gaps` bytes further on than
    necessary. Checks the results and returns the steps."""
    rng = np.random.default_rng(m + k + n)
    g = Graph("siblings")
    x = g.input("x", (m, k), as_dtype(np.dtype(x_dtype)))
    values = {"x": (rng.standard_normal((m, k)) / np.sqrt(k)).astype(x_dtype)}
    slots, at = {}, 0
    for i, gap in enumerate(gaps):
        given = [x]
        for name, shape, dtype in ((f"w{i}", (n, k), weights), (f"b{i}", (n,), bias_dtype))[: 1 + biases]:
            values[name] = rng.standard_normal(shape).astype(dtype)
            t = g.param(name, shape, as_dtype(np.dtype(dtype)))
            slots[name] = Slot("weights", at, t.type.nbytes, t.dtype)
            at += -(-t.type.nbytes // 256) * 256 + gap
            given.append(t)
        y = g.add("matmul", given, {**_ATTRS, "activation": activation})[0]
        g.output(f"y{i}", g.add("reshape", [y], {"shape": (1, m, n)})[0] if reshaped else y)
    planned = plan(g, planner=planner, param_slots=slots)
    target = lowered.target(backend, adds_bias=adds_bias)
    lowering, dispatch = lower_graph(g, planned, target, "f32")
    assert [d.op for d in dispatch if d.op != "reshape"] == ["matmul"] * 3
    segments = memory(planned, lowering)
    segments["weights"] = np.full(at, 0xFF, np.uint8)
    for name, t in {**g.inputs, **g.params}.items():
        slot = planned.slots[t.id]
        segments[slot.segment][slot.offset : slot.end] = values[name].reshape(-1).view(np.uint8)
    for step in lowering.steps:
        execute(step, segments, backend)
    for i in range(3):
        slot = planned.slots[g.outputs[f"y{i}"].id]
        got: Array = (
            segments[slot.segment][slot.offset : slot.end].view(g.outputs["y0"].dtype.np).reshape(m, n)
        )
        want = values["x"].astype(np.float64) @ values[f"w{i}"].astype(np.float64).T
        want = want + values[f"b{i}"].astype(np.float64) if biases else want
        want = {"tanh": np.tanh, "relu": lambda v: np.maximum(v, 0), None: np.copy}[activation](want)
        halves = {"nmse": 2e-5, "worst": 1e-2} if got.dtype.itemsize == 2 else {}
        close(got, want, **halves)
    return lowering.steps


def _stems(steps: list[Step]) -> list[str]:
    return [
        s.kernel.stem
        if isinstance(s, Launch) and isinstance(s.kernel, FileKernel)
        else type(s).__name__.lower()
        for s in steps
    ]


@pytest.mark.parametrize("backend", _BACKENDS)
@pytest.mark.parametrize("m, k, n", [(16, 40, 64), (5, 100, 128), (16, 384, 64)])
@pytest.mark.sample(1)
@pytest.mark.late("vulkan")
def test_few_rows_are_one_launch(m: int, k: int, n: int, backend: str) -> None:
    with forcing(algorithm="rows"):
        for weights in (np.float32, ml_dtypes.bfloat16):
            for activation in (None, "tanh"):
                steps = _run(backend, m, k, n, weights=weights, activation=activation)
                assert _stems(steps) == ["matmul_rows"]
        assert _stems(_run(backend, m, k, n, biases=False)) == ["matmul_rows"]


@pytest.mark.vulkan
@pytest.mark.parametrize("parts", [1, 3])
def test_tiles_are_one_launch(parts: int) -> None:
    with forcing(algorithm="fma", split_k=parts):
        steps = _run("vulkan", 70, 130, 64, activation="tanh")
    assert _stems(steps) == ["matmul", "launch"][:parts]


def test_the_library_makes_one_batch_and_one_epilogue() -> None:
    for kind in (np.float32, np.float16):
        gemm, launch = _run("cuda", 70, 32, 64, weights=kind, x_dtype=kind, activation="tanh")
        assert isinstance(gemm, Gemm) and (gemm.batch, gemm.stride_a) == (3, 0)
        assert isinstance(launch, Launch)


@pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
def test_the_library_adds_biases_that_are_stored_as_results_are() -> None:
    for kind in (np.float32, np.float16):
        (gemm,) = _run("cuda", 70, 32, 64, weights=kind, x_dtype=kind, bias_dtype=kind)
        assert isinstance(gemm, Gemm) and gemm.bias is not None and gemm.stride_bias > 64
    with forcing(fused_bias=False):
        assert len(_run("cuda", 70, 32, 64)) == 2
    assert len(_run("cuda", 70, 36, 64, weights=np.float16, x_dtype=np.float16, bias_dtype=np.float16)) == 2


@pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_a_kernel_adds_the_biases_that_the_library_has_no_way_to_add(
    kind: Any, activation: str | None
) -> None:
    asked: list[Gemm] = []

    def never(step: Gemm) -> bool:
        asked.append(step)
        return False

    given = {"weights": kind, "x_dtype": kind, "bias_dtype": kind, "activation": activation}
    (inside,) = _run("cuda", 70, 32, 64, **given)
    gemm, launch = _run("cuda", 70, 32, 64, **given, adds_bias=never)
    assert asked == [inside] and asked[0].relu == (activation == "relu")
    assert isinstance(gemm, Gemm) and (gemm.bias, gemm.relu, gemm.batch) == (None, False, 3)
    assert gemm.c_dtype == f32 and isinstance(launch, Launch)  # 16-bit results are rounded once, after the bias
    assert isinstance(launch.kernel, TreeKernel) and ends_short(launch.kernel) == (kind == np.float16)


@pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
def test_what_the_library_has_not_follows_it_in_place() -> None:
    gemm, launch = _run("cuda", 70, 32, 64, activation="tanh")
    assert isinstance(gemm, Gemm) and gemm.bias is not None and not gemm.relu
    assert isinstance(launch, Launch) and isinstance(launch.kernel, TreeKernel) and launch.kernel.rank == 0
    assert list(launch.reads) == list(launch.writes) == [gemm.c]


@pytest.mark.parametrize("backend", _BACKENDS)
@pytest.mark.parametrize("way", ["rows", "fma"])
@pytest.mark.sample(vulkan=1)
@pytest.mark.late("vulkan")
def test_biases_in_halves(way: str, backend: str) -> None:
    for kind in (np.float16, ml_dtypes.bfloat16):
        with forcing(algorithm=way):
            steps = _run(backend, 14, 40, 64, weights=kind, x_dtype=kind, bias_dtype=kind, activation="tanh")
        assert _stems(steps) == ["matmul_rows" if way == "rows" else "matmul"]


@pytest.mark.parametrize("backend", _BACKENDS)
def test_what_lies_unevenly_is_made_one_by_one(backend: str) -> None:
    with forcing(algorithm="rows"):
        assert len(_run(backend, 16, 40, 64, gaps=(0, 256, 0))) == 2  # the third alone
        assert len(_run(backend, 16, 40, 65)) == 3  # results of 65 columns leave gaps


@pytest.mark.parametrize("backend", _BACKENDS)
def test_an_even_distance_may_be_any(backend: str) -> None:
    assert len(_run(backend, 16, 40, 64, gaps=(512, 512, 512))) == 1


@pytest.mark.parametrize("backend", _BACKENDS)
def test_whether_they_are_one_does_not_depend_on_the_plan(backend: str) -> None:
    """Where the plan has steps between the products, each computes the batch and copies its own part: three batches,
    three copies of parts, and the three copies that the plan has between them."""
    with forcing(algorithm="rows"):
        assert _stems(_run(backend, 16, 40, 64, reshaped=True)) == ["matmul_rows"]
        steps = _run(backend, 16, 40, 64, reshaped=True, planner="bump")
    assert sorted(_stems(steps)) == ["copy"] * 6 + ["matmul_rows"] * 3
