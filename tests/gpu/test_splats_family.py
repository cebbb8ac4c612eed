"""Gaussian splatting: native on a GPU, right by the CUDA sources too, with barriers that are all needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.gpu.program.steps import Launch, Ref
from rlx.backends.gpu.rules import splats
from rlx.conformance.case import cases_of
from tests.devices import session_here
from tests.gpu import cuda_host
from tests.gpu.missed_barriers import every_barrier_is_missed
from tests.gpu.test_index_family import through_cuda

OPS = ("splat_tiles", "splat_blend", "splat_blend_grad")
# Cases for the branches of each op's kernels: several workgroups of splats, lists of several stages, none.
_CUDA = (
    "splat_tiles-257-3x2-pairs1028-normal-rects", "splat_tiles-2049-1x1-pairs1025-ties-rects",
    "splat_tiles-0-1x1-pairs1-normal-rects", "splat_tiles-300-5x5-pairs5000-normal-rects",
    "splat_tiles-65-3x2-pairs2600-normal-any", "splat_blend-40x24-66-pairs198-lists", "splat_blend-1x1-0-pairs4-lists",
    "splat_blend-16x16-12-pairs300-lists", "splat_blend_grad-17x5-18-pairs18-lists",
    "splat_blend_grad-16x16-12-pairs129-lists", "splat_blend_grad-5x33-3-pairs12-empty",
    "splat_blend-f64-100x3-140-pairs490-lists", "splat_blend_grad-f64-16x16-12-pairs600-lists",
)  # fmt: skip
_NEEDS = {
    "splat_count.h": "splat_tiles-257-3x2-pairs1028-normal-rects",
    "splat_digits.h": "splat_tiles-300-5x5-pairs5000-normal-rects",
    "splat_move.h": "splat_tiles-300-5x5-pairs5000-normal-rects",
    "splat_blend.h": "splat_blend-100x3-140-pairs490-lists",
    "splat_warps.h": "splat_blend_grad-40x24-140-pairs420-lists",
    "splat_blend_grad.h": "splat_blend_grad-40x24-140-pairs420-lists",
}


@pytest.fixture(scope="module", params=["vulkan", "cuda"])
def gpu(request: pytest.FixtureRequest) -> rlx.Session:
    return session_here(request.param, fallback="error")


@pytest.mark.parametrize("op", OPS)
def test_native(gpu: rlx.Session, op: str) -> None:
    for case in cases_of(op):
        with gpu.compile(case.graph()) as compiled:
            (entry,) = [d for d in compiled.report() if d.op == op]
            assert entry.how == "native", case.id


@pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
@pytest.mark.parametrize("name", _CUDA)
def test_cuda_source(name: str) -> None:
    (case,) = [c for c in cases_of(name.split("-")[0]) if c.id == name]
    verdict = case.check(through_cuda(case))
    assert verdict.ok, verdict.message


@pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
@pytest.mark.parametrize("header", list(_NEEDS))
def test_every_barrier_is_needed_and_missed(header: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (case,) = [c for c in cases_of(_NEEDS[header].split("-")[0]) if c.id == _NEEDS[header]]
    if header == "splat_blend_grad.h":  # as where shared memory is small, and not by warps
        monkeypatch.setattr(splats, "_WIDE", {4: 1 << 30})
        assert case.check(through_cuda(case)).ok
    every_barrier_is_missed(header, lambda: through_cuda(case))


def _scanned(sums: np.ndarray[Any, np.dtype[Any]]) -> tuple[Any, int]:
    """splat_scan of the sums of workgroups: where each begins, and the total."""
    n = sums.size
    memory = {"s": np.zeros(8 * n + 4, np.uint8)}
    words = memory["s"].view(np.uint32)
    words[:n] = sums
    read, starts, total = Ref("s", 0, 4 * n), Ref("s", 4 * n, 4 * n), Ref("s", 8 * n, 4)
    step = Launch(splats.SPLAT_SCAN(), (1, 1, 1), (read, starts, total, n), (read,), (starts, total))
    cuda_host.launch(step, memory)
    return words[n : 2 * n], int(words[-1])


@pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
def test_sums_of_more_than_65536_splats() -> None:
    """Several rounds of a workgroup, which sums that leave the range of 31 bits do not wrap."""
    sums = np.random.default_rng(0).integers(0, 1 << 20, 600).astype(np.uint32)
    starts, total = _scanned(sums)
    np.testing.assert_array_equal(starts, np.cumsum(sums) - sums)
    assert total == sums.sum()
    sums[300:] = 2**31 - 1
    starts, total = _scanned(sums)
    assert total == 2**31 - 1 and (starts[301:] == 2**31 - 1).all()
    every_barrier_is_missed("splat_scan.h", lambda: _scanned(sums))
