"""Attention over keys and values of 8 bits, and in pages: the CUDA sources on the host, views at odd places, and caches
that are written without queries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.gpu.program.executable import load_rules
from rlx.conformance.case import Case, cases_of
from tests.full import sampled
from tests.gpu import cuda_host
from tests.gpu.lowered import outputs

load_rules()


def _few(case: Case) -> bool:
    """Whether the case has few queries of a width that the kernel takes."""
    q = case.inputs[0].shape
    return 0 < q[1] <= 16 and q[3] in (32, 64, 128, 256) and case.inputs[1].shape[1] > 0


def _paged(case: Case) -> bool:
    """The same for pages."""
    q, k = case.inputs[0], case.inputs[1].shape
    few = 0 < q.shape[1] <= 16 and q.shape[3] in (32, 64, 128) and not case.has_f64
    return few and 0 not in (*k, *case.inputs[3].shape)


_CASES = [*sampled([c for c in cases_of("packed_attention") if _few(c)], most=4),
          *sampled([c for c in cases_of("paged_attention") if _paged(c) and not c.inputs[5:]], most=4),
          *sampled([c for c in cases_of("paged_attention") if _paged(c) and c.inputs[5:]], most=3)]  # fmt: skip


@pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
@pytest.mark.parametrize("case", _CASES, ids=lambda c: c.id)
def test_cuda_source(case: Case) -> None:
    verdict = case.check(outputs(case.op, case.arrays(), dict(case.attrs), "cuda"))
    assert verdict.ok, verdict.message


@pytest.mark.vulkan
def test_rows_that_begin_at_any_byte() -> None:
    """A view that begins at an odd byte is read element by element."""
    rng = np.random.default_rng(2)
    codes = rng.integers(-127, 128, 3 + 40 * 32).astype(np.int8)
    scales = rng.random((1, 40, 1, 1)).astype(np.float16)
    q = rng.standard_normal((1, 1, 2, 32)).astype(np.float32)

    def attend(q: rlx.Tensor, codes: rlx.Tensor, scales: rlx.Tensor) -> rlx.Tensor:
        k = rlx.reshape(codes[3:], (1, 40, 1, 32))
        return rlx.packed_attention(q, k, scales, k, scales, scale=1e-3)

    got = rlx.jit(attend, device="vulkan")(q, codes, scales)
    want = rlx.jit(attend, device="cpu")(q, codes, scales)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.vulkan
@pytest.mark.parametrize("op", ["attention_step", "rope_update"])
def test_caches_are_written_where_q_has_no_heads(op: str) -> None:
    q, k, caches = np.zeros((3, 0, 16), np.float32), np.ones((3, 2, 16), np.float32), np.zeros((12, 2, 16), np.float32)
    at = np.array([1, 3, 0], np.int32)

    def written(q: Any, k: Any, caches: Any, at: Any) -> Any:
        if op == "attention_step":
            state = rlx.reshape(caches, (3, 4, 2, 16))
            return rlx.attention_step(q, k, k, state, state, at)[1:]
        still = [f(np.zeros((1, 8), np.float32)) for f in (np.cos, np.sin)]
        return rlx.rope_update(q, k, k, caches, caches, at + np.arange(0, 12, 4, dtype=np.int32), at, *still)[1:]

    made = rlx.jit(written, device="vulkan")(q, k, caches, at)
    caches[[1, 7, 8]] = 1
    assert all(np.array_equal(np.reshape(one, caches.shape), caches) for one in made)
