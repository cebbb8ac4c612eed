"""A case under guard bytes: its slots lie apart in memory filled with NaN, and what no slot covers must stay as it was.

The memory of a plain run is zero at first and other slots lie beside the case's own: a kernel that reads what nobody
wrote, or writes one element too many, may go unseen there.
"""

from __future__ import annotations

import numpy as np

from rlx.conformance.case import Case
from rlx.conformance.fuzz import Way, run
from rlx.conformance.random_graphs import RandomGraph
from rlx.driver import Device
from rlx.passes import optimize

GUARD_BYTES = 256


def guarded_faults(device: Device, case: Case) -> str:
    """What is wrong with a case that runs twice between guard bytes; empty when nothing is."""
    graph, _ = optimize(case.graph(), support=device.support)
    way = Way("bump", inplace=False, guard=GUARD_BYTES)
    runs, stray = run(graph, RandomGraph(0, graph, case.feeds()), device, way)
    if stray:
        return stray[0]
    for number, raw in enumerate(runs, 1):
        outputs = {
            n: raw[f"output {n}"].view(t.dtype.np).reshape(t.shape) for n, t in graph.outputs.items()
        }
        with np.errstate(all="ignore"):
            verdict = case.check(outputs, device.info.preserves_subnormals)
        if not verdict.ok:
            return f"run {number}: {verdict.message}"
    return ""
