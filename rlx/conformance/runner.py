"""The runner: cases on a device, each with its verdict. A case passes only if its result was computed and is right.

An outcome is "pass", "fail" or "unsupported" (the device refused to compile it); a pass that needed a host step says
so. The hazard checker also checks every recording of a case; guarded runs follow if asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

import numpy as np

from rlx.conformance.case import Case
from rlx.conformance.guarded import guarded_faults
from rlx.conformance.hazards import HasSchedule, check_recording
from rlx.driver import DeviceArena
from rlx.errors import DeviceLost, RlxError, UnsupportedOp
from rlx.runtime import CompiledGraph, Session

Status = Literal["pass", "fail", "unsupported"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a case on a device.

    `how` lists how its nodes ran; `max_ulp`, `nmse`, `max_error` are the worst of its outputs; `message` says what is
    wrong, or why the case is not supported.
    """

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


def run_case(session: Session, case: Case, guarded: bool = False) -> Outcome:
    """Compiles and runs one case; with `guarded` then also between guard bytes, in memory filled with NaN.

    Raises: DeviceLost, after which no other case can run; and any error that is not an RlxError, with the case's name
    added, since that is a bug and no verdict.
    """
    try:
        return _run(session, case, guarded)
    except DeviceLost:
        raise
    except RlxError as error:
        message = f"{type(error).__name__}: {error}"
        return Outcome(case.id, case.op, session.info.id, "fail", message=message)
    except Exception as error:
        error.add_note(f"while running the case {case.id} on {session.info.id}")
        raise


def _run(session: Session, case: Case, guarded: bool) -> Outcome:
    device = session.info.id
    graph = case.graph()
    try:
        compiled = session.compile(graph).prepare()  # raises here if a kernel is missing
    except UnsupportedOp as error:
        return Outcome(case.id, case.op, device, "unsupported", message=str(error))
    with compiled:
        outputs = compiled.run(case.feeds())
        how = tuple(sorted({d.how for d in compiled.report()}))
        hazards = find_run_hazards(compiled)
    with np.errstate(all="ignore"):
        verdict = case.check(outputs, session.info.preserves_subnormals)
    guard_fault = guarded_faults(session.device, case) if guarded and verdict.ok else ""
    message = "; ".join([*filter(None, (verdict.message, guard_fault and f"guarded: {guard_fault}")), *hazards])
    ok = verdict.ok and not message
    status: Status = "pass" if ok else "fail"
    return Outcome(
        case.id, case.op, device, status, how, verdict.max_ulp, verdict.nmse, verdict.max_error, message
    )


def find_run_hazards(compiled: CompiledGraph) -> list[str]:
    """The unordered accesses in a compiled graph's recordings, as messages; none on the CPU, which runs in order."""
    pairs: Iterable[tuple[HasSchedule, DeviceArena]] = getattr(compiled.executable, "recordings", ())
    return [f"recording {i}: {h}" for i, (r, arena) in enumerate(pairs) for h in check_recording(r, arena)]


def run_cases(session: Session, cases: Iterable[Case], guarded: bool = False) -> Iterator[Outcome]:
    """Runs the cases and yields their outcomes, one by one."""
    for case in cases:
        yield run_case(session, case, guarded)


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


def pick(cases: Iterable[Case], ops: Iterable[str] | None) -> list[Case]:
    """The cases of these ops, or all of them for None. Raises: UnsupportedOp for an op that has no cases."""
    listed = list(cases)
    wanted = set(ops or ())
    known = {c.op for c in listed}
    if wanted - known:

        def near(name: str) -> str:
            close = get_close_matches(name, known, 1)
            return f"{name} ({close[0]}?)" if close else name

        raise UnsupportedOp(
            f"no cases for {', '.join(map(near, sorted(wanted - known)))}; the ops are {', '.join(sorted(known))}"
        )
    return [c for c in listed if not wanted or c.op in wanted]
