"""Convolution, pooling, resizing and sampling run natively on Vulkan, and through the CUDA sources on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlx.conformance.case import Case, cases_of
from rlx.conformance.runner import run_case
from rlx.runtime import Session
from tests.gpu.lowered import run

pytestmark = pytest.mark.vulkan
OPS = (
    *("conv", "conv_transpose", "conv_grad_input", "conv_grad_weight", "im2col", "max_pool", "max_pool_grad"),
    *("avg_pool", "resize", "grid_sample"),
)


def _sample(op: str, count: int) -> list[Case]:
    listed = [c for c in cases_of(op) if all(np.prod(s.shape) < 3000 for s in c.inputs)]
    return [listed[i * len(listed) // count] for i in range(count)]


@pytest.fixture(scope="module")
def session() -> Any:
    return Session(device="vulkan")


@pytest.mark.parametrize("op", OPS)
def test_every_case_is_a_launch(op: str, session: Any) -> None:
    for case in _sample(op, 12):
        outcome = run_case(session, case)
        assert outcome.status == "pass", (case.id, outcome.message)
        assert set(outcome.how) <= {"native", "alias"}, (case.id, outcome.how)
        compiled = session.compile(case.graph())
        assert [d.how for d in compiled.report() if d.op == op] == ["native"], case.id
        compiled.close()


@pytest.mark.parametrize("backend", ["vulkan", "cuda"])
@pytest.mark.parametrize("op", OPS)
def test_launches_write_what_they_say_and_get_it_right(op: str, backend: str) -> None:
    for case in _sample(op, 4):
        got = run(op, *case.arrays(), backend=backend, **case.attrs)
        verdict = case.check({"y0": got})
        assert verdict.ok, (case.id, verdict.message)
