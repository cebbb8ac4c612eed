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
from rlx.runtime.prepare import prepare

GUARD_BYTES = 256


def guarded_faults(device: Device, case: Case) -> str:
    """Runs a case twice between guard bytes, prepared as `compile` does it; gives the first fault, else ""."""
    original = case.graph()
    graph = prepare(
        original, support=device.support, param_dtypes={}, storage="typed", packed=device.info.packed, optimize=True,
        fallback="host",
    ).graph  # fmt: skip
    way = PlanVariant("bump", inplace=False, guard=GUARD_BYTES)
    runs, problems = run(graph, RandomGraph(0, graph, case.feeds()), device, way)
    if problems:
        return problems[0]
    for number, raw in enumerate(runs, 1):
        with np.errstate(all="ignore"):
            outputs = {
                n: raw[f"output {n}"].view(t.dtype.np).reshape(t.type.array_shape).astype(original.outputs[n].dtype.np)
                for n, t in graph.outputs.items()
            }
            verdict = case.check(outputs, device.info.preserves_subnormals)
        if not verdict.ok:
            return f"run {number}: {verdict.message}"
    return ""
