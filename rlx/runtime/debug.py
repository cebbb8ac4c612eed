"""What RLX_DEBUG shows, on stderr: 1 the plan and how nodes run, 2 every step, 3 each step's time after each run,
4 each node's result beside the float64 reference of that node on the inputs it really had."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.ir import Node
from rlx.ir.text import node_text

if TYPE_CHECKING:
    from rlx.runtime.compiled import CompiledGraph

PLAN, LAUNCHES, TIMINGS, VALUES = 1, 2, 3, 4


def say(text: object) -> None:
    print(text, file=sys.stderr, flush=True)


def show_built(compiled: CompiledGraph, level: int) -> None:
    """After a program is recorded."""
    if level >= PLAN:
        say(compiled.report())
    if level >= LAUNCHES:
        say("\n".join(compiled.executable.listing()))


def show_run(compiled: CompiledGraph, level: int) -> None:
    """After a run. The timings run the steps once more, so states are updated again."""
    if level >= TIMINGS:
        found = compiled.executable.timings()
        total = sum(us for _, us in found)
        say("\n".join(f"{us:10.1f} µs {us / total if total else 0:5.0%}  {name}" for name, us in found))
        say(f"{total:10.1f} µs in {len(found)} steps on {compiled.device.info.id}")
    if level >= VALUES:
        for node in compiled.program.nodes:
            if not node.op.leaf:
                say(_beside_reference(compiled, node))


def _beside_reference(compiled: CompiledGraph, node: Node) -> str:
    ins = [compiled.value(t) for t in node.inputs]
    wide = [a if a.dtype.kind in "iub" else a.astype(np.float64) for a in ins]
    with np.errstate(all="ignore"):
        made = node.op.reference(*wide, **node.attrs)
        outs = made if isinstance(made, tuple) else (made,)
        errors = ", ".join(_error(compiled.value(t), r) for t, r in zip(node.outputs, outs, strict=True))
    return f"{errors}  {node_text(node)}"


def _error(got: Any, reference: Any) -> str:
    a, b = np.asarray(got, np.float64), np.asarray(reference, np.float64)
    if not a.size:
        return "empty"
    scale = float(np.max(np.abs(b), initial=0.0, where=np.isfinite(b)))
    worst = float(np.max(np.abs(a - b), initial=0.0, where=np.isfinite(a) & np.isfinite(b)))
    odd = int(np.count_nonzero(np.isfinite(a) != np.isfinite(b)))
    return f"max error {worst:.1e} of {scale:.1e}" + (f", {odd} not finite alike" if odd else "")
