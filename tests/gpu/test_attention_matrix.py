"""Attention by matrix instructions: the three variants of the CUDA source run on the CPU, against the op's definition
in float64, at every device's tolerance. The variant with scores in shared memory is the text of Vulkan's module too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlx.backends.gpu.attention import choice as attention_choice
from rlx.backends.gpu.attention.choice import Matrix, Problem, choose, forcing, shared_bytes
from rlx.backends.gpu.program.steps import FileKernel, Launch, Step, TreeKernel
from rlx.backends.gpu.program.target import MatrixUnits, Target
from rlx.driver import Limits
from rlx.dtypes import bf16, f32
from rlx.ops.attention.parts import ByToken
from tests.full import full
from tests.gpu import cuda_host, lowered, test_attention_variants
from tests.gpu.lowered import Array, carried_out, close, lower
from tests.gpu.missed_barriers import every_barrier_is_missed
from tests.gpu.test_attention_variants import check, given, outputs

pytestmark = pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
DEVICE = Limits(shared_bytes=48 << 10, dynamic_shared_bytes=227 << 10)
WORDS = {"coopmat", "bf16_coopmat", "subgroup", "wgmma"}
BF16, F16 = ml_dtypes.bfloat16, np.float16
REGISTERS: dict[str, Any] = {"algorithm": "matrix", "scores": "registers"}
SHARED: dict[str, Any] = {"algorithm": "matrix", "scores": "shared"}
WARPGROUP: dict[str, Any] = {"algorithm": "matrix", "scores": "warpgroup"}
HELD = pytest.mark.parametrize(
    "held", [REGISTERS, SHARED, WARPGROUP], ids=("registers", "shared", "warpgroup")
)
# (the algorithm and the place of its scores, deep, keys)
WAYS = [
    (REGISTERS, 1, 64), (REGISTERS, 2, 64), (REGISTERS, 2, 32), (SHARED, 1, 64), (SHARED, 1, 32), (SHARED, 2, 32),
    (WARPGROUP, 1, 64), (WARPGROUP, 2, 64),
]  # fmt: skip


@pytest.fixture(autouse=True)
def matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_limits(*args: Any, **words: Any) -> Any:
        return lower(*args, **{"limits": DEVICE, **words})

    monkeypatch.setattr(lowered, "FEATURES", lowered.FEATURES | WORDS)
    monkeypatch.setattr(test_attention_variants, "lower", with_limits)


def stems(inputs: list[Array], backend: str = "cuda", **words: Any) -> list[str]:
    attrs = {"scale": 0.3, "causal": False}
    _, _, made = lower("attention", inputs, attrs, backend, words.pop("limits", DEVICE), **words)
    kernels = [s.kernel for s in made.steps if isinstance(s, Launch)]
    return [
        k.stem if isinstance(k, FileKernel) else "tree"
        for k in kernels
        if isinstance(k, FileKernel | TreeKernel)
    ]


@pytest.mark.parametrize("held, deep, keys", WAYS)
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize(
    "size", [(1, 2, 1, 70, 130, 64), (1, 1, 1, 20, 33, 20), (2, 1, 1, 9, 64, 16), (1, 1, 1, 129, 65, 97)]
)
@pytest.mark.sample(3)
def test_lengths_widths_and_groups(
    size: tuple[int, ...], dtype: Any, held: dict[str, Any], deep: int, keys: int
) -> None:
    with forcing(deep=deep, keys=keys, **held):
        assert stems(given(*size, dtype)) == ["attention_mma"]  # type: ignore[arg-type]
        check("attention", given(*size, dtype), "cuda")  # type: ignore[arg-type]


@HELD
@pytest.mark.parametrize("d", [128, 136, 256])
@pytest.mark.sample(1)
def test_wide_heads(d: int, held: dict[str, Any]) -> None:
    with forcing(**held):
        check("attention", given(1, 1, 1, 66, 70, d, BF16), "cuda", causal=True)


_ATTRS: list[dict[str, Any]] = [
    {"causal": True}, {"window": 7}, {"window": 40, "causal": True}, {"softcap": 0.7}, {"scale": -0.3}, {"scale": 0.0},
    {"softcap": 20.0, "causal": True, "window": 30},
]  # fmt: skip


@HELD
@pytest.mark.parametrize("attrs", _ATTRS)
@pytest.mark.sample(3)
def test_variants(attrs: dict[str, Any], held: dict[str, Any]) -> None:
    with forcing(**held):
        for sizes in ((1, 1, 1, 100, 140, 32), (1, 1, 1, 140, 100, 24)):
            check("attention", given(*sizes, F16), "cuda", **attrs)


@HELD
def test_masks_and_lengths(held: dict[str, Any]) -> None:
    q, k, v = given(2, 2, 1, 70, 75, 32, BF16)
    rng = np.random.default_rng(1)
    lengths = np.array([70, 3], np.int32)
    with forcing(**held):
        for mask in (rng.random((2, 1, 1, 75)) < 0.6, rng.standard_normal((2, 70, 75)).astype(np.float32)):
            if held is SHARED or full():  # which of these masks a kernel has is the same text in all three
                check("attention", [q, k, v, mask], "cuda")
            check("attention", [q, k, v, mask, lengths], "cuda", causal=True)
        hidden = np.where(rng.random((70, 75)) < 0.5, -np.inf, 0).astype(np.float32)
        hidden[[0, 33]] = -np.inf
        check("attention", [q, k, v, hidden], "cuda")


@HELD
@pytest.mark.parametrize("tokens", [ByToken(15), ByToken.K | ByToken.V, ByToken.Q | ByToken.Y, ByToken.V])
@pytest.mark.parametrize("dtype, d", [(BF16, 32), (F16, 20)])
@pytest.mark.sample(2)
def test_heads_side_by_side_in_the_rows_of_tokens(d: int, dtype: Any, tokens: ByToken, held: dict[str, Any]) -> None:
    q, k, v = given(2, 4, 2, 70, 75, d, dtype)
    turned = [x.swapaxes(1, 2).copy() if one in tokens else x for one, x in zip(ByToken, (q, k, v), strict=False)]
    with forcing(**held):
        check("attention", turned, "cuda", tokens=tokens, causal=True)


@HELD
def test_rows_that_see_nothing_large_scores_and_nan(held: dict[str, Any]) -> None:
    with forcing(**held):
        q, k, v = given(1, 1, 1, 70, 5, 16, F16)
        (got,) = outputs("attention", [q, k, v], "cuda", causal=True)
        assert (got[:, :, :65] == 0).all()
        q, k, v = given(1, 1, 1, 40, 70, 16, BF16)
        (got,) = outputs("attention", [q * 300, k * 300, v], "cuda", scale=1.0)
        assert np.isfinite(got.astype(np.float32)).all()
        q[0, 0, 3, 2] = np.nan
        (got,) = outputs("attention", [q, k, v], "cuda")
        assert (np.isnan(got.astype(np.float32)).any(-1) == (np.arange(40) == 3)).all()


@HELD
@pytest.mark.parametrize(
    "precision, first, nmse", [("bf16", True, 3e-5), ("bf16", False, 3e-5), ("f16", True, 3e-7), ("f16", False, 3e-7),
                               ("tf32", False, 1e-9)]
)  # fmt: skip
@pytest.mark.parametrize("d", [32, 21])
@pytest.mark.sample(2)
def test_f32_in_a_session_of_lower_precision(
    precision: str, first: bool, nmse: float, d: int, held: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = given(1, 2, 2, 70, 66, d)
    assert stems(inputs) == ["attention"]
    monkeypatch.setattr(attention_choice, "_LONG", 1 if first else 1 << 30)
    with forcing(**held):
        casts = ["tree"] * 3 if first else []
        assert stems(inputs, precision=precision) == [*casts, "attention_mma"]
        graph, planned, made = lower(
            "attention", inputs, {"scale": 0.3, "causal": False}, "cuda", DEVICE, precision
        )
        cast = partial(rounding, BF16 if precision == "bf16" else F16)
        got = carried_out(graph, planned, made, inputs, "cuda", cast)["y0"]
    q, k, v = (a.astype(np.float64) for a in inputs)
    s = np.einsum("bhid,bhjd->bhij", q, k) * 0.3
    e = np.exp(s - s.max(-1, keepdims=True))
    close(got, e / e.sum(-1, keepdims=True) @ v, nmse=nmse, worst=1e-2)


def rounding(dtype: Any, step: Step, segments: dict[str, Array], backend: str) -> None:
    """Runs a step; the only trees here are casts of an operand, done by NumPy."""
    if not isinstance(step, Launch) or not isinstance(step.kernel, TreeKernel):
        lowered.execute(step, segments, backend)
        return
    (source,), (target,) = step.reads, step.writes
    values = segments[source.segment][source.offset : source.end].view(np.float32)
    segments[target.segment][target.offset : target.end] = values.astype(dtype).view(np.uint8)


def shape(
    heads: int, sq: int, d: int, *, precision: str = "f32", room: int = 227 << 10, **units: bool
) -> tuple[str, int, int]:
    """The candidate chosen for this many heads on a device of 132 units and `room` bytes of shared memory."""
    matrices = MatrixUnits(frozenset({bf16}), **{"opaque": False, **units})
    target = Target(frozenset({"subgroup"}), Limits(shared_bytes=room), matrices=matrices)
    stored = bf16 if precision == "f32" else f32
    chosen = choose(target, Problem(1, heads, heads, sq, sq, d, stored, precision))
    assert isinstance(chosen, Matrix)
    return chosen.scores, chosen.deep, chosen.keys


def test_where_it_is_taken() -> None:
    half = given(1, 2, 2, 70, 66, 32, BF16)
    assert stems(half, "vulkan") == ["attention_mma"]
    assert stems(half, limits=Limits(shared_bytes=8 << 10)) == ["attention"]
    assert stems(half, "vulkan", limits=Limits(shared_bytes=48 << 10, subgroup=8)) == ["attention"]
    assert stems(given(1, 2, 2, 4, 66, 32, BF16)) == ["attention_decode"]
    with forcing(algorithm="tiles"):
        assert stems(half) == ["attention"]
    assert shape(64, 2048, 128) == ("registers", 2, 64)
    assert shape(64, 2048, 128, warpgroups=True) == ("warpgroup", 2, 64)
    assert 2 * shared_bytes(128, "warpgroup", 2, 64, 1) <= 227 << 10
    assert shape(64, 2048, 64, warpgroups=True) == ("warpgroup", 1, 64)
    assert shape(384, 128, 32, precision="tf32") == ("registers", 2, 64)
    assert shape(64, 2048, 80, warpgroups=True) == ("registers", 2, 64)
    with forcing(algorithm="matrix", scores="registers", keys=32):
        assert shape(64, 2048, 128, warpgroups=True) == ("registers", 2, 32)
    assert shape(64, 2048, 128, room=99 << 10) == ("registers", 1, 64)
    for d in (16, 64, 128, 256):
        assert shape(64, 2048, d, opaque=True, room=48 << 10) == ("shared", 1, 32)
    single = given(1, 2, 2, 70, 66, 32)
    assert stems(single, "cuda", precision="tf32") == ["attention_mma"]
    assert stems(single, "vulkan", precision="tf32") == ["attention"]


_NEEDS: dict[str, Callable[[], Array]] = {
    "attention_registers.h": lambda: outputs("attention", given(1, 1, 1, 100, 140, 48, F16), "cuda")[0],
    "attention_wgmma.h": lambda: outputs("attention", given(1, 1, 1, 100, 140, 64, F16), "cuda")[0],
    "attention_opaque.h": lambda: outputs("attention", given(1, 1, 1, 100, 140, 48, F16), "cuda")[0],
}


@pytest.mark.parametrize("header", list(_NEEDS))
def test_every_barrier_is_needed_and_missed(header: str) -> None:
    ways = {"attention_registers.h": REGISTERS, "attention_opaque.h": SHARED, "attention_wgmma.h": WARPGROUP}
    with forcing(keys=64 if header == "attention_wgmma.h" else 32, **ways[header]):
        every_barrier_is_missed(header, _NEEDS[header])
