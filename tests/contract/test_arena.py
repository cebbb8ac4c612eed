"""What every arena promises: offsets, lengths, writes, reads, fills, copies, and errors that change nothing."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from rlx.driver import DeviceArena
from rlx.dtypes import ALL, bf16, f16, f32, i32, u8
from rlx.errors import ArenaError, DTypeError
from tests.contract.conftest import pattern

SIZES = (1, 2, 3, 7, 16, 31, 64, 255, 256, 257, 1000, 4096, 65_537)


def test_is_an_arena_and_starts_zeroed(make_arena):
    arena = make_arena((0, f32, 1000), (1, u8, 77))
    assert isinstance(arena, DeviceArena)
    assert not arena.read_bytes(0).any()
    assert not arena.read_bytes(1).any()


def test_memory_is_zero_again_when_the_pool_hands_it_on(make_arena):
    for _ in range(3):
        arena = make_arena((0, u8, 100_000))
        assert not arena.read_bytes(0).any()
        arena.fill(0, 255)
        arena.close()


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("gap", [0, 256, 4096])
def test_write_read_fill_leave_the_neighbours_alone(make_arena, nbytes, gap):
    arena = make_arena((0, u8, nbytes), (1, u8, nbytes), (2, u8, nbytes), gap=gap)
    for node in (0, 1, 2):
        arena.fill(node, 0xA0 + node)
    data = pattern(nbytes)
    arena.write_bytes(1, data)
    np.testing.assert_array_equal(arena.read_bytes(1), data)
    np.testing.assert_array_equal(arena.read_bytes(0), np.full(nbytes, 0xA0, np.uint8))
    np.testing.assert_array_equal(arena.read_bytes(2), np.full(nbytes, 0xA2, np.uint8))
    arena.fill(1, 0x5C)
    np.testing.assert_array_equal(arena.read_bytes(1), np.full(nbytes, 0x5C, np.uint8))
    np.testing.assert_array_equal(arena.read_bytes(0), np.full(nbytes, 0xA0, np.uint8))
    np.testing.assert_array_equal(arena.read_bytes(2), np.full(nbytes, 0xA2, np.uint8))


@pytest.mark.parametrize("nbytes", [1, 3, 16, 255, 4099])
@pytest.mark.parametrize("source_offset", [0, 1, 4, 16])
@pytest.mark.parametrize("target_offset", [0, 1, 4, 16])
def test_copy_range_at_any_alignment(make_arena, nbytes, source_offset, target_offset):
    arena = make_arena((0, u8, nbytes + 32), (1, u8, nbytes + 32))
    source, target = pattern(nbytes + 32, 1), pattern(nbytes + 32, 2)
    arena.write_bytes(0, source)
    arena.write_bytes(1, target)
    arena.copy_range(0, source_offset, 1, target_offset, nbytes)
    expected = target.copy()
    expected[target_offset : target_offset + nbytes] = source[source_offset : source_offset + nbytes]
    np.testing.assert_array_equal(arena.read_bytes(1), expected)
    np.testing.assert_array_equal(arena.read_bytes(0), source)


@pytest.mark.parametrize(("source_offset", "target_offset"), [(0, 5), (5, 0), (0, 1000), (64, 0)])
def test_overlapping_copy_is_memmove(make_arena, source_offset, target_offset):
    arena = make_arena((0, u8, 8192), alias={1: 0})
    data = pattern(8192)
    arena.write_bytes(0, data)
    arena.copy_range(0, source_offset, 1, target_offset, 7000)
    expected = data.copy()
    expected[target_offset : target_offset + 7000] = data[source_offset : source_offset + 7000]
    np.testing.assert_array_equal(arena.read_bytes(0), expected)


def test_copy_prefix_between_aliases_does_nothing(make_arena):
    arena = make_arena((0, f32, 64), alias={1: 0})
    data = pattern(256)
    arena.write_bytes(0, data)
    arena.copy_prefix(0, 1, 256)
    np.testing.assert_array_equal(arena.read_bytes(1), data)


def test_copy_prefix(make_arena):
    arena = make_arena((0, f32, 64), (1, f32, 64))
    data = pattern(256)
    arena.write_bytes(0, data)
    arena.copy_prefix(0, 1, 100)
    np.testing.assert_array_equal(arena.read_bytes(1), np.r_[data[:100], np.zeros(156, np.uint8)])


def test_short_write_leaves_the_rest(make_arena):
    arena = make_arena((0, f32, 8))
    arena.write_input_f32(0, f32, np.arange(8))
    arena.write_input_f32(0, f32, [-1.0, -2.0])
    np.testing.assert_array_equal(arena.read_output_f32(0, f32, 8), [-1, -2, 2, 3, 4, 5, 6, 7])
    assert arena.read_output_f32(0, f32, 0).shape == (0,)


def test_offsets_and_lengths(make_arena):
    arena = make_arena((3, f16, 5), (9, f32, 4))
    assert arena.has_buffer(3)
    assert not arena.has_buffer(4)
    assert (arena.byte_offset(9), arena.elem_offset(9), arena.slot_elems(9)) == (256, 64, 4)
    assert arena.len_of(9) == 16
    arena.set_actual_len(9, 8)
    assert arena.len_of(9) == 8
    assert arena.read_bytes(9).nbytes == 8
    assert arena.size_bytes == arena.plan.segments["arena0"]
    arena.write_input_f32(9, f32, [1, 2, 3, 4])
    np.testing.assert_array_equal(arena.read_f32_at(arena.elem_offset(9) + 1, 2), [2, 3])


WRONG = {
    "unknown node": lambda a: a.write_bytes(99, b"x"),
    "unknown node read": lambda a: a.read_bytes(99),
    "unknown node offset": lambda a: a.byte_offset(99),
    "overlong write": lambda a: a.write_bytes(0, bytes(33)),
    "overlong typed write": lambda a: a.write_input_f32(0, f32, np.zeros(9)),
    "read past the end": lambda a: a.read_bytes(0, 33),
    "typed read past the end": lambda a: a.read_output_f32(0, f32, 9),
    "negative count": lambda a: a.read_output_f32(0, f32, -1),
    "read_f32_at past the end": lambda a: a.read_f32_at(0, 10**6),
    "read_f32_at before the start": lambda a: a.read_f32_at(-1, 1),
    "copy past the source": lambda a: a.copy_range(0, 16, 1, 0, 17),
    "copy past the target": lambda a: a.copy_range(0, 0, 1, 16, 17),
    "negative offset": lambda a: a.copy_range(0, -4, 1, 0, 4),
    "length past the slot": lambda a: a.set_actual_len(0, 33),
    "negative length": lambda a: a.set_actual_len(0, -1),
    "not a byte": lambda a: a.fill(0, 256),
    "half of an unknown node": lambda a: a.register_half_param(99, f16, [1.0]),
    "half larger than the slot": lambda a: a.register_half_param(0, f16, np.zeros(9)),
    "no half copy": lambda a: a.half_off(0),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_access_raises_and_changes_nothing(make_arena, what):
    arena = make_arena((0, f32, 8), (1, f32, 8))
    before = pattern(32, 1), pattern(32, 2)
    arena.write_bytes(0, before[0])
    arena.write_bytes(1, before[1])
    with pytest.raises(ArenaError):
        WRONG[what](arena)
    np.testing.assert_array_equal(arena.read_bytes(0, 32), before[0])
    np.testing.assert_array_equal(arena.read_bytes(1, 32), before[1])


@pytest.mark.parametrize("dtype", [d for d in ALL if d not in (f32, f16, bf16)], ids=str)
def test_other_dtypes_have_no_typed_access(make_arena, dtype):
    arena = make_arena((0, dtype, 8))
    with pytest.raises(DTypeError):
        arena.write_input_f32(0, dtype, [1.0])
    with pytest.raises(DTypeError):
        arena.read_output_f32(0, dtype, 1)
    assert not arena.read_bytes(0).any()


def test_a_dtype_that_is_not_the_slots_is_refused(make_arena):
    arena = make_arena((0, bf16, 8))
    with pytest.raises(DTypeError):
        arena.write_input_f32(0, f16, [1.0])


ARGUMENTS = {
    "node": 0, "source": 0, "target": 1, "dtype": f32, "wanted": f32, "data": [1.0], "segment": "arena0", "byte": 1,
    "nbytes": 4, "n_elements": 1, "elem_offset": 0, "source_offset": 0, "target_offset": 0, "shape": (1,),
    "entries": {}, "buffer": None, "twin": None,
}  # fmt: skip
STILL_ALLOWED = {"closed", "close", "plan"}


def members() -> list[str]:
    """Every method and property of the contract."""
    return sorted(n for n in vars(DeviceArena) if not n.startswith("_") and n not in STILL_ALLOWED)


@pytest.mark.parametrize("name", members())
def test_closed_arena_refuses_everything(make_arena, name):
    arena, other = make_arena((0, f32, 8), (1, f32, 8)), make_arena((0, f32, 8), (1, f32, 8))
    arena.close()
    arena.close()
    assert arena.closed
    wanted = (
        inspect.signature(vars(DeviceArena)[name]).parameters if callable(vars(DeviceArena)[name]) else {}
    )
    given = {k: other if k == "twin" else ARGUMENTS[k] for k in wanted if k != "self"}

    def use() -> None:
        member = getattr(arena, name)  # a property refuses here
        member(**given)

    with pytest.raises(ArenaError, match="closed"):
        use()
    if name == "copy_into":
        with pytest.raises(ArenaError, match="closed"):
            other.copy_into(arena)


def test_what_was_bound_before_a_close_refuses_after_it(make_arena):
    arena = make_arena((0, f32, 8), (1, f32, 8))
    write, read = arena.input_writer(0, f32, (2, 4)), arena.output_reader(0, f32, (2, 4), f16)
    copy = arena.range_copier(0, 1)
    data = np.arange(8, dtype=np.float32).reshape(2, 4)
    write.call(data)
    np.testing.assert_array_equal(read.call(), data.astype(np.float16))
    assert read.call().dtype == np.float16
    copy.call(4, 0, 8)
    np.testing.assert_array_equal(arena.read_output_f32(1, f32, 3), [1, 2, 0])
    with pytest.raises(ArenaError):
        copy.call(0, 28, 8)
    arena.close()
    for call in (lambda: write.call(data), read.call, lambda: copy.call(0, 0, 4)):
        with pytest.raises(ArenaError, match="closed"):
            call()


def test_context_manager_closes(make_arena):
    with make_arena((0, i32, 4)) as arena:
        arena.write_bytes(0, np.arange(4, dtype=np.int32))
    assert arena.closed


def test_twin_takes_the_contents(make_arena, device):
    arena = make_arena((0, f32, 100), (1, u8, 33))
    arena.write_bytes(0, pattern(400))
    arena.write_bytes(1, pattern(33))
    with device.arena(arena.plan, {}) as twin:
        arena.copy_into(twin)
        np.testing.assert_array_equal(twin.read_bytes(0), pattern(400))
        np.testing.assert_array_equal(twin.read_bytes(1), pattern(33))
        twin.fill(0, 7)
        np.testing.assert_array_equal(arena.read_bytes(0), pattern(400))
    other = make_arena((0, f32, 1000))
    with pytest.raises(ArenaError):
        arena.copy_into(other)


@pytest.mark.parametrize(
    "slots", [((0, f32, 16), (1, f32, 64)), ((0, f32, 64), (1, f16, 32)), ((0, f32, 64), (2, f32, 16))]
)
def test_a_plan_of_other_slots_in_segments_of_the_same_size_is_no_twin(make_arena, slots):
    arena, other = make_arena((0, f32, 64), (1, f32, 16)), make_arena(*slots)
    assert arena.plan.segments == other.plan.segments
    arena.fill(0, 1)
    with pytest.raises(ArenaError, match="another plan"):
        arena.copy_into(other)
    assert not other.read_bytes(0).any()


def test_a_view_is_the_memory_and_outlives_the_arena(make_arena):
    arena = make_arena((0, u8, 200_000), (1, u8, 64))
    view = arena.view(0)
    if view is None:
        assert "cuda" in arena.device.info.id or arena.buffer("arena0").view() is None
        return
    arena.write_bytes(0, pattern(200_000))
    np.testing.assert_array_equal(view, pattern(200_000))
    view[:2] = 7, 8
    assert arena.read_bytes(0, 2).tolist() == [7, 8]
    part = view[100:300].view(np.uint16)
    before = part.copy()
    del view
    arena.close()
    others = [make_arena((0, u8, 200_000), (1, u8, 64)) for _ in range(4)]  # none of them gets that memory
    for other in others:
        other.fill(0, 0xEE)
    np.testing.assert_array_equal(part, before)
    part[:] = 0x5555
    for other in others:
        np.testing.assert_array_equal(other.read_bytes(0), np.full(200_000, 0xEE, np.uint8))
