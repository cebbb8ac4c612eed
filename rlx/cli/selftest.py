"""`rlx selftest`: the conformance cases on this very device and driver."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def selftest(
    device: Annotated[
        str, typer.Option(help='"auto", "cpu", "vulkan", "cuda", or one with a number.')
    ] = "auto",
    op: Annotated[list[str] | None, typer.Option(help="Only this op's cases; may be repeated.")] = None,
    quick: Annotated[int | None, typer.Option(help="Only this many cases of each op.", min=1)] = None,
) -> None:
    """Run the conformance cases on a device and compare with the float64 reference.

    Passes, failures and unsupported cases are counted apart, and passes that needed the host too. Exit status 1 when
    a case fails.
    """
    from rich.console import Console
    from rich.progress import track

    from rlx.conformance.case import all_cases
    from rlx.conformance.runner import Outcome, Summary, run_case, sample
    from rlx.errors import UnsupportedOp
    from rlx.runtime import Session

    session = Session(device)
    cases = [c for c in all_cases() if not op or c.op in op]
    if not cases:
        raise UnsupportedOp(
            f"no cases for {op}; the ops are {', '.join(sorted({c.op for c in all_cases()}))}"
        )
    if quick is not None:
        cases = sample(cases, quick)
    outcomes: list[Outcome] = []
    console = Console(stderr=True)
    for case in track(cases, description=session.info.id, console=console, disable=not sys.stderr.isatty()):
        outcomes.append(run_case(session, case))
        if outcomes[-1].status == "fail":
            print(f"FAIL {case.id}: {outcomes[-1].message}")
    print(f"{session.info.id} ({session.info.name}, {session.info.driver}): {Summary.of(outcomes)}")
    if any(o.status == "fail" for o in outcomes):
        raise typer.Exit(1)
