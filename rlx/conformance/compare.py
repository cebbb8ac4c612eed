"""How far values are from the float64 reference: of one array, and of every tensor of a compiled graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.conformance.oracle import evaluate
from rlx.dtypes import DType
from rlx.ir import Tensor
from rlx.runtime import CompiledGraph

Array = npt.NDArray[Any]
MAX_NMSE = 1e-11
MAX_RELATIVE = 1e-5  # of the largest reference value
HALF_NMSE = 1e-4  # of a tensor stored in 16 bits: bf16 rounds to 2**-9, whose square is 4e-6
HALF_RELATIVE = 1e-2


@dataclass(frozen=True, slots=True)
class Distance:
    """`nmse`: squared error over squared reference; `error`: largest absolute error; `scale`: largest reference value;
    `specials`: whether NaN and infinities stand in the same places."""

    nmse: float
    error: float
    scale: float
    specials: bool

    def within(self, nmse: float = MAX_NMSE, relative: float = MAX_RELATIVE) -> bool:
        """Whether the values count as the reference's."""
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
    """One tensor of a program, its distance, and the NMSE and the largest error over scale it is held to."""

    tensor: Tensor
    distance: Distance
    limits: tuple[float, float]

    @property
    def ok(self) -> bool:
        return self.distance.within(*self.limits)


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
) -> list[NodeDistance]:
    """Runs a graph compiled with `planner="bump"` and compares every tensor with the float64 reference of the very
    graph that ran, in order. `weights` are the host's own, so that a device that garbles them does not go unseen;
    weights kept in half precision are rounded for the reference too."""
    compiled.run(inputs)
    program = compiled.program
    reference = evaluate(program, {**weights, **inputs})
    found = []
    for node in program.nodes:
        if node.op.leaf:
            continue
        for tensor in node.outputs:
            value = distance(compiled.value(tensor), reference[tensor.id])
            found.append(NodeDistance(tensor, value, node_limits(tensor.dtype)))
            if on_node is not None:
                on_node(found[-1])
    return found
