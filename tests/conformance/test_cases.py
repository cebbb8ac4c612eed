"""A stratified sample of the conformance cases on every device; `make conformance` runs them all."""

from __future__ import annotations

from typing import Any

import pytest

from rlx.conformance.case import Case, all_cases
from rlx.conformance.runner import run_case, sample
from rlx.ir import REGISTRY
from rlx.runtime import Session
from rlx.runtime.custom import FAMILY
from tests.devices import session_on_engine
from tests.full import full

CASES_PER_OP = 4 if full() else 2


@pytest.fixture(params=["cpu", "vulkan", "cuda"])
def session(request: pytest.FixtureRequest) -> Session:
    return session_on_engine(request.param)  # with NumPy some ops would be their references beside themselves


def _sample() -> list[Any]:
    """The sample, of which all but the first case of each op is late: each needs kernels of its own."""
    seen: set[str] = set()
    found: list[Any] = []
    for case in sample(all_cases(), CASES_PER_OP):
        marks = [pytest.mark.late] if case.op in seen else []
        found.append(pytest.param(case, marks=marks))
        seen.add(case.op)
    return found


@pytest.mark.parametrize("case", _sample(), ids=lambda c: c.id)
def test_case(session: Session, case: Case) -> None:
    outcome = run_case(session, case)
    assert outcome.status == "pass", outcome.message
    assert not outcome.host, f"{case.id} has no kernel on {session.info.id}"


def test_every_op_has_cases() -> None:
    covered = {c.op for c in all_cases()}
    assert {name for name, op in REGISTRY.items() if not op.leaf and op.family != FAMILY} == covered


def test_the_sample_takes_every_op_and_spreads() -> None:
    cases = all_cases()
    chosen = sample(cases, 3)
    assert {c.op for c in chosen} == {c.op for c in cases}
    assert len(chosen) == len(set(chosen_ids := [c.id for c in chosen])) == len(chosen_ids)
