"""`rlx selftest`: the conformance cases on this machine's device and driver."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from rlx.cli.options import Device
from rlx.driver.progress import drawn, report


def selftest(
    device: Device = "auto",
    op: Annotated[list[str] | None, typer.Option(help="Only this op's cases; may be repeated.")] = None,
    quick: Annotated[int | None, typer.Option(help="Only this many cases of each op.", min=1)] = None,
) -> None:
    """Run the conformance cases on a device and compare with the float64 reference.

    Passes, failures, unsupported cases, and passes that needed the host are counted separately.
    Exit status 1 when a case fails.
    """
    from rlx.conformance.case import all_cases
    from rlx.conformance.runner import Outcome, Summary, pick, run_cases, sample
    from rlx.runtime import Session

    session = Session(device)
    info = session.info
    cases = pick(all_cases(), op)
    if quick is not None:
        cases = sample(cases, quick)
    outcomes: list[Outcome] = []
    with drawn(info.id, only="cases"):
        for outcome in run_cases(session, cases):
            outcomes.append(outcome)
            report("cases", len(outcomes), len(cases))
            if outcome.status == "fail":
                print(f"FAIL {outcome.case}: {outcome.message}")
    for outcome in outcomes:
        if outcome.status == "unsupported":
            print(f"unsupported {outcome.case}: {outcome.message}")
    host = Counter(o.op for o in outcomes if o.status == "pass" and o.host)
    if host:
        print("with a host step: " + ", ".join(f"{name} ({n})" for name, n in sorted(host.items())))
    print(f"{info.id} ({info.name}, {info.driver}): {Summary.of(outcomes)}")
    if any(o.status == "fail" for o in outcomes):
        raise typer.Exit(1)
