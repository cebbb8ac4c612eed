"""What no arena takes: wrong plans, sizes, counts and data. Nothing is changed by the attempt."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlx.driver import MemoryPlan, Slot
from rlx.dtypes import bf16, f16, f32, u8
from rlx.errors import ArenaError, DTypeError, OutOfDeviceMemory, ShapeError
from tests.contract.conftest import pattern

WRONG_SLOTS = {
    "past the end": Slot("arena0", 256, 1024, f32),
    "begins past the end": Slot("arena0", 4096, 4, f32),
    "far past 64 bits": Slot("arena0", 1 << 80, 4, f32),
    "negative offset": Slot("arena0", -256, 4, f32),
    "negative size": Slot("arena0", 0, -4, f32),
    "not aligned": Slot("arena0", 2, 4, f32),
    "aligned to its elements alone": Slot("arena0", 4, 4, f32),
    "half an element": Slot("arena0", 0, 6, f32),
    "fraction of a byte": Slot("arena0", 0, 2.5, u8),  # type: ignore[arg-type]
    "offset that is no whole number": Slot("arena0", 256.0, 4, f32),  # type: ignore[arg-type]
    "offset that is a bool": Slot("arena0", False, 4, f32),
    "no dtype of rlx": Slot("arena0", 0, 4, np.dtype("f4")),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", WRONG_SLOTS)
def test_a_wrong_plan_is_refused_before_memory_is_touched(device, what, monkeypatch):
    monkeypatch.setattr(device, "acquire", lambda nbytes: pytest.fail("memory was taken"))
    good = Slot("arena0", 0, 64, f32)
    with pytest.raises(ArenaError, match="node 1"):
        device.arena(MemoryPlan("test", {0: good, 1: WRONG_SLOTS[what]}, {"arena0": 512}), {})


@pytest.mark.parametrize(
    "view", [Slot("arena0", 256, 32, f32), Slot("arena0", 0, 128, f32), Slot("arena0", 8, 16, f32)]
)
def test_a_view_that_leaves_what_it_views_is_refused(device, view):
    plan = MemoryPlan("test", {0: Slot("arena0", 0, 64, f32), 1: view}, {"arena0": 512}, alias_of={1: 0})
    with pytest.raises(ArenaError, match="node 1"):
        device.arena(plan, {})
    inside = replace(plan, slots={0: plan.slots[0], 1: Slot("arena0", 16, 48, f32)})
    with device.arena(inside, {}) as arena:
        arena.write_input_f32(0, f32, np.arange(16))
        np.testing.assert_array_equal(arena.read_output_f32(1, f32, 12), np.arange(4, 16))


def test_what_is_bound_must_hold_the_slots_in_it(device):
    plan = MemoryPlan("test", {0: Slot("weights0", 256, 64, f32)}, {"arena0": 0})
    small, large = device.acquire(300), device.acquire(320)
    with pytest.raises(ArenaError, match=r"300 bytes are bound, but node 0 .* ends at 320"):
        device.arena(plan, {"weights0": small})
    with device.arena(plan, {}) as arena:
        with pytest.raises(ArenaError, match="not bound"):
            arena.write_bytes(0, bytes(64))
        with pytest.raises(ArenaError, match="ends at 320"):
            arena.bind("weights0", small)
        with pytest.raises(ArenaError, match="not bound"):
            arena.write_bytes(0, bytes(64))
        with pytest.raises(ArenaError, match="arena's own"):
            arena.bind("arena0", large)
        with pytest.raises(ArenaError, match="expected a Buffer"):
            arena.bind("weights0", None)
        arena.bind("weights0", large)
        arena.write_bytes(0, pattern(64))
        np.testing.assert_array_equal(arena.read_bytes(0), pattern(64))
    small.close()
    large.close()


@pytest.mark.parametrize("nbytes", [1 << 63, 1 << 64, 1 << 70, 10**40])
def test_sizes_beyond_64_bits_are_no_memory(device, nbytes):
    with pytest.raises(OutOfDeviceMemory):
        device.arena(MemoryPlan("test", {}, {"arena0": nbytes}), {})
    with pytest.raises(OutOfDeviceMemory):
        device.acquire(nbytes)


@pytest.mark.parametrize("nbytes", [2.5, np.float64(256), True, "8", None, -1])
def test_fractions_of_bytes_are_no_size(device, nbytes):
    with pytest.raises(ArenaError):
        device.arena(MemoryPlan("test", {}, {"arena0": nbytes}), {})
    with pytest.raises(ArenaError):
        device.acquire(nbytes)


COUNTS = {
    "byte": lambda a, n: a.fill(0, n),
    "bytes read": lambda a, n: a.read_bytes(0, n),
    "elements read": lambda a, n: a.read_output_f32(0, f32, n),
    "elements read by offset": lambda a, n: a.read_f32_at(0, n),
    "offset of a read": lambda a, n: a.read_f32_at(n, 1),
    "length": lambda a, n: a.set_actual_len(0, n),
    "prefix": lambda a, n: a.copy_prefix(0, 1, n),
    "bytes copied": lambda a, n: a.copy_range(0, 0, 1, 0, n),
    "source offset": lambda a, n: a.copy_range(0, n, 1, 0, 4),
    "target offset": lambda a, n: a.copy_range(0, 0, 1, n, 4),
    "node": lambda a, n: a.slot(n),
    "node asked for": lambda a, n: a.has_buffer(n),
    "element of a half": lambda a, n: a.half_at(n),
}


@pytest.mark.parametrize("what", COUNTS)
def test_counts_and_offsets_are_whole_numbers(make_arena, what):
    arena = make_arena((0, f32, 64), (1, f32, 64))
    for wrong in (2.5, 1.0, np.float64(3), True, np.bool_(True), "1", [1], 1j):
        with pytest.raises(ArenaError, match="whole number"):
            COUNTS[what](arena, wrong)
    assert not arena.read_bytes(1).any() and arena.len_of(0) == 256
    for right in (1, np.int64(1), np.uint8(1), np.array(1)):
        COUNTS[what](arena, right)


HUGE = (
    1 << 31,
    1 << 32,
    (1 << 63) - 1,
    1 << 63,
    1 << 64,
    1 << 100,
    -(1 << 63),
    -(1 << 100),
    np.int64(2**63 - 1),
)


@pytest.mark.parametrize("what", [w for w in COUNTS if w not in ("node asked for", "element of a half")])
def test_huge_and_negative_numbers_do_not_overflow(make_arena, what):
    arena = make_arena((0, f32, 64), (1, f32, 64))
    arena.fill(0, 1)
    for n in (*HUGE, -1):
        with pytest.raises(ArenaError):
            COUNTS[what](arena, n)
    assert not arena.read_bytes(1).any()


class Odd:
    """An object, as NumPy sees it."""


@pytest.mark.parametrize(
    "data", [None, "text", b"bytes", 1j, [1, 1j], np.array([1 + 2j]), [[1.0], [2.0, 3.0]], [None], ["1"],
             np.array([1, 2], object), Odd(), {}, np.zeros(1, [("a", "f4")]), np.array(["2020"], "M8[Y]")],
    ids=lambda d: type(d).__name__,
)  # fmt: skip
@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
def test_typed_writes_take_real_numbers_alone(make_arena, data, dtype):
    arena = make_arena((0, dtype, 8))
    for call in (
        lambda: arena.write_input_f32(0, dtype, data),
        lambda: arena.register_half_param(0, bf16, data),
    ):
        with pytest.raises((DTypeError, ShapeError)):
            call()
    assert not arena.read_bytes(0).any() and not arena.is_half(0)


@pytest.mark.parametrize("data", [None, "text", [1, 2], Odd(), np.array([None]), 3])
def test_raw_writes_take_what_has_bytes(make_arena, data):
    arena = make_arena((0, u8, 8))
    with pytest.raises(DTypeError, match="write_bytes"):
        arena.write_bytes(0, data)
    arena.write_bytes(0, b"")
    arena.write_bytes(0, bytearray(b"12"))
    arena.write_bytes(0, np.arange(8, dtype=np.uint8)[::2])
    np.testing.assert_array_equal(arena.read_bytes(0), [0, 2, 4, 6, 0, 0, 0, 0])


def test_typed_writes_take_every_real_dtype_and_overflow_to_infinity(make_arena):
    arena = make_arena((0, f16, 4))
    for data in ([1, 0], [True, False], np.array([1, 0], np.int64), np.array([1, 0], bf16.np)):
        arena.write_input_f32(0, f16, data)
        np.testing.assert_array_equal(arena.read_output_f32(0, f16, 2), [1, 0])
    arena.write_input_f32(0, f16, [1e300, -1e300, 1e5, np.nan])
    np.testing.assert_array_equal(arena.read_output_f32(0, f16, 4), [np.inf, -np.inf, np.inf, np.nan])
