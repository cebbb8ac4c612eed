"""The distance of values from the float64 reference: of one array, and of every tensor of a compiled graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.conformance.oracle import apply_reference, evaluate_node
from rlx.dtypes import DType, f16
from rlx.host.progress import report
from rlx.ir import Tensor
from rlx.ir.expr import linearize
from rlx.ops.control.steps import step_budget
from rlx.passes.trees import node_trees
from rlx.runtime import CompiledGraph

Array = npt.NDArray[Any]
MAX_NMSE = 1e-11
MAX_RELATIVE = 1e-5  # limit on an error, relative to the largest reference value
HALF_NMSE = 1e-4  # the error of a tensor stored in 16 bits: bf16 rounds to 2**-9, whose square is 4e-6
HALF_RELATIVE = 1e-2
_ROUNDINGS = frozenset({"floor", "ceil", "round", "trunc", "sign", "mod", "fmod", "floordiv"})


@dataclass(frozen=True, slots=True)
class Distance:
    """The distance of an array from its reference.

    `nmse`: squared error over squared reference; `error`: largest absolute error; `scale`: largest absolute reference
    value; `specials`: whether NaN and infinities are in the same places.
    """

    nmse: float
    error: float
    scale: float
    specials: bool

    def within(self, nmse: float = MAX_NMSE, relative: float = MAX_RELATIVE) -> bool:
        """Whether the values are close enough to the reference's to count as equal."""
        return self.specials and self.nmse <= nmse and self.error <= relative * self.scale


def distance(got: Array, reference: Array) -> Distance:
    """The distance of an array from its float64 reference; integers and bools are compared as numbers."""
    a, b = np.asarray(got, np.float64), np.asarray(reference, np.float64)
    finite = np.isfinite(b)
    specials = bool(np.array_equal(a[~finite], b[~finite], equal_nan=True) and np.isfinite(a[finite]).all())
    if not specials or not finite.any():
        return Distance(0.0 if specials else np.inf, 0.0 if specials else np.inf, 0.0, specials)
    a, b = a[finite], b[finite]
    difference = a - b
    power = float(np.sum(b * b))
    squared = float(np.sum(difference * difference))
    nmse = squared / power if power else (0.0 if squared == 0 else np.inf)
    return Distance(nmse, float(np.max(np.abs(difference))), float(np.max(np.abs(b))), specials)


@dataclass(frozen=True, slots=True)
class NodeDistance:
    """One tensor of a program, its distance, and the largest NMSE and error over scale that it may have.

    `own`, for a tensor beyond these limits, is its distance from the reference computed from what its node really read:
    the node's own part in the error. A discontinuous result (an integer, a comparison, a rounding) counts as right when
    `own` is within the limits, since inputs that differ in the last bit may be on either side of the jump. `narrow`:
    `own` is within the limits only thanks to a reference that computes the elementwise node in its own precision.
    """

    tensor: Tensor
    distance: Distance
    limits: tuple[float, float]
    own: Distance | None = None
    narrow: bool = False

    @property
    def ok(self) -> bool:
        return self.distance.within(*self.limits) or (_jumps(self.tensor) and self.own_ok)

    @property
    def own_ok(self) -> bool:
        """Whether the node's result is right for the inputs that it really read."""
        return self.own is None or self.own.within(*self.limits)


def _jumps(tensor: Tensor) -> bool:
    """Whether the node's result is discontinuous, so that a small change of its inputs may change it by much."""
    node = tensor.node
    if not tensor.dtype.is_float:
        return True
    if not node.op.elementwise:
        return False
    return any(
        e.prim in _ROUNDINGS or (not e.dtype.is_float and any(a.dtype.is_float for a in e.args))
        for e in linearize(node_trees(node))
    )


def node_limits(dtype: DType) -> tuple[float, float]:
    """The largest NMSE and the largest error over scale of a tensor of this dtype; integers and bools are exact."""
    if not dtype.is_float:
        return 0.0, 0.0
    return (HALF_NMSE, HALF_RELATIVE) if dtype.is_half else (MAX_NMSE, MAX_RELATIVE)


def check_nodes(
    compiled: CompiledGraph,
    inputs: Mapping[str, Array],
    weights: Mapping[str, Array],
    on_node: Callable[[NodeDistance], None] | None = None,
    max_steps: int | None = None,
) -> list[NodeDistance]:
    """Runs a graph compiled with `planner="bump"` and compares every tensor with the float64 reference, in order.

    The reference evaluates the very graph that ran. `weights` are the host's own, so that a device that corrupts its
    weights is noticed; weights kept in half precision are rounded for the reference too. Where a discontinuous result
    counts as right though it differs from the reference, the reference continues from it. A float tensor that depends
    on one rounded to 16 bits has the limits of such a tensor. `max_steps` limits the steps that the loops of the run,
    and again those of the reference, make together.

    Raises: StepLimitExceeded.
    """
    with step_budget(max_steps):
        compiled.run(inputs)
    with step_budget(max_steps):  # the reference interprets loops, far slower than the run
        return _compared(compiled, inputs, weights, on_node, max_steps)


def _compared(
    compiled: CompiledGraph, inputs: Mapping[str, Array], weights: Mapping[str, Array],
    on_node: Callable[[NodeDistance], None] | None, max_steps: int | None,
) -> list[NodeDistance]:  # fmt: skip
    program, feeds = compiled.program, {**weights, **inputs}
    last = {t.id: at for at, node in enumerate(program.nodes) for t in node.inputs}
    values: dict[int, Array] = {}
    rounded: set[int] = set()  # tensors that depend on one rounded to 16 bits
    result = []
    for at, node in enumerate(program.nodes):
        report("checking", at, len(program.nodes))
        results = evaluate_node(node, values, feeds)
        coarse = any(t.id in rounded for t in node.inputs)
        for tensor, value in zip(node.outputs, results, strict=True):
            values[tensor.id] = value
            if node.op.leaf:
                continue
            if coarse or tensor.dtype.is_half:
                rounded.add(tensor.id)
            got = compiled.value(tensor)
            limits = node_limits(f16 if coarse and tensor.dtype.is_float else tensor.dtype)
            with step_budget(max_steps):
                result.append(_judge(compiled, values, tensor, got, limits))
            if result[-1].ok and result[-1].own is not None:
                values[tensor.id] = _wide(got)
            if on_node is not None:
                on_node(result[-1])
        for t in node.inputs:  # keeping all reference values would take more than twice the device's memory
            if last[t.id] == at:
                values.pop(t.id, None)
    return result


def _judge(
    compiled: CompiledGraph,
    values: Mapping[int, Array],
    tensor: Tensor,
    got: Array,
    limits: tuple[float, float],
) -> NodeDistance:
    far = distance(got, values[tensor.id])
    if far.within(*limits):
        return NodeDistance(tensor, far, limits)
    node = tensor.node
    read = [values[t.id] if t.node.op.leaf else _wide(compiled.value(t)) for t in node.inputs]
    own = apply_reference(node, read, upcast=True)[tensor.index]
    exact = apart = distance(got, own)
    if node.op.elementwise:
        # A tree with a rounding rounds a value of its own precision, which may round differently from the float64
        # value.
        rounded = [a.astype(t.dtype.np) for a, t in zip(read, node.inputs, strict=True)]
        plain = np.asarray(apply_reference(node, rounded, upcast=False)[tensor.index])
        apart = distance(got, np.where(_apart(got, plain) < _apart(got, own), plain.astype(own.dtype), own))
    narrow = apart.within(*limits) and not exact.within(*limits)
    return NodeDistance(tensor, far, limits, apart, narrow)


def _apart(a: Array, b: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return np.asarray(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)))


def _wide(array: Array) -> Array:
    """Floats as float64, whatever their size; integers and bools unchanged."""
    return array if array.dtype.kind in "iub" else array.astype(np.float64)
