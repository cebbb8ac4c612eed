"""From the user's graph to the planned one: weight dtypes, storage layout, optimization, legalization."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Literal, NamedTuple

from rlx.driver import MemoryPlan, Slot
from rlx.driver.device import Support
from rlx.dtypes import DType
from rlx.host.collector import paused
from rlx.ir import Graph, Node, Tensor


class Prepared(NamedTuple):
    """The graph that is planned and lowered, the labels of nodes that come from a decomposed op, and the dtypes of the
    weights that are not stored as they are declared."""

    graph: Graph
    decomposed: frozenset[str]
    param_dtypes: Mapping[str, DType]


def prepare(
    graph: Graph,
    *,
    support: Callable[[Node], Support],
    param_dtypes: Mapping[str, DType],
    storage: str,
    packed: bool,
    optimize: bool,
    fallback: Literal["host", "error"],
    precision: str = "f32",
    launches: bool = True,
) -> Prepared:
    """Applies the dtypes that weights are stored in, the storage layout, and the passes.

    With `packed`, for devices whose kernels access memory only in 32-bit words, everything is stored and computed in 32
    bits. `launches`: whether each node costs a kernel launch, as on GPUs.
    Raises: UnsupportedOp."""
    from rlx import passes  # imported with the first program, not by `import rlx`

    with paused():
        prepared = passes.set_param_dtypes(graph, param_dtypes) if param_dtypes else graph
        if storage == "f32" or packed:
            prepared = passes.widen(prepared, support if packed else None)
        prepared, report = passes.optimize(
            prepared, support=support, fallback=fallback, fuse=optimize, precision=precision, launches=launches
        )
    return Prepared(prepared, frozenset(report.decomposed), param_dtypes)


def planned(
    graph: Graph,
    planner: Literal["reuse", "bump"],
    weight: Callable[[str], Slot | None],
    state: Callable[[str], Slot | None],
    max_alloc_bytes: int,
    outside: Container[str] | None = None,
    before: MemoryPlan | None = None,
) -> MemoryPlan:
    """The memory plan of a graph; `weight` and `state` give the slots of weights and states by name. `outside`, as in
    the planner, names the inputs whose memory each call passes. `before` is a plan that the planner made of this graph
    with other slots."""
    from rlx.driver.memory.planner import moved, plan  # imported with the first program, not by `import rlx`

    def slots(tensors: Mapping[str, Tensor], find: Callable[[str], Slot | None]) -> dict[str, Slot]:
        return {n: find(n) or Slot("unset", 0, t.type.nbytes, t.dtype) for n, t in tensors.items()}

    with paused():
        params, states = slots(graph.params, weight), slots(graph.states, state)
        if before is not None and not before.bodies and outside is None:
            return moved(before, graph, params, states)
        return plan(
            graph,
            planner=planner,
            param_slots=params,
            state_slots=states,
            max_alloc_bytes=max_alloc_bytes,
            outside=outside,
        )
