"""Lowering of control ops: the initial carries are copied to the outputs, which the bodies then update; a ControlCall
runs the bodies."""

from __future__ import annotations

from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import ControlCall
from rlx.driver.control import carried_copies
from rlx.ir import Node


@lowers("cond", "while_loop", "scan")
def lower_control(ctx: Lowering, node: Node) -> None:
    """Copies the carries to the outputs and appends the call."""
    for start, out in carried_copies(node, ctx.plan):
        ctx.copy(ctx.ref(start), ctx.ref(out))
    ctx.emit(ctx.call(ControlCall, node))
