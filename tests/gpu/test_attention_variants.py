"""Attention's windows, caps and lengths, the kernels for few queries, and the backward pass: the lowered steps on a
Vulkan device and by the CUDA sources run on the CPU, against the ops' definitions in float64. The variants of a
kernel's text are left to the CUDA sources in `make test`: the software driver compiles each for two seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlx.backends.gpu.attention import choice as attention_choice
from rlx.backends.gpu.program.steps import Launch
from rlx.conformance.tolerances import NORM, compare
from rlx.ir import get_op
from tests.full import sampled
from tests.gpu import cuda_host
from tests.gpu.lowered import Array, carried_out, lower
from tests.gpu.missed_barriers import every_barrier_is_missed

_BACKENDS = [
    pytest.param("vulkan", marks=pytest.mark.vulkan),
    pytest.param(
        "cuda", marks=pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
    ),
]
_PLAIN: dict[str, Any] = {"scale": 0.3, "causal": False, "window": None, "softcap": None}


def launches(op: str, inputs: list[Array], backend: str = "vulkan", **attrs: Any) -> list[str]:
    """The stems of the kernels that the op is lowered to."""
    _, _, lowering = lower(op, inputs, {**_PLAIN, **attrs}, backend)
    assert all(isinstance(step, Launch) for step in lowering.steps)
    return [step.kernel.stem for step in lowering.steps if isinstance(step, Launch)]  # type: ignore[union-attr]


def outputs(op: str, inputs: list[Array], backend: str, **attrs: Any) -> list[Array]:
    """Every output, by the kernels; workspace and outputs hold NaN before the run."""
    graph, planned, lowering = lower(op, inputs, {**_PLAIN, **attrs}, backend)
    return list(carried_out(graph, planned, lowering, inputs, backend).values())


def check(op: str, inputs: list[Array], backend: str, **attrs: Any) -> None:
    wide = [a if a.dtype.kind in "ib" else a.astype(np.float64) for a in inputs]
    want = get_op(op).reference(*wide, **{**_PLAIN, **attrs})
    wanted = want if isinstance(want, tuple) else (want,)
    largest = np.abs(wide[2 if op == "attention" else 0]).max()
    for got, expected in zip(outputs(op, inputs, backend, **attrs), wanted, strict=True):
        verdict = compare(got, expected, NORM, np.full(got.shape, largest))
        assert verdict.ok, (attrs, verdict.message)


def given(b: int, h: int, kv: int, sq: int, sk: int, d: int, dtype: Any = np.float32) -> list[Array]:
    rng = np.random.default_rng(b + h + sq + sk + d)
    shapes = (b, h, sq, d), (b, kv, sk, d), (b, kv, sk, d)
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


_VARIANTS: list[dict[str, Any]] = [
    {}, {"causal": True}, {"window": 7}, {"window": 0, "causal": True}, {"softcap": 0.7}, {"window": 500},
    {"softcap": 20.0, "causal": True, "window": 30},
]  # fmt: skip
_LENGTHS = [np.int32(90), np.array([130, 3], np.int32), np.array([-4, 1 << 30], np.int32), np.int32(0)]


@pytest.mark.parametrize("backend", _BACKENDS)
@pytest.mark.sample(4, vulkan=0)
@pytest.mark.parametrize("sq, heads", [(1, 4), (3, 4), (70, 2)])
@pytest.mark.parametrize("attrs", _VARIANTS)
def test_variants(attrs: dict[str, Any], sq: int, heads: int, backend: str) -> None:
    inputs = given(2, heads, 2, sq, 130, 40)
    assert ("attention_decode" in launches("attention", inputs)) == (sq < 9)
    check("attention", inputs, backend, **attrs)


@pytest.mark.parametrize("backend", _BACKENDS)
@pytest.mark.sample(vulkan=0)
@pytest.mark.parametrize("sq", [1, 5, 66])
def test_lengths_are_read_when_it_runs(sq: int, backend: str) -> None:
    q, k, v = given(2, 2, 1, sq, 130, 24)
    for lengths in _LENGTHS:
        for attrs in sampled(({}, {"causal": True}, {"window": 9, "causal": True}), most=2):
            check("attention", [q, k, v, np.asarray(lengths)], backend, **attrs)
    mask = np.random.default_rng(0).standard_normal((2, 1, sq, 130)).astype(np.float32)
    check("attention", [q, k, v, mask, np.array([129, 65], np.int32)], backend)


@pytest.mark.vulkan
@pytest.mark.parametrize("sq", [1, 66])
@pytest.mark.late
def test_all_of_it_on_vulkan(sq: int) -> None:
    q, k, v = given(2, 4, 2, sq, 130, 24)
    mask = np.random.default_rng(0).standard_normal((2, 1, sq, 130)).astype(np.float32)
    given_too = [mask, np.array([129, 65], np.int32)]
    check("attention", [q, k, v, *given_too], "vulkan", causal=True, window=30, softcap=20.0)


@pytest.mark.parametrize("backend", _BACKENDS)
@pytest.mark.sample(vulkan=0)
@pytest.mark.parametrize("sq", [1, 66])
def test_what_lies_beyond_the_length_may_be_anything(sq: int, backend: str) -> None:
    q, k, v = given(1, 2, 2, sq, 100, 16)
    length = np.int32(37)
    k[:, :, 37:], v[:, :, 37:] = np.nan, np.inf
    (got,) = outputs("attention", [q, k, v, np.asarray(length)], backend)
    (want,) = outputs("attention", [q, k[:, :, :37], v[:, :, :37]], backend)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", _BACKENDS)
@pytest.mark.sample(4, vulkan=0)
@pytest.mark.parametrize("d", [1, 7, 16, 33, 64, 80, 128, 200, 256])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("rows, splits", [(1, 3), (8, 1), (2, 2)])
def test_few_queries_of_every_width(rows: int, splits: int, d: int, dtype: Any, backend: str) -> None:
    with attention_choice.forcing(rows=rows, splits=splits):
        check("attention", given(1, 6, 2, 1, 150, d, dtype), backend)


_STREAMED: list[tuple[int, Any, int]] = [  # threads that share a key, dtype, width
    (16, np.float32, 64), (2, np.float32, 8), (4, np.float16, 32), (8, ml_dtypes.bfloat16, 64), (32, np.float16, 256),
]  # fmt: skip  # the first runs on Vulkan: a software driver compiles it in a sixth of the time of the second


@pytest.mark.parametrize("backend", _BACKENDS)
@pytest.mark.sample(3, vulkan=1)
@pytest.mark.parametrize("rows, splits", [(4, 3), (1, 1), (8, 2), (2, 40)])
@pytest.mark.parametrize("lanes, dtype, d", _STREAMED)
def test_few_queries_in_streams(lanes: int, dtype: Any, d: int, rows: int, splits: int, backend: str) -> None:
    with attention_choice.forcing(algorithm="decode", lanes=lanes, rows=rows, splits=splits):
        q, k, v = given(2, 6, 2, 1, 150, d, dtype)
        lengths = np.array([137, 5], np.int32)
        assert launches("attention", [q, k, v, lengths])[0] == "attention_stream"
        check("attention", [q, k, v, lengths], backend, softcap=3.0)
        mask = np.random.default_rng(0).random((2, 1, 3, 150)) < 0.6
        check("attention", [*given(2, 6, 2, 3, 150, d, dtype), mask], backend, window=40, causal=True)


@pytest.mark.parametrize("backend", _BACKENDS)
@pytest.mark.sample(vulkan=1)
@pytest.mark.parametrize("lanes", [4, 0])
def test_an_infinite_value_stays_infinite(lanes: int, backend: str) -> None:
    """Also that of the last key, which threads read again in place of keys that do not exist."""
    q, k, v = given(1, 2, 2, 1, 37, 16)
    v[:, :, 36, 3] = np.inf
    with attention_choice.forcing(algorithm="decode", lanes=lanes):
        (got,) = outputs("attention", [q, k, v], backend)
    assert (got[..., 3] == np.inf).all() and np.isfinite(np.delete(got, 3, -1)).all()


@pytest.mark.parametrize("backend", _BACKENDS)
def test_more_parts_than_keys(backend: str) -> None:
    inputs = [*given(2, 2, 1, 1, 70, 16), np.array([70, 2], np.int32)]
    for splits in (1, 2, 40):
        with attention_choice.forcing(splits=splits):
            check("attention", inputs, backend)
    kernels = launches("attention", given(1, 8, 8, 1, 4096, 16))
    assert kernels == ["attention_decode"]


@pytest.mark.parametrize("backend", _BACKENDS)
@pytest.mark.sample(vulkan=0)
@pytest.mark.parametrize(
    "size",
    [
        pytest.param((1, 2, 2, 5, 9, 16), marks=pytest.mark.full),
        (2, 2, 1, 70, 75, 20),
        pytest.param((2, 4, 2, 70, 75, 20), marks=pytest.mark.full),
        pytest.param((1, 2, 1, 66, 130, 64), marks=pytest.mark.full),
        (1, 1, 1, 3, 65, 256),
    ],
)
def test_gradients(size: tuple[int, ...], backend: str) -> None:
    q, k, v = given(*size)  # type: ignore[arg-type]
    d = np.random.default_rng(3).standard_normal(q.shape).astype(np.float32)
    assert launches("attention_grad", [d, q, k, v]) == ["attention_dq", "attention_dkv"]
    mask = np.random.default_rng(4).random((size[3], size[4])) < 0.7
    for attrs in sampled(_VARIANTS[:: 3 if size[5] < 64 else 6], most=2 if size[5] < 64 else 1):
        check("attention_grad", [d, q, k, v], backend, **attrs)
    lengths = np.full(size[0], size[4] - 3, np.int32)
    check("attention_grad", [d, q, k, v, mask, lengths], backend, causal=True, softcap=2.0)


@pytest.mark.parametrize("backend", _BACKENDS)
def test_gradients_of_no_keys_or_queries(backend: str) -> None:
    for n_q, n_k in ((0, 4), (3, 0)):
        q, k, v = given(1, 2, 2, n_q, n_k, 8)
        for made in outputs("attention_grad", [q, q, k, v], backend):
            assert (made == 0).all()


def _grad() -> list[Array]:
    q, k, v = given(1, 2, 1, 70, 66, 20)
    return outputs("attention_grad", [q, q, k, v], "cuda", causal=True)


def _streamed() -> list[Array]:
    with attention_choice.forcing(algorithm="decode", lanes=8, rows=4):
        return outputs("attention", given(1, 4, 1, 1, 200, 32), "cuda")


_NEEDS: dict[str, Callable[[], list[Array]]] = {
    "attention.h": lambda: outputs("attention", given(1, 1, 1, 70, 130, 20), "cuda"),
    "attention_tiles.h": lambda: outputs("attention", given(1, 1, 1, 70, 130, 40), "cuda"),
    "attention_dq.h": _grad,
    "attention_dkv.h": _grad,
    "attention_decode.h": lambda: outputs("attention", given(1, 2, 1, 3, 200, 20), "cuda"),
    "attention_streams.h": _streamed,
}


@pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
@pytest.mark.parametrize("header", list(_NEEDS))
def test_every_barrier_is_needed_and_missed(header: str) -> None:
    every_barrier_is_missed(header, _NEEDS[header])


@pytest.mark.vulkan
@pytest.mark.parametrize("op", ["attention", "attention_grad"])
def test_runs_natively(op: str) -> None:
    import rlx
    from rlx.conformance.case import cases_of

    session = rlx.Session("vulkan")
    for case in sampled([c for c in cases_of(op) if all(0 not in x.shape for x in c.inputs)], most=4):
        exe = session.compile(case.graph(), optimize=False)
        assert all(d.how == "native" and d.steps for d in exe.executable.dispatch if d.op == op), case.id
