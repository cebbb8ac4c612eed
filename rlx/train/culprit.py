"""Finds the node that first made a NaN or infinity, by running the failed step once more."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rlx import ops
from rlx.dtypes import f32
from rlx.ir import Node, Tensor
from rlx.ir.text import node_text
from rlx.runtime.session import Session
from rlx.runtime.store import Store
from rlx.train.program import Again

_TOGETHER = 64  # flags in one output
_NAN, _INFINITE = 0, 1


def culprit(session: Session, store: Store, again: Again, kept: dict[str, str], ranks: int = 1) -> str:
    """What made the step's loss or gradients not finite, as part of a sentence. `kept` names the batch's leaves;
    `ranks` is the number of ranks that share the batch.

    The graph is run without optimization, and each tensor is tested for NaN and infinity. Of the nodes that the loss
    (or a gradient) depends on, the first is named that holds a NaN which none of its inputs holds, or, without NaN, an
    infinity. NaN comes first because infinities may be intended, as in masks; those of a parameter never are."""
    flags = _flags(session, store, again)
    ends = [again.loss] if flags[again.loss.id].any() else [s for s in again.slopes if flags[s.id].any()][:1]
    if not ends and ranks > 1:
        return "on this rank it is finite: another rank's rows made it so, and that rank says how"
    if not ends:
        return "run again node by node it is finite, so that only the fused program's rounding made it so"
    what = _NAN if flags[ends[0].id][_NAN] else _INFINITE
    leading = _leading_to(ends[0].node, again)
    learned = (n for n in leading if _learned(n) and _hold(n.outputs, _INFINITE, flags) and what == _NAN)
    node = next(learned, None)
    if node is not None:
        return _told(node, _INFINITE, again, kept)
    node = next(n for n in leading if _makes(n, what, flags))
    told = _told(node, what, again, kept)
    if what == _NAN and _hold(node.inputs, _INFINITE, flags):
        source = next((n for n in _leading_to(node, again) if _makes(n, _INFINITE, flags)), None)
        told += "" if source is None else f", of infinity: {_told(source, _INFINITE, again, kept)}"
    return told + _ranges(session, store, again, node)


def _learned(node: Node) -> bool:
    return node.op.declared and str(node.attrs["name"]).partition(".")[0] in ("parameters", "optimizer", "state")


def _told(node: Node, what: int, again: Again, kept: dict[str, str]) -> str:
    value = ("NaN", "infinity")[what]
    if not node.op.declared:
        line = again.graph.lines.get(node.outputs[0].id)
        return f"{value} first came from {node_text(node)}{f', written at {line}' if line else ', of the gradient'}"
    name = node.attrs["name"]
    if name in kept:
        return f"{kept[name]} holds {value}"
    if _learned(node):
        return f"{name} holds {value} already, which the update of the step before made, or the start"
    return f"{name} holds {value}"


def _ranges(session: Session, store: Store, again: Again, node: Node) -> str:
    """The least and the largest element of each float that a node reads."""
    shown = [t for t in node.inputs if t.dtype.is_float and t.size]
    if node.op.declared or not shown:
        return ""
    graph = again.graph
    for name in list(graph.outputs):
        del graph.outputs[name]
    for i, t in enumerate(shown):
        graph.output(f"range{i}", ops.stack([_wide(ops.min(t)), _wide(ops.max(t))]))
    with session.compile(graph, weights=store, optimize=False) as program:
        values = program.run()
    ranges = [f"%{t.id} from {values[f'range{i}'][0]:.6g} to {values[f'range{i}'][1]:.6g}" for i, t in enumerate(shown)]
    return f"; it read {', '.join(ranges)}"


def _wide(x: Tensor) -> Tensor:
    return ops.cast(x, f32) if x.dtype.is_half else x


def _flags(session: Session, store: Store, again: Again) -> dict[int, npt.NDArray[np.bool_]]:
    """For each float tensor, by id, whether it holds a NaN and whether it holds an infinity."""
    graph = again.graph
    tensors = [t for n in list(graph.nodes) for t in n.outputs if t.dtype.is_float and t.size]
    for at in range(0, len(tensors), _TOGETHER):
        some = tensors[at : at + _TOGETHER]
        both = [ops.cast(ops.any(test(t)), f32) for t in some for test in (ops.isnan, ops.isinf)]
        graph.output(f"flags{at}", ops.stack(both))
    with session.compile(graph, weights=store, optimize=False) as program:
        values = program.run()
    flat = np.concatenate([values[f"flags{at}"] for at in range(0, len(tensors), _TOGETHER)]) != 0
    return dict(zip((t.id for t in tensors), flat.reshape(-1, 2), strict=True))


def _leading_to(end: Node, again: Again) -> list[Node]:
    """The nodes that a node's result depends on, and the node itself, in the order of the graph."""
    waiting = list(end.outputs)
    wanted = {t.id for t in waiting}
    while waiting:
        for t in waiting.pop().node.inputs:
            if t.id not in wanted:
                wanted.add(t.id)
                waiting.append(t)
    return [n for n in again.graph.nodes if any(t.id in wanted for t in n.outputs)]


def _makes(node: Node, what: int, flags: dict[int, npt.NDArray[np.bool_]]) -> bool:
    """Whether a node's output holds a NaN (or infinity) and none of its inputs does. False for constants, which hold it
    on purpose."""
    if node.op.is_constant:
        return False
    return _hold(node.outputs, what, flags) and not _hold(node.inputs, what, flags)


def _hold(tensors: Sequence[Tensor], what: int, flags: dict[int, npt.NDArray[np.bool_]]) -> bool:
    return any(t.id in flags and bool(flags[t.id][what]) for t in tensors)
