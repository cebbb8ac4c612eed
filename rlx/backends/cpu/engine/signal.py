"""frame and windowed_frames: copies and products of a view of the signal whose frames overlap."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cpu.context import Array
from rlx.backends.cpu.engine.elementwise import tree_step
from rlx.backends.cpu.engine.step import EngineContext, EngineStep, engine
from rlx.backends.cpu.signal import frames_of
from rlx.dtypes import as_dtype
from rlx.ir import Node
from rlx.ir import expr as ex


@engine("frame", "windowed_frames")
def bind_frames(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: EngineContext
) -> list[EngineStep] | None:
    out = outs[0]
    seen = [frames_of(ins[0], out.shape[-2:], node.attrs["hop"]), *ins[1:]]
    args = [ex.arg(i, as_dtype(a.dtype)) for i, a in enumerate(seen)]
    tree = args[0] if len(args) == 1 else ex.call("mul", *args)
    step = tree_step([tree], seen, [out], ctx)
    return None if step is None else [step]
