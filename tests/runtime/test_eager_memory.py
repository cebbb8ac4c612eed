"""Calls outside a trace on the memory of their arguments: what is copied, aliasing, lifetimes, odd layouts."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.cpu import choice
from rlx.conformance.case import Case, all_cases
from rlx.conformance.runner import sample
from rlx.runtime import Session, eager
from tests.devices import session_on_engine
from tests.runtime import shapes
from tests.runtime.call_sweep import verdict

X = np.arange(12, dtype=np.float32).reshape(3, 4) - 4


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch) -> eager.Cache:
    """A cache of the test's own."""
    monkeypatch.setattr(eager, "CACHE", eager.Cache())
    monkeypatch.setenv(choice.ENGINE_ENV, "" if choice.why_not() else "compiled")  # NumPy's steps have no addresses
    return eager.CACHE


@pytest.fixture(params=["cpu", "vulkan", "cuda"])
def session(request: pytest.FixtureRequest) -> Session:
    return session_on_engine(request.param)


def copies(cache: eager.Cache) -> list[str]:
    return [p.copies for p in cache.programs.values() if isinstance(p, eager.Program)]


def test_large_arrays_are_not_copied_into_programs(session: Session, cache: eager.Cache) -> None:
    values = np.linspace(-1, 1, 1 << 18, dtype=np.float32).reshape(512, 512)
    x = rlx.array(values, device=session)
    np.testing.assert_array_equal((x + x).numpy(), values * 2)
    np.testing.assert_allclose(rlx.exp(x).numpy(), np.exp(values), rtol=1e-6)
    np.testing.assert_allclose((x * 0.5).sum(0).numpy(), (values / 2).sum(0), atol=1e-3)
    assert copies(cache) == [""] * 4
    assert cache.nbytes < values.nbytes  # of all four programs


def test_control_flow_and_results_that_lie_in_an_argument_are_copied_and_say_so(
    session: Session, cache: eager.Cache
) -> None:
    x = rlx.array(X, device=session)
    first, *_ = rlx.split(x, 3, 0)
    np.testing.assert_array_equal(first.numpy(), X[:1])
    on_cpu = session.info.kind == "cpu"
    assert any("lies in an argument" in reason for reason in copies(cache)) is on_cpu  # GPUs copy it, once
    once = rlx.cond(x.sum() > 0, lambda v: v + 1, lambda v: v - 1, x)  # whose functions a key does not tell
    np.testing.assert_array_equal(once.numpy(), X + 1 if X.sum() > 0 else X - 1)


def test_a_reshaped_array_shares_memory_that_outlives_either(session: Session, cache: eager.Cache) -> None:
    x = rlx.array(X, device=session)
    flat, tall, thick = x.reshape(12), rlx.expand_dims(x, 1), rlx.ravel(x.reshape(2, 6))
    assert all(y._buffer is x._buffer for y in (flat, tall, thick)) and copies(cache) == [""] * len(cache.programs)
    assert x.reshape(12) is not x and tall.shape == (3, 1, 4)
    changed = flat.at[0].set(99)
    x.close()
    tall.close()
    with pytest.raises(rlx.errors.ArenaError, match="closed"):
        x + 1
    np.testing.assert_array_equal(flat.numpy(), X.reshape(12))
    np.testing.assert_array_equal((thick + flat).numpy(), 2 * X.reshape(12))
    np.testing.assert_array_equal(changed.numpy(), [99, *X.reshape(12)[1:]])


def test_rows_of_an_array_on_a_gpu_share_its_memory_where_programs_can_take_them(session: Session) -> None:
    values = np.arange(4 * 68, dtype=np.float32).reshape(4, 68)  # rows of 272 bytes, 16 beyond a multiple of 256
    x = rlx.array(values, device=session)
    rows, part = x[1:3], x[1, 3:]
    on_gpu = session.info.kind != "cpu"
    assert (rows._buffer is x._buffer) is on_gpu and part._buffer is not x._buffer
    del x
    np.testing.assert_array_equal((rows * 2).numpy(), values[1:3] * 2)
    np.testing.assert_array_equal((part + 1).numpy(), values[1, 3:] + 1)
    np.testing.assert_array_equal(rows[1, 68 - 5 :].numpy(), values[2, -5:])
    np.testing.assert_array_equal((rows[1] @ rows.T).numpy(), values[2] @ values[1:3].T)


def test_one_array_twice_and_arguments_dropped_or_closed_at_once(session: Session) -> None:
    x = rlx.array(X, device=session)
    np.testing.assert_array_equal((x * x).numpy(), X * X)
    made = [rlx.array(X + n, device=session) + rlx.array(X * n, device=session) for n in range(40)]
    for n, each in enumerate(made):  # the arguments are gone, and their memory may be others' arguments by now
        np.testing.assert_array_equal(each.numpy(), (X + np.float32(n)) + X * np.float32(n))
    y = rlx.array(X, device=session)
    z = y + x
    y.close()
    again = rlx.array(np.full_like(X, 7), device=session)  # the memory that was closed, maybe
    np.testing.assert_array_equal(z.numpy(), X + X)
    np.testing.assert_array_equal(again.numpy(), 7)


def test_chains_in_which_each_result_is_dropped(session: Session) -> None:
    x, wanted = rlx.array(X, device=session), X
    for n in range(150):
        x = x * 0.5 + float(n % 7)
        wanted = wanted * np.float32(0.5) + np.float32(n % 7)
    np.testing.assert_allclose(x.numpy(), wanted, rtol=1e-6)


def test_numpys_arrays_as_they_lie(session: Session) -> None:
    x = rlx.array(X, device=session)
    bytes_ = np.zeros(X.nbytes + 1, np.uint8)
    unaligned = bytes_[1:].view(np.float32).reshape(X.shape)
    unaligned[...] = X
    fixed = X.copy()
    fixed.flags.writeable = False
    for given in (X[::-1], X.T.copy().T, unaligned, fixed, np.broadcast_to(X[:1], X.shape)):
        np.testing.assert_array_equal((x + given).numpy(), X + given)
    changed = X.copy()
    made = x + changed
    changed[...] = 0  # the call has read it
    np.testing.assert_array_equal(made.numpy(), X + X)


def test_borrowed_memory_at_an_odd_place_and_results_of_few_bytes() -> None:
    whole = np.arange(13, dtype=np.float32)
    borrowed = rlx.from_dlpack(whole[1:])
    np.testing.assert_array_equal((borrowed + borrowed).numpy(), whole[1:] * 2)
    empty = rlx.array(np.zeros((0, 4), np.float32), device="cpu")
    assert (empty + empty).shape == (0, 4) and rlx.concat([empty, empty]).shape == (0, 4)
    flags = rlx.array(np.array([True, False, True]), device="cpu")
    np.testing.assert_array_equal((flags & ~flags).numpy(), [False] * 3)


def test_contents_in_another_order_are_read_as_they_should_be() -> None:
    x = rlx.array(X, device="cpu")
    x._buffer.forms.keep_all()  # type: ignore[union-attr]  # as a program that packs the array as its weight
    np.testing.assert_array_equal((x + x).numpy(), X + X)


def test_small_memory_that_somebody_views_is_not_used_again() -> None:
    x = rlx.array(X, device="cpu")
    viewed = np.from_dlpack(x + x)
    whole = (x * 3)._buffer.view()  # type: ignore[union-attr]
    part = (x - x)._buffer.settled()[16:]  # type: ignore[union-attr]
    others = [x + float(n) for n in range(30)]
    np.testing.assert_array_equal(viewed, X + X)
    np.testing.assert_array_equal(whole.view(np.float32), (X * 3).ravel())
    assert not part.any()
    addresses = {a._buffer.address for a in others}  # type: ignore[union-attr]
    assert len(addresses) == 30


def test_memory_is_flat_over_changing_shapes(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager, "PROGRAMS", 4)
    device = session.info.id
    tracemalloc.start()
    for i in range(20):
        shapes.work(i, device)
    gc.collect()
    before, taken = tracemalloc.get_traced_memory()[0], session.device.taken_bytes()
    for i in range(20, 60):
        shapes.work(i, device)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert eager.cache_info()["size"] <= 4
    assert grown < 1 << 20 and session.device.taken_bytes() - taken < 1 << 20  # the pool's; forty programs take 2 MB


def test_programs_that_are_dropped_give_their_memory_back(
    session: Session, cache: eager.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever others give back meanwhile: a pool with no room keeps none of it, so that each reading is of what is
    used. From one with room a small request gets a buffer of up to a megabyte, which counts whole."""
    pool = getattr(session.device, "pool" if hasattr(session.device, "pool") else "_pool")
    monkeypatch.setattr(pool, "max_buffers", 0)
    pool.trim()
    others = [session.device.acquire(1 << 19) for _ in range(20)]
    x = rlx.array(X, device=session)
    for _ in range(2):
        rlx.softmax(x @ x.T).numpy()
    gc.collect()
    before = session.device.taken_bytes() - sum(b.nbytes for b in others)
    for other in others:
        other.close()
    for _ in range(3):
        cache.programs.clear()
        rlx.softmax(x @ x.T).numpy()
        gc.collect()
    assert session.device.taken_bytes() <= before


@pytest.mark.parametrize("case", sample(all_cases(), 1)[::6], ids=lambda c: c.id)
@pytest.mark.late
def test_each_op_on_given_memory(session: Session, case: Case) -> None:
    if any(t.dtype.is_packed for t in case.graph().inputs.values()):
        return  # packed weights are no Arrays' values
    how, message = verdict(session, case)
    assert how != "wrong", message


def test_the_place_of_errors(session: Session) -> None:
    x: Any = rlx.array(X, device=session)
    x.close()
    with pytest.raises(rlx.RlxError, match="was closed"):
        x + 1


def test_an_index_that_moves_compiles_no_program_for_each_place(session: Session, cache: eager.Cache) -> None:
    values = np.random.default_rng(0).standard_normal((7, 6, 5)).astype(np.float32)
    x = rlx.array(values, device=session)
    for first in (True, False):
        for k in range(2 if first else 5):
            for key in (np.s_[:, k], np.s_[..., k % 5, None], np.s_[k % 4 : k % 4 + 3, :, 1::2], np.s_[::-1, 5]):
                np.testing.assert_array_equal(x[key].numpy(), values[key])
        if first:
            programs = len(cache.programs)
    assert len(cache.programs) == programs
    for _ in range(8):  # places that come again get programs of their own
        np.testing.assert_array_equal(x[:, 3].numpy(), values[:, 3])
    assert len(cache.programs) == programs + (session.info.kind != "cpu")
