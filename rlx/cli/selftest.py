"""`rlx selftest`: the conformance cases on this machine's device and driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from rlx.cli.devices import full_name
from rlx.cli.long_commands import INTERRUPTED, limit
from rlx.cli.options import Device, Seconds
from rlx.host.progress import TimeUp, drawn, report, within

if TYPE_CHECKING:
    from rlx.conformance.case import Case


def selftest(
    device: Device = "auto",
    op: Annotated[list[str] | None, typer.Option(help="Only this op's cases; may be repeated.")] = None,
    quick: Annotated[int | None, typer.Option(help="Only this many cases of each op.", min=1)] = None,
    seconds: Seconds = 600,
) -> None:
    """Run the conformance cases on a device and compare with the float64 reference.

    Passes, failures, unsupported cases, and passes that needed the host are counted separately.
    Exit status 1 when a case fails, 3 when --seconds ended it before all were run; Ctrl-C, with the counts so far: 130.
    """
    from rlx.conformance.case import all_cases
    from rlx.conformance.runner import Outcome, Summary, pick, run_cases, sample
    from rlx.runtime import Session

    session = Session(device)
    info, named = session.info, full_name(session.info)
    cases = pick(all_cases(), op)
    if quick is not None:
        cases = sample(cases, quick)
    outcomes: list[Outcome] = []
    status = 0
    try:
        with within(limit(seconds)), drawn(info.id, only="cases"):
            for outcome in run_cases(session, _in_turns(cases)):
                outcomes.append(outcome)
                if outcome.status == "fail":
                    print(f"FAIL {outcome.case}: {outcome.message}", flush=True)
                report("cases", len(outcomes), len(cases))
    except TimeUp:
        status = 3
    except KeyboardInterrupt:
        status = INTERRUPTED
    for outcome in outcomes:
        if outcome.status == "unsupported":
            print(f"unsupported {outcome.case}: {outcome.message}")
    host = Counter(o.op for o in outcomes if o.status == "pass" and o.host)
    if host:
        print("with a host step: " + ", ".join(f"{name} ({n})" for name, n in sorted(host.items())))
    print(f"{info.id} ({named}): {Summary.of(outcomes)}")
    if len(outcomes) < len(cases):
        why = f"{seconds:g} seconds are over; --seconds 0 runs all" if status == 3 else "interrupted"
        print(f"{len(outcomes):,} of {len(cases):,} cases: {why}")
    if any(o.status == "fail" for o in outcomes) and status != INTERRUPTED:
        raise typer.Exit(1)
    if status and len(outcomes) < len(cases):
        raise typer.Exit(status)


def _in_turns(cases: Sequence[Case]) -> list[Case]:
    """The first case of each op, then the second of each: a run that is stopped has tried all ops."""
    seen: Counter[str] = Counter()
    turns = []
    for case in cases:
        turns.append(seen[case.op])
        seen[case.op] += 1
    return [case for _, case in sorted(zip(turns, cases, strict=True), key=lambda pair: pair[0])]
