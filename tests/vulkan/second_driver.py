"""`python -m tests.vulkan.second_driver OP …`: the sample's cases of these ops on the first Vulkan device. Each is a
line of JSON before it runs, so that whoever reads knows which one a driver died of, and another of its outcome."""

from __future__ import annotations

import json
import sys

from rlx.conformance.case import cases_of
from rlx.conformance.runner import run_case, sample
from rlx.ir import Graph, bodies
from rlx.runtime import Session

CASES_PER_OP = 1


def dtypes(graph: Graph) -> set[str]:
    """The dtypes of every tensor, those of the bodies of control ops too."""
    inner = (dtypes(body) for node in graph.nodes for body in bodies(node).values())
    return {t.dtype.name for node in graph.nodes for t in node.outputs}.union(*inner)


def main() -> None:
    session = Session("vulkan")
    print(json.dumps({"device": session.info.name, "auto": Session("auto").info.id}), flush=True)
    for case in sample([case for op in sys.argv[1:] for case in cases_of(op)], CASES_PER_OP):
        print(json.dumps({"case": case.id, "dtypes": sorted(dtypes(case.graph()))}), flush=True)
        outcome = run_case(session, case)
        print(
            json.dumps({"status": outcome.status, "host": outcome.host, "message": outcome.message}),
            flush=True,
        )


if __name__ == "__main__":
    main()
