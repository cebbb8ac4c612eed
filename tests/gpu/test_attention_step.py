"""One step of attention over a cache: the lowered launch by Vulkan's modules and by the CUDA source on the CPU, against
the op's definition in float64. A step of a model on a device is in tests/runtime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlx.backends.gpu.attention import choice as attention_choice
from rlx.backends.gpu.program.lowering import ARGS, Lowering
from rlx.backends.gpu.program.steps import Launch
from rlx.conformance.tolerances import NORM, Tolerance, compare
from rlx.ir import get_op
from tests.gpu import cuda_host
from tests.gpu.lowered import Array, execute, lower, memory

_BACKENDS = [
    pytest.param("vulkan", marks=pytest.mark.vulkan),
    pytest.param(
        "cuda", marks=pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")
    ),
]
_PLAIN: dict[str, Any] = {"scale": 0.3, "window": None, "softcap": None, "interleaved": False, "ring": False}
_F32, _F16, _BF16 = np.float32, np.float16, ml_dtypes.bfloat16
# What rounding the query and the new rows to the caches' dtype changes.
_LIMITS = {_F32: NORM, _F16: Tolerance("norm", nmse=1e-6, max_error=3e-3)}
_LIMITS[_BF16] = Tolerance("norm", nmse=1e-4, max_error=2e-2)


def given(
    position: tuple[int, ...], heads: int, kv_heads: int, d: int, rows: int, token: Any, cache: Any, pairs: int | None,
    sinks: bool, ring: bool = False,
) -> list[Array]:  # fmt: skip
    """A step's inputs. Rows of the caches that were not written yet, and the token's own, hold NaN and infinity."""
    rng = np.random.default_rng(heads + d + rows)
    batch = len(position)
    token_rows = [rng.standard_normal((batch, n, d)).astype(token) for n in (heads, kv_heads, kv_heads)]
    caches = [rng.standard_normal((batch, rows, kv_heads, d)).astype(cache) for _ in range(2)]
    for b, at in enumerate(position):
        for held, value in zip(caches, (np.nan, np.inf), strict=True):
            if ring and at >= rows:
                held[b, at % rows] = value
            else:
                held[b, min(max(at, 0), rows - 1) :] = value
    angles = rng.random((rows + 1, pairs or 0)) * 6
    tables = [] if pairs is None else [np.cos(angles).astype(_F32), np.sin(angles).astype(_F32)]
    more = [rng.standard_normal(heads).astype(_F32)] if sinks else []
    return [*token_rows, *caches, np.array(position, np.int32), *tables, *more]


def carried_out(inputs: list[Array], backend: str, runs: int = 1, **attrs: Any) -> tuple[list[list[Array]], Lowering]:
    """The results of some runs one after the other, from the same inputs."""
    graph, planned, lowering = lower("attention_step", inputs, {**_PLAIN, **attrs}, backend)
    segments, made = memory(planned, lowering), []
    for _ in range(runs):
        for tensor, value in zip(graph.inputs.values(), inputs, strict=True):
            slot = planned.slots[tensor.id]
            raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            segments[slot.segment][slot.offset : slot.offset + raw.size] = raw
        for step in lowering.steps:
            execute(step, segments, backend)
        slots = [(planned.slots[t.id], t) for t in graph.outputs.values()]
        made.append([segments[s.segment][s.offset : s.end].view(t.dtype.np).reshape(t.shape).copy() for s, t in slots])
    assert bytes(segments[ARGS]) == bytes(lowering.args or b"\0")  # counters are 0 again
    return made, lowering


def check(inputs: list[Array], backend: str, **attrs: Any) -> None:
    wide = [a if a.dtype.kind == "i" else a.astype(np.float64) for a in inputs]
    wanted = get_op("attention_step").reference(*wide, **{**_PLAIN, **attrs})
    (made, again), lowering = carried_out(inputs, backend, runs=2, **attrs)
    launches = [s.kernel.stem for s in lowering.steps if isinstance(s, Launch)]  # type: ignore[union-attr]
    assert launches == ["attention_step"]
    largest = max(np.abs(wide[i][np.isfinite(wide[i])]).max() for i in (1, 2, 4))
    limit = _LIMITS[inputs[3].dtype.type]
    for got, same, want in zip(made, again, wanted, strict=True):
        assert got.tobytes() == same.tobytes()
        verdict = compare(got, want, limit, np.full(got.shape, largest))
        assert verdict.ok, (attrs, verdict.message)


_FORMS: list[tuple[Any, ...]] = [  # heads, key heads, size, dtypes of token and cache, pairs
    (4, 2, 64, _F32, _BF16, 32), (6, 2, 32, _F16, _F16, None), (8, 1, 128, _BF16, _BF16, 24), (2, 2, 16, _F32, _F32, 8),
    (3, 1, 256, _F32, _F16, 128),
]  # fmt: skip
_ATTRS: list[dict[str, Any]] = [{}, {"window": 20}, {"softcap": 2.0, "interleaved": True}, {"window": 0}]


@pytest.mark.parametrize("backend", _BACKENDS)
@pytest.mark.sample(3, vulkan=1)
@pytest.mark.parametrize("rows, splits", [(2, 20), (4, 3), (1, 1), (8, 2)])
@pytest.mark.parametrize("attrs", _ATTRS)
@pytest.mark.parametrize("form", _FORMS)
def test_forms(form: tuple[Any, ...], attrs: dict[str, Any], rows: int, splits: int, backend: str) -> None:
    heads, kv_heads, d, token, cache, pairs = form
    with attention_choice.forcing(rows=rows, splits=splits):
        inputs = given((0, 149, 75, 3), heads, kv_heads, d, 150, token, cache, pairs, splits == 3)
        check(inputs, backend, **attrs)


@pytest.mark.parametrize("backend", _BACKENDS)
@pytest.mark.sample(2, vulkan=1)
@pytest.mark.parametrize("window, splits", [(149, 3), (70, 20), (1, 2), (0, 1)])
@pytest.mark.parametrize("form", _FORMS[:3])
def test_rings(form: tuple[Any, ...], window: int, splits: int, backend: str) -> None:
    """One that is empty, one not full yet, one whose window goes on at the first row, one filled many times."""
    heads, kv_heads, d, token, cache, pairs = form
    with attention_choice.forcing(rows=2, splits=splits):
        inputs = given((0, 60, 160, 7_649), heads, kv_heads, d, 150, token, cache, pairs, splits == 3, ring=True)
        check(inputs, backend, window=window, ring=True)


@pytest.mark.parametrize("backend", _BACKENDS)
@pytest.mark.sample(vulkan=0)
def test_positions_beyond_the_cache_are_brought_into_it(backend: str) -> None:
    check(given((-3, 1 << 30, 39), 4, 2, 16, 40, _F32, _F32, 4, False), backend)


@pytest.mark.parametrize("backend", _BACKENDS)
@pytest.mark.sample(vulkan=0)
def test_an_infinite_score_of_the_new_key_is_no_number(backend: str) -> None:
    inputs = given((30,), 2, 1, 16, 40, _F32, _F32, None, False)
    inputs[1][:] = np.inf
    inputs[0][:, 0], inputs[0][:, 1] = 1, -1
    ((y, *_),), _ = carried_out(inputs, backend)
    assert np.isnan(y[:, 0]).all() and np.isfinite(y[:, 1]).all()
