"""The runner: cases on a device, each with its verdict. A result counts as a pass only where it was computed and right.

An outcome is "pass", "fail" or "unsupported" (the device refused to compile it); passes that needed a host step say so.
Every recording a case makes also goes through the hazard checker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlx.conformance.case import Case
from rlx.conformance.hazards import HasSchedule, check_recording
from rlx.errors import RlxError, UnsupportedOp
from rlx.runtime import CompiledGraph, Session

Status = Literal["pass", "fail", "unsupported"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case on a device. `how` lists how its nodes ran; `max_ulp`, `nmse`, `max_error` are the worst
    of its outputs; `message` says what is wrong, or why it is not supported."""

    case: str
    op: str
    device: str
    status: Status
    how: tuple[str, ...] = ()
    max_ulp: float = 0.0
    nmse: float = 0.0
    max_error: float = 0.0
    message: str = ""

    @property
    def host(self) -> bool:
        """Whether a step ran on the host although the device is not the CPU."""
        return "host" in self.how


def run_case(session: Session, case: Case) -> Outcome:
    """Compiles and runs one case. Raises only what is not rlx's own error: that is a bug, not a verdict."""
    device = session.info.id
    try:
        compiled = session.compile(case.graph())
    except UnsupportedOp as error:
        return Outcome(case.id, case.op, device, "unsupported", message=str(error))
    with compiled:
        try:
            outputs = compiled.run(case.feeds())
        except RlxError as error:
            return Outcome(case.id, case.op, device, "fail", message=f"{type(error).__name__}: {error}")
        how = tuple(sorted({d.how for d in compiled.report()}))
        hazards = find_run_hazards(compiled)
    with np.errstate(all="ignore"):
        verdict = case.check(outputs, session.info.preserves_subnormals)
    ok = verdict.ok and not hazards
    message = "; ".join([*([verdict.message] if verdict.message else []), *hazards])
    status: Status = "pass" if ok else "fail"
    return Outcome(
        case.id, case.op, device, status, how, verdict.max_ulp, verdict.nmse, verdict.max_error, message
    )


def find_run_hazards(compiled: CompiledGraph) -> list[str]:
    """The unordered accesses of a compiled graph's recordings, in words; none on the CPU, which runs in order."""
    recorded: Iterable[HasSchedule] = getattr(compiled.executable, "recorded", ())
    return [f"recording {i}: {h}" for i, r in enumerate(recorded) for h in check_recording(r, compiled.arena)]


def run_cases(session: Session, cases: Iterable[Case]) -> Iterator[Outcome]:
    """The outcomes, one by one."""
    for case in cases:
        yield run_case(session, case)


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts of outcomes on one device; `host` counts the passes that needed a host step."""

    passed: int
    failed: int
    unsupported: int
    host: int

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> Summary:
        listed = list(outcomes)
        counts = Counter(o.status for o in listed)
        host = sum(o.host for o in listed if o.status == "pass")
        return cls(counts["pass"], counts["fail"], counts["unsupported"], host)

    def __str__(self) -> str:
        return (
            f"{self.passed} passed ({self.host} of them with a host step), {self.failed} failed, "
            f"{self.unsupported} unsupported"
        )


def sample(cases: Iterable[Case], per_op: int) -> list[Case]:
    """A stratified sample: `per_op` cases of every op, spread evenly over the op's list."""
    by_op: dict[str, list[Case]] = {}
    for case in cases:
        by_op.setdefault(case.op, []).append(case)
    chosen = []
    for listed in by_op.values():
        n = min(per_op, len(listed))
        chosen += [listed[i * len(listed) // n] for i in range(n)]
    return chosen
