"""Products in precision="bf16" on real devices: operands are rounded to nearest even, or not at all."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import rlx
from rlx.backends.cuda.target import cuda_target
from rlx.backends.gpu.program.executable import load_rules
from rlx.backends.gpu.program.lowering import Lowering
from rlx.backends.gpu.program.steps import Gemm
from rlx.driver import Limits
from rlx.driver.memory.planner import plan
from tests.devices import session_here

Array = npt.NDArray[np.float32]


def _nmse(got: Array, a: Array, b: Array) -> float:
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    return float(np.sum((got.astype(np.float64) - wanted) ** 2) / np.sum(wanted**2))


@pytest.mark.parametrize("device", ["cpu", "vulkan", "cuda"])
@pytest.mark.parametrize(
    "m, k, n", [(1, 96, 64), (8, 96, 64), (33, 96, 64), (128, 768, 768), (520, 768, 768)]
)
@pytest.mark.sample(vulkan=2)
def test_operands_are_rounded_to_nearest_even_or_not_at_all(device: str, m: int, k: int, n: int) -> None:
    session = session_here(device, precision="bf16")
    rng = np.random.default_rng(m)
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    # Ties go to even: halfway between two bf16, above an even and above an odd one.
    a[:, 0], a[:, 1] = 1 + 2.0**-8, 1 + 3 * 2.0**-8
    g = rlx.Graph("product")
    g.output("y", g.input("a", a.shape) @ g.input("b", b.shape))
    with session.compile(g) as exe:
        got = exe.run({"a": a, "b": b})["y"]
    x, w = (v.astype(ml_dtypes.bfloat16).astype(np.float32) for v in (a, b))
    assert min(_nmse(got, a, b), _nmse(got, x, w)) <= 1e-11


@pytest.mark.parametrize(("rows", "taken"), [(1, None), (16, None), (32, ("bf16", "bf16", "f32"))])
def test_a_widened_operand_is_multiplied_as_it_was(rows: int, taken: tuple[str, ...] | None) -> None:
    """Rows in bf16, cast to f32, times a large weight in bf16: the library multiplies the halves, and sums in f32; with
    few rows a kernel reads the rows in f32."""
    load_rules()
    g = rlx.Graph("logits")
    x, w = g.input("x", (rows, 2048), "bf16"), g.input("w", (8192, 2048), "bf16")
    g.output("y", rlx.linear(rlx.cast(x, "f32"), w))
    features = frozenset({"subgroup", "coopmat", "bf16_coopmat", "16bit_storage", "wgmma"})
    lowering = Lowering(g, plan(g, planner="bump"), cuda_target(features, Limits()), "f32")
    for node in g.nodes:
        if not node.op.leaf:
            lowering.lower(node)
    products = [(step.a_dtype.name, step.b_dtype.name, step.c_dtype.name) for step in lowering.steps
                if isinstance(step, Gemm)]  # fmt: skip
    assert products == ([] if taken is None else [taken])
