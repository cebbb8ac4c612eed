"""Attention that keeps the sums of its rows, and its gradient from these, by matrix instructions: the forms of the CUDA
source run on the CPU, against the definitions in float64. That with scores in shared memory is Vulkan's text too."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlx.backends.gpu.attention.choice import Problem, forcing, keeps_sums
from rlx.backends.gpu.program.target import MatrixUnits, Target
from rlx.driver import Limits
from rlx.dtypes import bf16, f16, f32
from rlx.ir import get_op
from rlx.ops.attention.parts import ALL_TOKENS, NO_TOKENS, ByToken
from tests.gpu import cuda_host, lowered
from tests.gpu.lowered import Array, carried_out, lower
from tests.gpu.test_attention_matrix import DEVICE, WORDS

pytestmark = pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
_PLAIN: dict[str, Any] = {"scale": 0.3, "causal": False, "window": None, "softcap": None}


@pytest.fixture(autouse=True)
def matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowered, "FEATURES", lowered.FEATURES | WORDS)


def _run(op: str, inputs: list[Array], attrs: dict[str, Any], stems: list[str]) -> list[Array]:
    graph, planned, steps = lower(op, inputs, attrs, "cuda", DEVICE)
    assert [step.kernel.stem for step in steps.steps] == stems  # type: ignore[union-attr]
    return list(carried_out(graph, planned, steps, inputs, "cuda").values())


def _wide(inputs: list[Array]) -> list[Array]:
    return [a if a.dtype.kind in "ib" else a.astype(np.float64) for a in inputs]


def _nmse(got: Array, want: Array) -> float:
    return float(np.sum((got.astype(np.float64) - want) ** 2) / np.sum(want**2))


_FORMS: list[tuple[str, tuple[int, ...], dict[str, Any], ByToken, bool]] = [
    ("registers", (1, 2, 1, 20, 70, 16), {}, NO_TOKENS, False),
    ("shared", (1, 4, 2, 33, 33, 16), {"causal": True}, ALL_TOKENS, True),
    ("registers", (2, 4, 2, 40, 40, 24), {"causal": True}, ALL_TOKENS, True),
    ("shared", (2, 4, 2, 33, 40, 20), {"window": 9, "softcap": 2.0}, ByToken.Q | ByToken.V, False),
    ("warpgroup", (1, 2, 1, 66, 70, 64), {}, ByToken.Y, False),
    ("warpgroup", (1, 2, 2, 66, 66, 64), {"causal": True}, ALL_TOKENS, True),
]
_LATE = [form if i < 2 else pytest.param(form, marks=pytest.mark.late) for i, form in enumerate(_FORMS)]


@pytest.mark.parametrize("form", _LATE)
def test_gradients_from_kept_sums(form: tuple[Any, ...]) -> None:
    scores, (b, h, kv, n_q, n_k, d), attrs, tokens, joined = form
    rng = np.random.default_rng(0)
    by_head = [rng.standard_normal(s).astype(ml_dtypes.bfloat16)
               for s in ((b, h, n_q, d), (b, kv, n_k, d), (b, kv, n_k, d), (b, h, n_q, d))]  # fmt: skip
    mask = rng.random((n_q, n_k)) < 0.7
    mask[3] = False
    given = [t.swapaxes(1, 2).copy() if one in tokens else t for one, t in zip(ByToken, by_head, strict=True)]
    operands, dy = given[:3], given[3]
    words = {**_PLAIN, **attrs, "tokens": tokens}
    if joined:
        operands, words["kv_heads"] = [np.concatenate(operands, 2)], kv
    operands.append(mask)
    with forcing(algorithm="matrix", scores=scores):
        y, sums = _run("attention_sums", operands, words, ["attention_sums_mma"])
        stems = ["attention_rows", "attention_sums_dq_mma", "attention_dkv_mma"]
        got = _run("attention_sums_grad", [dy, y, sums, *operands], words, stems)
    want_y, want_sums = get_op("attention_sums").reference(*_wide(operands), **words)
    seen = np.isfinite(want_sums)
    assert _nmse(y, want_y) < 1e-5 and (np.isneginf(sums) == ~seen).all()
    assert np.abs(sums[seen] - want_sums[seen]).max() < 1e-5
    wide = _wide([by_head[3], *by_head[:3], mask])
    want = get_op("attention_grad").reference(*wide, **{**_PLAIN, **attrs})
    want = [t.swapaxes(1, 2) if one in tokens else t for one, t in zip(ByToken, want, strict=False)]
    for a, w in zip(got, [np.concatenate(want, 2)] if joined else want, strict=True):
        assert _nmse(a, w) < 3e-5


def test_where_sums_are_kept() -> None:
    """Where both kernels use matrices of bf16, and the forward pass has more than a few queries."""

    def kept(stored: Any = bf16, sq: int = 2048, d: int = 64, **units: Any) -> bool:
        matrix = MatrixUnits(frozenset({f16, bf16}), **{"opaque": False, **units})
        target = Target(frozenset({"subgroup"}), Limits(shared_bytes=227 << 10), matrices=matrix)
        return keeps_sums(target, Problem(4, 16, 16, sq, 2048, d, stored, "f32"))

    assert kept() and kept(d=128, warpgroups=True) and kept(d=128, opaque=True) and kept(d=20)
    assert not kept(f16) and not kept(f32) and not kept(sq=4) and not kept(d=256)
    with forcing(algorithm="tiles"):
        assert not kept()
