"""The gradient of attention by matrix instructions: the three forms of the CUDA source run on the CPU, against the op's
definition in float64. The form with scores in shared memory is the text of Vulkan's module too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlx.backends.gpu.attention.choice import (
    Problem,
    choose_gradient,
    forcing,
)
from rlx.backends.gpu.program.target import MatrixUnits, Target
from rlx.driver import Limits
from rlx.dtypes import bf16, f16, f32
from rlx.ir import get_op
from tests.full import full, sampled
from tests.gpu import cuda_host, lowered, test_attention_variants
from tests.gpu.gradient_cases import cases, on_host
from tests.gpu.lowered import Array, carried_out, lower
from tests.gpu.missed_barriers import every_barrier_is_missed
from tests.gpu.test_attention_matrix import DEVICE, WORDS, rounding
from tests.gpu.test_attention_variants import check, given, launches, outputs

pytestmark = pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
BF16, F16 = ml_dtypes.bfloat16, np.float16
KERNELS = ["attention_dq_mma", "attention_dkv_mma"]
# "warpgroup" has the bodies of "registers", with other products.
HELD = pytest.mark.parametrize("scores", ["registers", "shared"])


@pytest.fixture(autouse=True)
def matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_limits(*args: Any, **words: Any) -> Any:
        return lower(*args, **{"limits": DEVICE, **words})

    monkeypatch.setattr(lowered, "FEATURES", lowered.FEATURES | WORDS)
    monkeypatch.setattr(test_attention_variants, "lower", with_limits)


def with_upstream(*size: int, dtype: Any = BF16) -> list[Array]:
    q, k, v = given(*size, dtype)  # type: ignore[arg-type]
    return [np.random.default_rng(7).standard_normal(q.shape).astype(dtype), q, k, v]


def errors(inputs: list[Array], got: list[Array], **attrs: Any) -> list[float]:
    """The NMSE of each result against the definition in float64."""
    wide = [a if a.dtype.kind in "ib" else a.astype(np.float64) for a in inputs]
    want = get_op("attention_grad").reference(*wide, **{"scale": 0.3, "causal": False, **attrs})
    pairs = [(a.astype(np.float64), b) for a, b in zip(got, want, strict=True)]
    return [float(np.sum((a - b) ** 2) / np.sum(b**2)) for a, b in pairs]


# The place of the scores; the matrices and columns of the queries' kernel, and of the keys'.
_SIZES = [
    ("registers", 1, 64, 1, 32), ("registers", 2, 32, 2, 32), ("shared", 1, 16, 1, 32), ("warpgroup", 1, 64, 1, 64),
    ("warpgroup", 2, 64, 1, 64),
]  # fmt: skip


@pytest.mark.parametrize("sizes", _SIZES)
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("size", [(1, 2, 1, 70, 130, 64), (2, 4, 2, 33, 40, 20), (1, 1, 1, 129, 65, 128)])
@pytest.mark.sample(2)
def test_lengths_widths_and_groups(size: tuple[int, ...], dtype: Any, sizes: tuple[Any, ...]) -> None:
    scores, deep, keys, deep_keys, queries = sizes
    inputs = with_upstream(*size, dtype=dtype)
    with forcing(algorithm="matrix", scores=scores, deep=deep, keys=keys, deep_keys=deep_keys, queries=queries):
        assert launches("attention_grad", inputs, "cuda") == KERNELS
        check("attention_grad", inputs, "cuda", causal=True)


@pytest.mark.parametrize("scores", ["registers", "shared", "warpgroup"])
def test_conformance_cases(scores: str) -> None:
    """`python -m tests.gpu.gradient_cases` runs all of them."""
    with forcing(algorithm="matrix", scores=scores), np.errstate(all="ignore"):
        every = list(cases())
        for case in every if full() else sampled(every[len(scores) :: 9], most=2):
            got = on_host(case, DEVICE)
            assert got is None or case.check(got).ok, case.name


@HELD
def test_masks_lengths_windows_and_caps(scores: str) -> None:
    inputs = with_upstream(2, 4, 2, 40, 70, 24, dtype=F16)
    rng = np.random.default_rng(1)
    lengths = np.array([66, 3], np.int32)
    with forcing(algorithm="matrix", scores=scores):
        hidden = np.where(rng.random((40, 70)) < 0.5, -np.inf, rng.standard_normal((40, 70))).astype(np.float32)
        hidden[[0, 33]] = -np.inf
        check("attention_grad", [*inputs, hidden, lengths], "cuda", softcap=2.0, window=30)
        if full():
            check("attention_grad", [*inputs, rng.random((2, 1, 1, 70)) < 0.6], "cuda", causal=True)


@HELD
def test_numbers_outside_the_range_of_a_half(scores: str) -> None:
    """P of unlikely keys and dS of small gradients are below the normal halves, dS of large ones beyond them."""
    d, q, k, v = with_upstream(1, 1, 1, 20, 70, 16, dtype=np.float32)
    for up, of_q, of_k, of_v, which in ((1e-3, 1e-4, 300.0, 1e-2, 0), (1e4, 1e-2, 1e-2, 900.0, 1)):
        inputs = [(a * b).astype(F16) for a, b in ((d, up), (q, of_q), (k, of_k), (v, of_v))]
        with forcing(algorithm="matrix", scores=scores):
            got = outputs("attention_grad", inputs, "cuda")
        assert errors(inputs, got)[which] < 5e-7, (up, errors(inputs, got))
    k[:, :, 0], k[:, :, 1:], q[...] = 40 / 16, 0, 1  # weights of exp(-12) but for the first key
    inputs = [(d * 1e3).astype(F16), q.astype(F16), k.astype(F16), v.astype(F16)]
    with forcing(algorithm="matrix", scores=scores):
        got = outputs("attention_grad", inputs, "cuda")
    want = get_op("attention_grad").reference(*(a.astype(np.float64) for a in inputs), scale=0.3, causal=False)[2]
    assert np.sum((got[2] - want)[:, :, 1:] ** 2) < 5e-7 * np.sum(want[:, :, 1:] ** 2)


@HELD
def test_a_large_number_added_to_all_scores_changes_nothing(scores: str) -> None:
    """So a mask of -1e9 everywhere, as models write it, leaves equal weights, and large scores a weight of 1."""
    d, q, k, v = with_upstream(1, 2, 1, 20, 70, 16)
    mask = np.full((20, 70), -1e9, np.float32)
    with forcing(algorithm="matrix", scores=scores):
        equal = outputs("attention_grad", [d, q, k, v, mask], "cuda")
        steep = outputs("attention_grad", [d, q * BF16(1e4), k * BF16(1e4), v], "cuda")
    weighted = np.repeat(d.astype(np.float64).sum(axis=(1, 2), keepdims=True) / 70, 70, axis=2)
    assert np.sum((equal[2].astype(np.float64) - weighted) ** 2) < 2e-5 * np.sum(weighted**2)
    want = np.zeros(v.shape)
    best = np.argmax(np.einsum("bhid,bgjd->bhij", q.astype(np.float64), k.astype(np.float64)), axis=-1)
    for h in range(2):
        np.add.at(want[0, 0], best[0, h], d[0, h].astype(np.float64))
    assert np.sum((steep[2].astype(np.float64) - want) ** 2) < 2e-5 * np.sum(want**2)


@HELD
def test_rows_and_keys_that_see_nothing(scores: str) -> None:
    d, q, k, v = with_upstream(1, 2, 2, 70, 40, 16)
    k[:, :, 37:], v[:, :, 37:] = np.nan, np.inf
    length = np.asarray(np.int32(37))
    with forcing(algorithm="matrix", scores=scores):
        got = outputs("attention_grad", [d, q, k, v, length], "cuda", causal=True)
    assert (got[0][:, :, :33] == 0).all() and all((a[:, :, 37:] == 0).all() for a in got[1:])
    inputs = [d, q, k[:, :, :37], v[:, :, :37]]
    assert max(errors(inputs, [got[0], *(a[:, :, :37] for a in got[1:])], causal=True)) < 3e-5


def test_f32_in_a_session_of_bf16() -> None:
    """Operands become bf16, results stay f32; at other precisions the kernels of f32 compute them."""
    inputs = with_upstream(1, 2, 1, 40, 70, 32, dtype=np.float32)
    attrs = {"scale": 0.3, "causal": False}
    for precision, stems in (("f32", False), ("tf32", False), ("f16", False), ("bf16", True)):
        graph, planned, steps = lower("attention_grad", inputs, attrs, "cuda", DEVICE, precision)
        names = [getattr(step.kernel, "stem", "cast") for step in steps.steps]
        assert names == (["cast"] * 4 + KERNELS if stems else ["attention_dq", "attention_dkv"]), precision
    got = list(carried_out(graph, planned, steps, inputs, "cuda", partial(rounding, BF16)).values())
    assert all(a.dtype == np.float32 for a in got) and max(errors(inputs, got)) < 1e-4


def sizes(
    d: int, *, sq: int = 2048, stored: Any = bf16, room: int = 227 << 10, precision: str = "f32", **units: bool
) -> Any:
    """The candidate chosen for heads of d on a device with `room` bytes of shared memory."""
    matrix = MatrixUnits(frozenset({f16, bf16}), **{"opaque": False, **units})
    target = Target(frozenset({"subgroup"}), Limits(shared_bytes=room), matrices=matrix)
    return choose_gradient(target, Problem(4, 16, 16, sq, sq, d, stored, precision))


def test_where_it_is_taken() -> None:
    def fields(chosen: Any) -> tuple[Any, ...]:
        return chosen.scores, chosen.deep, chosen.keys, chosen.deep_keys, chosen.queries

    assert fields(sizes(64)) == ("registers", 2, 32, 2, 32) and fields(sizes(128)) == ("registers", 2, 32, 1, 64)
    assert fields(sizes(128, warpgroups=True)) == ("warpgroup", 1, 64, 1, 64)
    assert fields(sizes(64, warpgroups=True)) == ("warpgroup", 1, 64, 1, 64)
    assert fields(sizes(64, opaque=True, room=48 << 10)) == ("shared", 1, 32, 1, 32)
    assert fields(sizes(128, opaque=True, room=48 << 10)) == ("shared", 1, 16, 1, 16)
    assert fields(sizes(20, sq=64)) == ("registers", 1, 64, 1, 64)
    assert sizes(256).algorithm == sizes(64, stored=f32).algorithm == sizes(64, room=8 << 10).algorithm == "tiles"
    assert sizes(160, warpgroups=True).scores == sizes(80, warpgroups=True).scores == "registers"
    assert sizes(64, stored=f32, precision="bf16").algorithm == "matrix"
    with forcing(algorithm="tiles"):
        assert sizes(64).algorithm == "tiles"


def _grad(scores: str) -> list[Array]:
    columns = {"shared": 16, "registers": 32, "warpgroup": 64}[scores]
    with forcing(algorithm="matrix", scores=scores, deep=1, keys=columns, deep_keys=1, queries=columns):
        return outputs("attention_grad", with_upstream(1, 2, 1, 70, 66, 24, dtype=F16), "cuda", causal=True)


_NEEDS: dict[str, Callable[[], list[Array]]] = {
    "attention_dq_registers.h": partial(_grad, "registers"),
    "attention_dkv_registers.h": partial(_grad, "registers"),
    "attention_dq_opaque.h": partial(_grad, "shared"),
    "attention_dkv_opaque.h": partial(_grad, "shared"),
    "attention_slopes_opaque.h": partial(_grad, "shared"),
}


@pytest.mark.parametrize("header", list(_NEEDS))
def test_every_barrier_is_needed_and_missed(header: str) -> None:
    every_barrier_is_missed(header, _NEEDS[header])
