"""A case between guard bytes: its slots lie apart in memory filled with NaN, and bytes outside them must not change.

In a plain run memory is zero at first and slots are adjacent, so that a kernel that reads memory never written, or
writes one element too many, may go unnoticed.
"""

from __future__ import annotations

import numpy as np

from rlx.conformance.case import Case
from rlx.conformance.fuzz import PlanVariant, run
from rlx.conformance.random_graphs import RandomGraph
from rlx.driver import Device
from rlx.passes import optimize

GUARD_BYTES = 256


def guarded_faults(device: Device, case: Case) -> str:
    """Runs a case twice between guard bytes; gives the first fault as a message, empty if there is none."""
    graph, _ = optimize(case.graph(), support=device.support)
    way = PlanVariant("bump", inplace=False, guard=GUARD_BYTES)
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
