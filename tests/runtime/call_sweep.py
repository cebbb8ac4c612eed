"""`python -m tests.runtime.call_sweep --device cpu [--cases 2] [OP …]`: conformance cases as calls on given memory.

Each case is built as calls outside a trace are (`CompiledGraph.build_call`), run twice on memory of its own, at other
places each time, and judged as the case has it: once at the start of an allocation, once where a row of an array may
begin (`VIEW_ALIGNMENT`). Prints for each op how many cases ran so, and why others did not.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from typing import Any

import numpy as np

import rlx
from rlx.conformance.case import Case, all_cases
from rlx.conformance.runner import pick, sample
from rlx.driver.memory.views import VIEW_ALIGNMENT
from rlx.errors import RlxError
from rlx.ir.checks import visible


def placed(x: rlx.Array, place: int) -> rlx.Array:
    """The array so many bytes behind the start of its memory."""
    buffer = x.device.acquire(x.nbytes + place or 1)
    buffer.copy_from(x._held(), 0, place, x.nbytes)
    return rlx.Array(x.device, buffer, x.shape, x.dtype, place)


def called(session: rlx.Session, case: Case) -> tuple[list[dict[str, Any]], str]:
    """The results of two runs, and why there are none."""
    graph = case.graph()
    with session.compile(graph) as compiled:
        built = compiled.build_call(list(graph.inputs))
        if isinstance(built, str):
            return [], built
        call, device, feeds = built[0], session.device, case.feeds()
        results, kept = [], []
        for place in (0, VIEW_ALIGNMENT):
            given = [placed(rlx.array(feeds[n], t.dtype, device=session), place) for n, t in graph.inputs.items()]
            outs = [
                rlx.array(np.zeros(t.type.array_shape, t.dtype.np), t.dtype, device=session)
                for t in visible(graph.outputs).values()
            ]
            call.begin([(x._held(), x._offset) for x in (*given, *outs)])
            kept += [*given, *outs]  # so that the next run's memory is other memory
            results.append((given, outs))
        found = []
        for given, outs in results:
            for n, x in zip(graph.inputs, given, strict=True):
                assert x.numpy().tobytes() == rlx.array(feeds[n], x.dtype, device=session).numpy().tobytes(), "written"
            found.append(dict(zip(visible(graph.outputs), (x.numpy() for x in outs), strict=True)))
        device.synchronize()
        call.close()
    return found, ""


def verdict(session: rlx.Session, case: Case) -> tuple[str, str]:
    """("called", "") for a case whose results are right; ("copied", reason); ("wrong", message)."""
    try:
        results, reason = called(session, case)
    except RlxError as error:
        return "wrong", f"{case.id}: {type(error).__name__}: {error}"
    for outputs in results:
        with np.errstate(all="ignore"):
            judged = case.check(outputs, session.info.preserves_subnormals)
        if not judged.ok:
            return "wrong", f"{case.id}: {judged.message}"
    return ("copied", reason) if reason else ("called", "")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.runtime.call_sweep", description=__doc__)
    parser.add_argument("ops", nargs="*")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cases", type=int, default=2, help="of each op")
    given = parser.parse_args()
    session = rlx.Session(given.device)
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for case in sample(pick(all_cases(), given.ops or None), given.cases):
        if not all(t.dtype.storage.elements == 1 for t in case.graph().inputs.values()):
            continue  # packed weights are no Arrays' values
        how, message = verdict(session, case)
        counts[how] += 1
        if how == "wrong":
            print(message, flush=True)
        elif message:
            reasons[f"{case.op}: {message}"] += 1
    for reason, count in sorted(reasons.items()):
        print(f"copied {count:3}  {reason}")
    print(f"{session.info.id}: " + ", ".join(f"{n} {how}" for how, n in sorted(counts.items())))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
