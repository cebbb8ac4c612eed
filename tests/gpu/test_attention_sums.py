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
    ("tiles", (1, 2, 1, 66, 66, 8), {"causal": True}, ALL_TOKENS, True),
    ("registers", (1, 2, 1, 20, 70, 16), {}, NO_TOKENS, False),
    ("shared", (1, 4, 2, 33, 33, 16), {"causal": True}, ALL_TOKENS, True),
    ("registers", (2, 4, 2, 40, 40, 24), {"causal": True}, ALL_TOKENS, True),
    ("shared", (2, 4, 2, 33, 40, 20), {"window": 9, "softcap": 2.0}, ByToken.Q | ByToken.V, False),
    ("warpgroup", (1, 2, 1, 66, 70, 64), {}, ByToken.Y, False),
    ("tiles", (2, 4, 2, 33, 70, 6), {"window": 9, "softcap": 2.0}, ByToken.Q | ByToken.V, False),
    ("warpgroup", (1, 2, 2, 66, 66, 64), {"causal": True}, ALL_TOKENS, True),
]
_LATE = [form if 0 < i < 3 else pytest.param(form, marks=pytest.mark.late) for i, form in enumerate(_FORMS)]


@pytest.mark.parametrize("form", _LATE)
def test_gradients_from_kept_sums(form: tuple[Any, ...]) -> None:
    scores, (b, h, kv, n_q, n_k, d), attrs, tokens, joined = form
    rng = np.random.default_rng(0)
    tiles = scores == "tiles"
    by_head = [rng.standard_normal(s).astype(np.float32 if tiles else ml_dtypes.bfloat16)
               for s in ((b, h, n_q, d), (b, kv, n_k, d), (b, kv, n_k, d), (b, h, n_q, d))]  # fmt: skip
    mask = rng.random((n_q, n_k)) < 0.7
    mask[3] = False
    given = [t.swapaxes(1, 2).copy() if one in tokens else t for one, t in zip(ByToken, by_head, strict=True)]
    operands, dy = given[:3], given[3]
    words = {**_PLAIN, **attrs, "tokens": tokens, "binary": not tiles}
    if joined:
        operands, words["kv_heads"] = [np.concatenate(operands, 2)], kv
    operands.append(mask)
    end, way = ("", {"algorithm": "tiles"}) if tiles else ("_mma", {"algorithm": "matrix", "scores": scores})
    with forcing(**way):  # type: ignore[arg-type]
        y, sums = _run("attention_sums", operands, words, [f"attention_sums{end or '_tiles'}"])
        stems = ["attention_rows", f"attention_sums_dq{end}", f"attention_dkv{end}"]
        got = _run("attention_sums_grad", [dy, y, sums, *operands], words, stems)
    want_y, want_sums = get_op("attention_sums").reference(*_wide(operands), **words)
    seen = np.isfinite(want_sums[0])
    assert _nmse(y, want_y) < (1e-12 if tiles else 1e-5) and (np.isneginf(sums[0]) == ~seen).all()
    assert np.abs(sums.sum(0)[seen] - want_sums.sum(0)[seen]).max() < 1e-5
    wide = _wide([by_head[3], *by_head[:3], mask])
    want = get_op("attention_grad").reference(*wide, **{**_PLAIN, **attrs})
    want = [t.swapaxes(1, 2) if one in tokens else t for one, t in zip(ByToken, want, strict=False)]
    for a, w in zip(got, [np.concatenate(want, 2)] if joined else want, strict=True):
        assert _nmse(a, w) < (1e-12 if tiles else 3e-5)


@pytest.mark.parametrize("scores", ["registers", pytest.param("shared", marks=pytest.mark.late),
                                    pytest.param("tiles", marks=pytest.mark.late)])  # fmt: skip
def test_a_large_number_added_to_all_scores_changes_nothing(scores: str) -> None:
    """As without sums that are kept: a mask of -1e9 everywhere leaves equal weights, and large scores a weight of 1."""
    rng, tiles = np.random.default_rng(0), scores == "tiles"
    kind: Any = np.float32 if tiles else ml_dtypes.bfloat16
    q, dy = (rng.standard_normal((1, 2, 20, 16)).astype(kind) for _ in range(2))
    k, v = (rng.standard_normal((1, 1, 70, 16)).astype(kind) for _ in range(2))
    mask = np.full((20, 70), -1e9, np.float32)
    end, way = ("", {"algorithm": "tiles"}) if tiles else ("_mma", {"algorithm": "matrix", "scores": scores})

    words = {**_PLAIN, "binary": not tiles}

    def of_v(*operands: Array) -> Array:
        with forcing(**way):  # type: ignore[arg-type]
            y, sums = _run("attention_sums", list(operands), words, [f"attention_sums{end or '_tiles'}"])
            stems = ["attention_rows", f"attention_sums_dq{end}", f"attention_dkv{end}"]
            return _run("attention_sums_grad", [dy, y, sums, *operands], words, stems)[2].astype(np.float64)

    want = np.repeat(dy.astype(np.float64).sum(axis=(1, 2), keepdims=True) / 70, 70, axis=2)
    assert _nmse(of_v(q, k, v, mask), want) < 2e-5
    want, large = np.zeros(v.shape), (q * kind(1e4), k * kind(1e4))
    best = np.argmax(np.einsum("bhid,bgjd->bhij", *(t.astype(np.float64) for t in large)), axis=-1)
    for h in range(2):
        np.add.at(want[0, 0], best[0, h], dy[0, h].astype(np.float64))
    assert _nmse(of_v(*large, v), want) < 2e-5


def test_where_sums_are_kept() -> None:
    """Where both kernels use matrices of bf16, or both tiles in f32, and there are more than a few queries."""

    def kept(stored: Any = bf16, sq: int = 2048, d: int = 64, **units: Any) -> bool:
        matrix = MatrixUnits(frozenset({f16, bf16}), **{"opaque": False, **units})
        target = Target(frozenset({"subgroup"}), Limits(shared_bytes=227 << 10), matrices=matrix)
        return keeps_sums(target, Problem(4, 16, 16, sq, 2048, d, stored, "f32"))

    assert kept() and kept(d=128, warpgroups=True) and kept(d=128, opaque=True) and kept(d=20)
    assert kept(f32) and not kept(f16) and not kept(sq=4) and not kept(d=256) and not kept(f32, sq=4)
    with forcing(algorithm="tiles"):
        assert kept(f32) and not kept()
