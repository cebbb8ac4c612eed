"""Products of one row whose rows of weights go through shared memory, by CUDA's kernel, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx.backends.cuda.target import cuda_target
from rlx.backends.gpu.gemm.choice import forcing
from rlx.backends.gpu.gemm.kernels import MATMUL_LINE
from rlx.backends.gpu.gemm.line import Line, line
from rlx.backends.gpu.gemm.product import Product
from rlx.backends.gpu.program.lowering import Lowering
from rlx.backends.gpu.program.steps import FileKernel, Launch
from rlx.driver import Limits
from rlx.driver.memory.planner import plan
from rlx.dtypes import bf16, f32
from tests.gpu import cuda_host
from tests.gpu.lowered import ROUNDED, carried_out, close, lower, target
from tests.gpu.missed_barriers import every_barrier_is_missed

pytestmark = pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
_BF16: Any = ml_dtypes.bfloat16
_TARGET = cuda_target(frozenset(), Limits())
Sizes = dict[str, int]


def carried(op: str, given: list[Any], attrs: dict[str, Any], sizes: Sizes) -> Any:
    """The result of an op by the kernel with these sizes."""
    with forcing(algorithm="line", **sizes):
        graph, planned, lowering = lower(op, given, attrs, "cuda")
    stems = [s.kernel.stem for s in lowering.steps if isinstance(s, Launch) and isinstance(s.kernel, FileKernel)]
    assert stems == ["matmul_line"]
    (got,) = carried_out(graph, planned, lowering, given, "cuda").values()
    return got


def silu(v: Any) -> Any:
    return v / (1 + np.exp(-v))


@pytest.mark.parametrize(
    "x, w", [(np.float32, np.float32), (np.float32, _BF16), (_BF16, _BF16), (np.float16, np.float16)]
)
@pytest.mark.parametrize(
    "n, k, sizes",
    [
        (1, 8, {"lanes": 32, "depth": 1}),
        (37, 304, {"lanes": 32, "depth": 3, "resident": 0}),
        (300, 1032, {"lanes": 64, "depth": 2}),
        (20, 4096, {"lanes": 256, "depth": 4, "resident": 0}),
    ],
)
@pytest.mark.parametrize("bias, activation", [(None, None), (np.float32, "silu"), (_BF16, None)])
@pytest.mark.sample(4)
def test_one_row(x: Any, w: Any, n: int, k: int, sizes: Sizes, bias: Any, activation: str | None) -> None:
    rng = np.random.default_rng(n + k)
    given = [rng.standard_normal((1, k)).astype(x), (rng.standard_normal((n, k)) / np.sqrt(k)).astype(w)]
    given += [] if bias is None else [rng.standard_normal(n).astype(bias)]
    attrs = {"transpose_a": False, "transpose_b": True, "activation": activation}
    got = carried("matmul", given, attrs, sizes)
    want = given[0].astype(np.float64) @ given[1].astype(np.float64).T
    want = want if bias is None else want + given[2].astype(np.float64)
    close(got, want if activation is None else silu(want), **ROUNDED.get(x, {}))


@pytest.mark.parametrize("size, gate, sizes", [
    (1e-30, None, {"lanes": 64, "depth": 2}),
    (1e30, None, {"lanes": 32, "depth": 1}),
    (1.0, "silu", {"lanes": 64, "depth": 2}),
    (1e30, "silu", {"lanes": 32, "depth": 3}),
])  # fmt: skip
def test_a_norm_and_a_gate(size: float, gate: str | None, sizes: Sizes) -> None:
    rng = np.random.default_rng(5)
    x, gamma, w = rng.standard_normal((1, 520)) * size, rng.standard_normal(520), rng.standard_normal((90, 520)) / 23
    given = [a.astype(np.float32) for a in (x, gamma, w)]
    got = carried("normed_linear", given, {"eps": 1e-6, "gate": gate}, sizes)
    wide = [a.astype(np.float64) for a in given]
    want = wide[0] / np.sqrt((wide[0] ** 2).mean() + 1e-6) * wide[1] @ wide[2].T
    close(got, want if gate is None else silu(want[:, :45]) * want[:, 45:])


def test_barriers() -> None:
    rng = np.random.default_rng(6)
    given = [rng.standard_normal(s).astype(np.float32) for s in ((1, 1024), (1024,), (40, 1024))]
    attrs = {"eps": 1e-6, "gate": "silu"}
    every_barrier_is_missed("matmul_line.h", lambda: carried("normed_linear", given, attrs, {"lanes": 64, "depth": 2}))


def test_infinity_beside_a_row_that_ends() -> None:
    """What lies behind a row, which may be infinite, is no part of its sum."""
    given = [np.ones((1, 264), np.float32), np.zeros((3, 264), np.float32)]
    given[1][1] = np.inf
    attrs = {"transpose_a": False, "transpose_b": True, "activation": None}
    got = carried("matmul", given, attrs, {"lanes": 32, "depth": 2})
    np.testing.assert_array_equal(got, [[0, np.inf, 0]])


@pytest.mark.parametrize("n, sides, resident", [(1, 1, 1), (16384, 2, 1), (2048, 1, 2), (128256, 1, 1), (100, 1, 0)])
def test_workgroups_take_all_rows(n: int, sides: int, resident: int) -> None:
    chosen = Line((0,), (bf16, bf16), 64, 4, 4, resident)
    each = chosen.each(_TARGET, n, sides)
    assert 0 < each * sides <= 256


def test_rows_that_are_too_long_have_another_kernel() -> None:
    assert line(_TARGET, Product(1, 4, 16384, (), False, True), (bf16, bf16)) is not None
    assert line(_TARGET, Product(1, 4, 16392, (), False, True), (bf16, bf16)) is None
    assert line(_TARGET, Product(1, 4, 16384, (), False, True), (f32, f32)) is None


@pytest.mark.parametrize("constant", [True, False])
def test_weights_of_a_program_may_come_early(constant: bool) -> None:
    """A constant is read before the kernel before has ended, what another step may write is not."""
    graph = rlx.Graph("g")
    x, w = graph.input("x", (1, 512), "f32"), graph.input("w", (64, 512), "f32")
    weight = graph.constant(np.ones((64, 512), np.float32)) if constant else rlx.relu(w)
    graph.output("y", rlx.matmul(x, weight, transpose_b=True))
    lowering = Lowering(graph, plan(graph, planner="bump"), target("cuda"), "f32")
    with forcing(algorithm="line"):
        for node in graph.nodes:
            if not node.op.leaf:
                lowering.lower(node)
    kernels = [s.kernel for s in lowering.steps if isinstance(s, Launch)]
    (found,) = (k for k in kernels if isinstance(k, FileKernel) and k.stem == "matmul_line")
    assert dict(zip(MATMUL_LINE.constants, found.constants, strict=True))["EARLY"] == constant
