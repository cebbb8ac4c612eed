"""Lowering of collectives: through the device's library where it has one for the ranks, else host steps."""

from __future__ import annotations

from rlx.backends.gpu.program.lowering import LOWERINGS, Lowered, Lowering, lowers
from rlx.backends.gpu.program.steps import Collective
from rlx.backends.gpu.program.target import Target
from rlx.ir import Node
from rlx.ops.collectives.records import place_of


@lowers("axis_index")
def lower_index(ctx: Lowering, node: Node) -> None:
    """Copies the rank's index, which is an argument of its program, to the output."""
    ctx.copy(ctx.block([place_of(node.attrs)]), ctx.ref(node.output))


def lower_collective(ctx: Lowering, node: Node) -> None:
    """Appends the library's call."""
    (x,), (y,) = node.inputs, node.outputs
    if x.size:  # an input without elements has a result without any, on all ranks
        ctx.emit(Collective(node, ctx.storage(x), (ctx.ref(x),), (ctx.ref(y),), node.name))


def _collected(node: Node, target: Target) -> bool:
    return target.collects is not None and target.collects(node)


for _op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"):
    LOWERINGS[_op] = Lowered(lower_collective, _collected)
