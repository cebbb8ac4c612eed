"""The compiled engine's kernels on AArch64, where qemu emulates programs: cases of ops, and the bits of functions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import rlx
from rlx.backends.cpu import choice
from rlx.backends.cpu.context import ArrayMemory
from rlx.backends.cpu.device import CpuBackend
from rlx.backends.cpu.step import Declined, EngineContext, binders_of, load_binders
from rlx.backends.cpu.weights import PackedWeights
from rlx.conformance.case import Case, cases_of
from rlx.dtypes import DType, f64, i64
from rlx.ir import Tensor
from tests.cpu import aarch64
from tests.cpu.processors import machines
from tests.cpu.test_engine_products import bound, run

pytestmark = [
    pytest.mark.late,
    pytest.mark.skipif(choice.why_not() is not None, reason=f"no compiled engine: {choice.why_not()}"),
    pytest.mark.skipif(aarch64.emulator() is None, reason="qemu-aarch64 emulates the processor: package qemu-user"),
]
Array = npt.NDArray[Any]
OPS = (
    "matmul conv conv_transpose conv_grad_weight integer_matmul softmax layer_norm rms_norm group_norm sum max argmax "
    "cumsum attention attention_step attention_grad max_pool avg_pool max_pool_grad resize grid_sample rope gather "
    "scatter transpose concat pad sort top_k packed_matmul packed_matmul_int8 dequantize cross_entropy "
    "layer_norm_grad exp sin pow log tanh erf div cast floor_divide bitwise_and atan2 cbrt cumprod fft rfft irfft "
    "softmax_grad group_norm_grad causal_conv selective_scan selective_scan_grad gated_delta_rule "
    "gated_delta_rule_grad grouped_matmul grouped_packed_matmul grouped_packed_matmul_int8 grouped_matmul_grad "
    "paged_attention"
).split()


def emulated(outputs: tuple[Tensor, ...], ins: list[Array], folder: Path) -> list[Array] | None:
    """The outputs of a node by the first binder that has kernels for it; None where none has."""
    load_binders()
    node = outputs[0].node
    outs = [np.zeros(t.type.array_shape, t.dtype.np) for t in node.outputs]
    device = CpuBackend().open(0)
    weights = PackedWeights([device.foreign(x.ctypes.data, x.nbytes, x) for x in ins], device.acquire)
    ctx = EngineContext(aarch64.MACHINE, 1, ArrayMemory(), lambda t: False, weights)
    for binder in binders_of(node.op):
        try:
            steps = binder(node, ins, outs, ctx)
        except Declined:
            continue
        if steps:
            packing = [step for packed in weights.made for step in packed.steps]
            aarch64.run([*packing, *steps], [*ins, *outs], folder)
            return outs
    return None


@pytest.mark.parametrize("op", OPS)
def test_cases_of_an_op(op: str, tmp_path: Path) -> None:
    """Two of an op's cases, of which one has kernels at least."""
    _some([c for c in cases_of(op) if not c.has_f64], tmp_path)


@pytest.mark.parametrize("dtype", [f64, i64], ids=str)
@pytest.mark.parametrize("op", ["matmul", "conv", "max_pool", "avg_pool", "sort", "top_k"])
def test_cases_of_64_bits(op: str, dtype: DType, tmp_path: Path) -> None:
    if dtype == f64 or op in ("matmul", "sort", "top_k"):
        _some([c for c in cases_of(op) if c.inputs[0].dtype == dtype], tmp_path)


def _some(every: Sequence[Case], folder: Path) -> None:
    """Runs two cases at most that have elements and kernels; there must be one."""
    cases = [c for c in every if all(np.prod(s.shape) for s in c.inputs)]
    ran = 0
    for case in cases[:: max(1, len(cases) // 6)]:
        graph = case.graph()
        made = tuple(graph.outputs.values())
        ins = [np.array(a, order="C") for a in case.arrays()]
        outs = emulated(made, ins, folder)
        if outs is None:
            continue
        verdict = case.check({f"y{i}": o for i, o in enumerate(outs)})
        assert verdict.ok, f"{case.id}: {verdict.message}"
        ran += 1
        if ran == 2:
            break
    assert ran


@pytest.mark.parametrize("name", ["sin", "log1p", "log10", "pow", "exp2", "cosh", "atanh"])
def test_functions_have_the_bits_of_other_machines(name: str, tmp_path: Path) -> None:
    graph = rlx.Graph("functions")
    x = np.random.default_rng(0).integers(0, 1 << 32, 999, np.uint32).view(np.float32)
    given = [x, np.abs(x[::-1])][: 2 if name == "pow" else 1]
    y = getattr(rlx, name)(*(graph.input(n, x.shape) for n, _ in zip("ab", given, strict=False)))
    out = np.empty_like(x)
    run(bound(y.node, given, [out], machines()[0], False), machines()[0])
    found = emulated((y,), given, tmp_path)
    assert found is not None and np.array_equal(found[0], out, equal_nan=True)
