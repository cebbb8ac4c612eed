"""Convolution, pooling, resizing and sampling run natively on Vulkan, and through the CUDA sources on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlx.backends.gpu.program.candidates import narrowed
from rlx.backends.gpu.rules.conv.choice import Problem, candidates, forcing
from rlx.conformance.case import Case, cases_of
from rlx.conformance.runner import run_case
from rlx.dtypes import f32
from rlx.ir import get_op
from rlx.runtime import Session
from tests.full import full
from tests.gpu.lowered import run, target

pytestmark = pytest.mark.vulkan
OPS = (
    *("conv", "conv_transpose", "conv_grad_input", "conv_grad_weight", "im2col", "max_pool", "max_pool_grad"),
    *("avg_pool", "resize", "grid_sample"),
)


def _sample(op: str, most: int) -> list[Case]:
    listed = [c for c in cases_of(op) if all(np.prod(s.shape) < 3000 for s in c.inputs)]
    return [listed[i * len(listed) // most] for i in range(most)]


@pytest.fixture(scope="module")
def session() -> Any:
    return Session(device="vulkan")


@pytest.mark.parametrize("op", OPS)
def test_every_case_is_a_launch(op: str, session: Any) -> None:
    for case in _sample(op, 12 if full() else 1):
        outcome = run_case(session, case)
        assert outcome.status == "pass", (case.id, outcome.message)
        assert set(outcome.how) <= {"native", "alias"}, (case.id, outcome.how)
        compiled = session.compile(case.graph())
        assert [d.how for d in compiled.report() if d.op == op] == ["native"], case.id
        compiled.close()


@pytest.mark.parametrize("backend", ["vulkan", "cuda"])
@pytest.mark.parametrize("op", OPS)
def test_launches_write_what_they_say_and_get_it_right(op: str, backend: str) -> None:
    for case in _sample(op, 4 if full() else 1):
        got = run(op, *case.arrays(), backend=backend, **case.attrs)
        verdict = case.check({"y0": got})
        assert verdict.ok, (case.id, verdict.message)


@pytest.mark.parametrize(
    "wishes", [{"algorithm": "direct"}, {"algorithm": "tiles"}, {"algorithm": "tiles", "tile_m": 128, "split_k": 3}]
)
@pytest.mark.parametrize("backend", ["vulkan", "cuda"])
def test_every_candidate_for_a_convolution_gives_the_result(backend: str, wishes: dict[str, Any]) -> None:
    rng = np.random.default_rng(4)
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((1, 64, 3, 3), (70, 64, 3, 3), (70,)))
    attrs = {"strides": (1, 1), "pads": ((1, 1), (1, 1)), "dilations": (1, 1), "groups": 1, "activation": "relu"}
    found = candidates(target(backend), Problem(70, 9, 576, 1, 630, f32))
    assert {"direct", "tiles"} == {c.algorithm for c in found}
    assert narrowed(found, **wishes)
    with forcing(**wishes):
        got = run("conv", x, w, b, backend=backend, **attrs)
    want = get_op("conv").reference(*(a.astype(np.float64) for a in (x, w, b)), **attrs)
    np.testing.assert_allclose(got, want, atol=1e-4)
