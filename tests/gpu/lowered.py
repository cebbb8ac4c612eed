"""Runs the steps that one op is lowered to, launch by launch, over NumPy segments: for Vulkan on the bare host of
`harness`, for CUDA by the sources on the CPU.

After each step, no byte outside the ranges that it declares as written may have changed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import rlx.backends.vulkan
from rlx.backends.cuda.target import cuda_target
from rlx.backends.gpu.elementwise.spirv import float_modes
from rlx.backends.gpu.program.executable import load_rules
from rlx.backends.gpu.program.lowering import ARGS, SCRATCH, Lowering
from rlx.backends.gpu.program.steps import Copy, FileKernel, Gemm, Launch, Step, TreeKernel
from rlx.backends.gpu.program.target import AddsBias, Target, adds_any_bias
from rlx.backends.vulkan.target import vulkan_target
from rlx.driver import Limits, MemoryPlan
from rlx.driver.memory.planner import plan
from rlx.ir import Graph
from tests.gpu import cuda_host
from tests.gpu.harness import VulkanHost

SPIRV = Path(rlx.backends.vulkan.__file__).parent / "spirv"
FEATURES = frozenset({"16bit_storage", "8bit_storage", "i64", "i16", "f64"})
SOFTWARE = True  # the target is a software driver
Array = npt.NDArray[Any]
CarryOut = Callable[[Step, dict[str, Array], str], None]
# The errors allowed of results that are stored in 16 bits: one rounding to 11 or 8 bits.
ROUNDED: dict[Any, dict[str, float]] = {
    np.float16: {"nmse": 2.5e-7, "worst": 5e-4},
    ml_dtypes.bfloat16: {"nmse": 1.6e-5, "worst": 4e-3},
}


@cache
def host() -> VulkanHost:
    return VulkanHost()


@cache
def float_words() -> frozenset[str]:
    """The float modes that the host's device offers, as `emit_spirv` names them. Programs request all of them: else
    drivers may flush subnormals and assume that no value is NaN."""
    first = rlx.backends.vulkan.backend.probe()[0].features
    return frozenset(w for w in first if w.startswith(("float_controls", "denorm_preserve", "rte")))


def target(
    backend: str = "vulkan", limits: Limits | None = None, adds_bias: AddsBias = adds_any_bias
) -> Target:
    """The target of a device with these limits and FEATURES."""
    if backend == "cuda":
        return cuda_target(FEATURES, limits or Limits(), adds_bias=adds_bias, software=SOFTWARE)
    return vulkan_target(FEATURES, limits or Limits(), SOFTWARE)


def lower(
    op: str,
    inputs: list[Array],
    attrs: dict[str, Any],
    backend: str = "vulkan",
    limits: Limits | None = None,
    precision: str = "f32",
) -> tuple[Graph, MemoryPlan, Lowering]:
    """The graph of one op, its plan, and the lowering that holds the op's steps."""
    importlib.import_module("rlx.ops")
    load_rules()
    graph = Graph(op)
    ins = [graph.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(inputs)]
    for i, out in enumerate(graph.add(op, ins, attrs)):
        graph.output(f"y{i}", out)
    planned = plan(graph, planner="bump")
    lowering = Lowering(graph, planned, target(backend, limits), precision)
    lowering.lower(graph.nodes[-1])
    return graph, planned, lowering


def kernel_of(inputs: list[Array], attrs: dict[str, Any]) -> TreeKernel:
    """The elementwise kernel that a fused node of these inputs is lowered to."""
    (step,) = lower("fused", inputs, attrs)[2].steps
    assert isinstance(step, Launch) and isinstance(step.kernel, TreeKernel)
    return step.kernel


def run(
    op: str,
    *inputs: Array,
    limits: Limits | None = None,
    backend: str = "vulkan",
    precision: str = "f32",
    **attrs: Any,
) -> Array:
    """The op's first output, by its Vulkan kernels or by its CUDA kernels run on the CPU."""
    return outputs(op, list(inputs), attrs, backend, limits, precision)["y0"]


def outputs(
    op: str,
    inputs: list[Array],
    attrs: dict[str, Any],
    backend: str = "vulkan",
    limits: Limits | None = None,
    precision: str = "f32",
) -> dict[str, Array]:
    """All of the op's outputs, y0, y1, …"""
    graph, planned, lowering = lower(op, inputs, attrs, backend, limits, precision)
    return carried_out(graph, planned, lowering, inputs, backend)


def memory(planned: MemoryPlan, lowering: Lowering) -> dict[str, Array]:
    """The segments of a plan before a run: the argument blocks, and NaN everywhere else."""
    segments = {name: np.full(max(n, 1), 0xFF, np.uint8) for name, n in planned.segments.items()}
    segments[ARGS] = np.frombuffer(bytes(lowering.args) or b"\0", np.uint8).copy()
    segments[SCRATCH] = np.full(max(lowering.scratch_bytes, 1), 0xFF, np.uint8)
    return segments


def carried_out(
    graph: Graph,
    planned: MemoryPlan,
    lowering: Lowering,
    inputs: list[Array],
    backend: str,
    carry_out: CarryOut | None = None,
) -> dict[str, Array]:
    """Runs lowered steps, by `carry_out` if given instead of `execute`, and returns the outputs by name."""
    segments = memory(planned, lowering)
    for tensor, value in zip(graph.inputs.values(), inputs, strict=True):
        slot = planned.slots[tensor.id]
        raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        segments[slot.segment][slot.offset : slot.offset + raw.size] = raw
    for node in graph.nodes:
        if node.op.is_constant and node.output.id in planned.slots:
            slot = planned.slots[node.output.id]
            raw = np.ascontiguousarray(node.attrs["value"]).reshape(-1).view(np.uint8)
            segments[slot.segment][slot.offset : slot.offset + raw.size] = raw
    for step in lowering.steps:
        (carry_out or execute)(step, segments, backend)
    made = {}
    for name, t in graph.outputs.items():
        slot = planned.slots[t.id]
        raw = segments[slot.segment][slot.offset : slot.offset + slot.nbytes]
        made[name] = raw.view(t.dtype.np).reshape(t.shape).copy()
    return made


def execute(step: Step, segments: dict[str, Array], backend: str) -> None:
    """Runs one step, and checks that it changes only the ranges that it declares as written."""
    before = {name: data.copy() for name, data in segments.items()}
    if isinstance(step, Copy):
        source, target = step.source, step.target
        segments[target.segment][target.offset : target.end] = segments[source.segment][
            source.offset : source.end
        ]
    elif isinstance(step, Gemm):
        cuda_host.gemm(step, segments)
    elif backend == "cuda" and isinstance(step, Launch) and isinstance(step.kernel, FileKernel):
        cuda_host.launch(step, segments)
    else:
        assert isinstance(step, Launch), step
        args = [a if isinstance(a, int | float) else (segments[a.segment], a.offset) for a in step.args]
        if isinstance(step.kernel, FileKernel):
            name = "-".join((step.kernel.stem, *(v for _, v in step.kernel.defines)))
            host().run(_module(name), step.groups, args, step.kernel.constants)
        else:
            host().run(tree_module(step.kernel), step.groups, args)
    for name, data in segments.items():
        changed = before[name] != data
        for ref in step.writes:
            if ref.segment == name:
                changed[ref.offset : ref.end] = False
        assert not changed.any(), f"{step.label}: wrote outside its ranges in {name}"


@cache
@cache
def _module(name: str) -> bytes:
    """A shipped module, with the float modes that the runtime asks for."""
    return float_modes((SPIRV / f"{name}.spv").read_bytes(), float_words())


def tree_module(kernel: TreeKernel) -> bytes:
    """The SPIR-V of an elementwise kernel."""
    return importlib.import_module("rlx.backends.gpu.elementwise.emit_spirv").emit_spirv(kernel, FEATURES)


def close(
    got: Array, want: Array, *, scale: Array | float = 0.0, nmse: float = 1e-11, worst: float = 1e-5
) -> None:
    """The project's measure of errors: normalized mean square and greatest error, NaN and infinity in the same places.

    `want` is float64. `scale`, for sums, is the root of the sum of the terms' squares.
    """
    got = got.astype(np.float64)
    assert got.shape == want.shape
    assert (np.isnan(got) == np.isnan(want)).all()
    infinite = np.isinf(want)
    assert (got[infinite] == want[infinite]).all() and not np.isinf(got[~infinite]).any()
    keep = np.isfinite(want)
    error = got[keep] - want[keep]
    if error.size == 0:
        return
    reference = np.maximum(np.abs(want[keep]), np.broadcast_to(scale, want.shape)[keep])
    size = float(np.sum(reference * reference))
    if size == 0:
        assert (error == 0).all()
        return
    assert np.sum(error * error) / size <= nmse, f"NMSE {np.sum(error * error) / size:.2e}"
    assert np.abs(error).max() / reference.max() <= worst, (
        f"error {np.abs(error).max() / reference.max():.2e}"
    )
