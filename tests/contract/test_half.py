"""Half-precision weights of arenas: copies registered here, and what is kept so in memory bound here."""

from __future__ import annotations

import numpy as np
import pytest

from rlx.driver import MemoryPlan, Slot
from rlx.dtypes import bf16, f16, f32
from rlx.errors import ArenaError, DTypeError
from tests.threads import at_once


def test_half_params_grow_and_lose_nothing(make_arena):
    count, n = 40, 3000
    arena = make_arena(*((i, f32, n) for i in range(count)))
    rng = np.random.default_rng(0)
    data = [rng.standard_normal(n).astype(np.float32) for _ in range(count)]
    assert not arena.is_half(0)
    for i in range(count):
        arena.register_half_param(i, (f16, bf16)[i % 2], data[i])
    offsets = [arena.half_off(i) for i in range(count)]
    assert len(set(offsets)) == count
    for i in range(count):
        dtype = (f16, bf16)[i % 2]
        assert arena.is_half(i)
        assert arena.half_at(arena.elem_offset(i)) == i
        np.testing.assert_array_equal(arena.read_half(i), data[i].astype(dtype.np).astype(np.float32))
    arena.register_half_param(3, bf16, data[0])
    assert arena.half_off(3) == offsets[3]
    np.testing.assert_array_equal(arena.read_half(3), data[0].astype(bf16.np).astype(np.float32))
    assert arena.half_at(10**9) is None
    with pytest.raises(DTypeError):
        arena.register_half_param(0, f32, data[0])


def test_a_twin_takes_half_copies_and_lengths_and_has_no_others(make_arena, device):
    arena = make_arena((0, f32, 8), (1, f32, 8), (2, f32, 8))
    values = np.linspace(-1, 1, 8, dtype=np.float32)
    arena.register_half_param(0, bf16, values)
    arena.set_actual_len(1, 12)
    with device.arena(arena.plan, {}) as twin:
        twin.register_half_param(2, f16, values)
        twin.set_actual_len(2, 4)
        arena.copy_into(twin)
        assert [twin.is_half(i) for i in range(3)] == [True, False, False]
        assert [twin.len_of(i) for i in range(3)] == [32, 12, 32]
        np.testing.assert_array_equal(twin.read_half(0), values.astype(bf16.np).astype(np.float32))
        twin.register_half_param(0, bf16, np.zeros(8))
        assert arena.read_half(0).any()
        arena.copy_into(arena)  # itself: as it is
        assert arena.is_half(0) and arena.len_of(1) == 12


def test_half_params_from_threads(make_arena):
    count, n = 24, 4000
    arena = make_arena(*((i, f32, n) for i in range(count)))

    def register(i: int) -> None:
        for dtype in (f16, bf16, f16):
            arena.register_half_param(i % count, dtype, np.full(n, i % count, np.float32))

    at_once(2 * count, register)
    assert len({arena.half_off(i) for i in range(count)}) == count
    for i in range(count):
        np.testing.assert_array_equal(arena.read_half(i), np.full(n, i, np.float32))


def test_half_weights_in_memory_bound_here(device):
    stored, n = device.acquire(2048), 10
    plan = MemoryPlan(
        "test", {4: Slot("half0", 512, 2 * n, bf16), 5: Slot("arena0", 0, 4, bf16)}, {"arena0": 256}
    )
    with device.arena(plan, {"half0": stored}) as arena:
        arena.write_input_f32(4, bf16, np.arange(n))
        assert arena.is_half(4) and not arena.is_half(5) and not arena.is_half(6)
        assert (arena.half_off(4), arena.half_at(arena.elem_offset(4)), arena.half_at(256, "half0")) == (
            512,
            4,
            4,
        )
        assert arena.half_at(0) is None and arena.half_at(256, "arena0") is None
        np.testing.assert_array_equal(arena.read_half(4), np.arange(n))
        for missing in (arena.half_off, arena.read_half):
            with pytest.raises(ArenaError, match="no half"):
                missing(5)
    stored.close()
