"""Buffers and arenas on each kind of Vulkan memory: bytes in, the same bytes out, and errors that say what to do."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx.backends.vulkan import transfer
from rlx.backends.vulkan.device import VulkanDevice
from rlx.backends.vulkan.discovery import Heap, MemoryType, Physical
from rlx.backends.vulkan.memory import VulkanBuffer, allocate, forced_memory, kind_for, program_heaps
from rlx.driver import MemoryPlan, Slot
from rlx.dtypes import bf16, f16, f32
from rlx.errors import ArenaError, DeviceUnavailable, OutOfDeviceMemory
from tests.vulkan.conftest import child, slots_plan

pytestmark = pytest.mark.vulkan


def read(buffer: VulkanBuffer, offset: int = 0, nbytes: int | None = None) -> bytes:
    out = np.empty(buffer.nbytes - offset if nbytes is None else nbytes, np.uint8)
    buffer.read(offset, out)
    return out.tobytes()


def noise(nbytes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


@pytest.mark.parametrize("nbytes", [1, 3, 4, 255, 257, 5000])
@pytest.mark.parametrize("offset", [0, 1, 4, 1023])
def test_write_then_read(any_memory: VulkanDevice, nbytes: int, offset: int) -> None:
    buffer = any_memory.acquire(7000)
    data = noise(nbytes)
    buffer.write(offset, data)
    assert read(buffer) == bytes(offset) + data.tobytes() + bytes(7000 - offset - nbytes)


@pytest.mark.parametrize("offset", [0, 1, 2, 3, 4, 7])
@pytest.mark.parametrize("nbytes", [1, 2, 3, 4, 5, 8, 13, 2048])
def test_fill_touches_exactly_its_bytes(any_memory: VulkanDevice, offset: int, nbytes: int) -> None:
    buffer = any_memory.acquire(3000)
    buffer.write(0, np.full(3000, 1, np.uint8))
    buffer.fill(offset, nbytes, 0xAB)
    assert read(buffer) == b"\1" * offset + b"\xab" * nbytes + b"\1" * (3000 - offset - nbytes)


@pytest.mark.parametrize(
    "source, target, nbytes", [(0, 100, 500), (100, 0, 500), (7, 8, 900), (8, 7, 900), (5, 5, 9)]
)
def test_overlapping_copy_is_memmove(
    any_memory: VulkanDevice, source: int, target: int, nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "CHUNK_BYTES", 64)  # several pieces, in either direction
    buffer = any_memory.acquire(1000)
    data = noise(1000)
    buffer.write(0, data)
    buffer.copy_from(buffer, source, target, nbytes)
    wanted = bytearray(data.tobytes())
    wanted[target : target + nbytes] = data.tobytes()[source : source + nbytes]
    assert read(buffer) == bytes(wanted)


def test_copy_between_buffers(any_memory: VulkanDevice) -> None:
    first, second = any_memory.acquire(999), any_memory.acquire(2000)
    data = noise(999)
    first.write(0, data)
    second.copy_from(first, 11, 3, 900)
    assert read(second, 0, 910) == bytes(3) + data[11:911].tobytes() + bytes(7)


def test_transfers_longer_than_the_staging_memory(
    any_memory: VulkanDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "CHUNK_BYTES", 1000)
    buffer = any_memory.acquire(4567)
    data = noise(4567)
    buffer.write(0, data)
    assert read(buffer) == data.tobytes()


def test_work_writes_in_place_where_the_host_has_the_memory(any_memory: VulkanDevice) -> None:
    buffer = any_memory.acquire(300)
    data = noise(200)
    done = buffer.write_by(50, 200, lambda out: np.copyto(out, data))
    assert done == (buffer.view() is not None)
    assert read(buffer) == bytes(50) + (data.tobytes() if done else bytes(200)) + bytes(50)


def test_writes_on_several_threads(any_memory: VulkanDevice) -> None:
    buffer = any_memory.acquire((9 << 20) + 3)
    data = noise(9 << 20)
    buffer.write(1, data)
    assert read(buffer) == bytes(1) + data.tobytes() + bytes(2)


def test_zero_when_acquired_also_from_the_pool(any_memory: VulkanDevice) -> None:
    first = any_memory.acquire(5000)
    first.fill(0, 5000, 0xFF)
    address = first.address
    first.close()
    second = any_memory.acquire(4001)
    assert second.address == address  # the pool handed it on
    assert read(second) == bytes(4001)
    assert second.nbytes == 4001


def test_view_is_the_memory_where_the_host_may_use_it(any_memory: VulkanDevice) -> None:
    buffer = any_memory.acquire(100)
    view = buffer.view()
    assert (view is not None) == (buffer.kind == "host")
    if view is not None:
        view[:] = 7
        assert read(buffer) == b"\7" * 100


def test_closed_buffer_refuses(device: VulkanDevice) -> None:
    buffer = device.acquire(10)
    buffer.close()
    buffer.close()
    for call in (
        lambda: buffer.write(0, noise(1)),
        lambda: read(buffer),
        buffer.view,
        lambda: buffer.fill(0, 1, 0),
    ):
        with pytest.raises(ArenaError, match="closed"):
            call()


def test_copy_from_another_device_refuses(device: VulkanDevice, physical: Physical) -> None:
    other = VulkanDevice(physical)
    with pytest.raises(ArenaError, match="not memory of vulkan:0"):
        device.acquire(10).copy_from(other.acquire(10), 0, 0, 10)
    other.close()


@pytest.mark.parametrize("dtype", [f32, f16, bf16])
def test_arena_typed_access(any_memory: VulkanDevice, dtype: object) -> None:
    assert dtype in (f32, f16, bf16)
    chosen = {f32: f32, f16: f16, bf16: bf16}[dtype]  # type: ignore[index]
    plan = MemoryPlan("test", slots={0: Slot("arena0", 256, 40, chosen)}, segments={"arena0": 512})
    values = np.random.default_rng(1).standard_normal(40 // chosen.itemsize).astype(np.float32)
    with any_memory.arena(plan) as arena:
        arena.write_input_f32(0, chosen, values)
        kind = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[chosen.name]
        assert arena.read_bytes(0).tobytes() == values.astype(kind).tobytes()
        assert (arena.read_output_f32(0, chosen, values.size) == values.astype(kind).astype(np.float32)).all()
        assert arena.view(0) is None or arena.buffer("arena0").kind == "host"  # type: ignore[attr-defined]


def test_arena_twin_and_ranges(any_memory: VulkanDevice) -> None:
    plan = slots_plan(3, 100)
    with any_memory.arena(plan) as arena, any_memory.arena(plan) as twin:
        arena.write_bytes(1, noise(400))
        arena.copy_range(1, 4, 2, 8, 300)
        arena.copy_into(twin)
        assert twin.read_bytes(2).tobytes() == bytes(8) + noise(400)[4:304].tobytes() + bytes(92)
        with pytest.raises(ArenaError, match="leave its slot"):
            arena.copy_range(1, 200, 2, 0, 300)
        with pytest.raises(ArenaError, match="do not fit"):
            arena.write_bytes(1, noise(401))
        with pytest.raises(ArenaError, match="no slot"):
            arena.read_bytes(9)
    with pytest.raises(ArenaError, match="closed"):
        arena.read_bytes(1)


def test_half_weights_grow(any_memory: VulkanDevice) -> None:
    with any_memory.arena(slots_plan(2, 70000)) as arena:
        values = np.random.default_rng(2).standard_normal(70000).astype(np.float32)
        arena.register_half_param(0, f16, values)
        arena.register_half_param(1, bf16, values)
        assert (arena.read_half(0) == values.astype(np.float16)).all()
        assert (arena.read_half(1) == values.astype(ml_dtypes.bfloat16)).all()


def test_an_arena_logs_its_sizes_and_prints_nothing(
    device: VulkanDevice, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG, "rlx.backends.vulkan.arena"), device.arena(slots_plan(2, 64)):
        assert "vulkan:0 arena of 512 bytes" in caplog.text
        assert f"arena0 512 ({device.memory_kind(512)})" in caplog.text
    assert capsys.readouterr() == ("", "")


def test_larger_than_the_device_says_need_and_free(any_memory: VulkanDevice) -> None:
    with pytest.raises(OutOfDeviceMemory) as caught:
        any_memory.acquire(1 << 50)
    assert str(1 << 50) in str(caught.value)
    assert "free:" in str(caught.value)
    assert len(read(any_memory.acquire(64))) == 64  # and the next, smaller one works


def test_full_heap_says_need_and_free(physical: Physical, nothing_left: None) -> None:
    if physical.info.kind != "software":
        pytest.skip("fills the device's memory")
    device = VulkanDevice(physical, "staging")  # the pages of what is only reserved cost nothing
    half = physical.limits.max_alloc_bytes // 2
    pooled = device.acquire(1 << 20)
    pooled.close()
    reserved = [allocate(device, half - (4 << 20)) for _ in range(2)]
    assert device.free_bytes() < 16 << 20
    with pytest.raises(OutOfDeviceMemory, match=str(half)):
        device.acquire(half)
    assert len(device.pool) == 0  # what waited was given up first
    for memory in reserved:
        memory.free()
    device.close()


def test_a_buffer_has_a_byte(device: VulkanDevice) -> None:
    with pytest.raises(ArenaError, match="at least one byte"):
        device.acquire(0)


def test_dropped_buffers_are_found_again(any_memory: VulkanDevice) -> None:
    read(any_memory.acquire(5000))  # with staging memory from here on
    address = any_memory.acquire(5000).address  # dropped at once
    taken = any_memory.taken_bytes()
    for _ in range(3):
        again = any_memory.acquire(5000)
        assert again.address == address and not any(read(again))
        again.write(0, np.full(5000, 7, np.uint8))
        del again
    assert any_memory.taken_bytes() == taken
    kept = any_memory.acquire(5000)
    other = any_memory.acquire(5000)
    assert kept.address != other.address


def test_forced_kind_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLX_VULKAN_MEMORY", "bar")
    assert forced_memory() == "bar"
    monkeypatch.setenv("RLX_VULKAN_MEMORY", "")
    assert forced_memory() is None
    monkeypatch.setenv("RLX_VULKAN_MEMORY", "fast")
    with pytest.raises(DeviceUnavailable, match="host, bar, staging"):
        forced_memory()


GIB = 1 << 30


@pytest.mark.parametrize(
    "kind, heaps, types, nbytes, wanted",
    [
        # A card whose whole memory is mapped.
        ("discrete", [(24 * GIB, True), (32 * GIB, False)], [(1, 0), (7, 0), (14, 1)], 20 * GIB, "bar"),
        # A card with a window of 256 MiB.
        (
            "discrete",
            [(8 * GIB, True), (GIB // 4, True), (32 * GIB, False)],
            [(1, 0), (7, 1), (14, 2)],
            GIB,
            "staging",
        ),
        (
            "discrete",
            [(8 * GIB, True), (GIB // 4, True), (32 * GIB, False)],
            [(1, 0), (7, 1), (14, 2)],
            4096,
            "bar",
        ),
        # A card without a window.
        ("discrete", [(8 * GIB, True), (32 * GIB, False)], [(1, 0), (14, 1)], 4096, "staging"),
        # Shared memory.
        ("integrated", [(16 * GIB, True)], [(7, 0), (15, 0)], GIB, "host"),
        ("integrated", [(GIB, True), (16 * GIB, False)], [(1, 0), (7, 0), (14, 1)], 4096, "host"),
        # Shared memory without a cached type.
        ("integrated", [(16 * GIB, True)], [(7, 0)], GIB, "bar"),
    ],
)
def test_kind_follows_the_device(
    physical: Physical,
    kind: str,
    heaps: list[tuple[int, bool]],
    types: list[tuple[int, int]],
    nbytes: int,
    wanted: str,
) -> None:
    from dataclasses import replace

    described = replace(
        physical,
        info=replace(physical.info, kind=kind),  # type: ignore[arg-type]
        heaps=tuple(Heap(*heap) for heap in heaps),
        memory_types=tuple(MemoryType(*t) for t in types),
    )
    assert kind_for(described, nbytes, free=GIB // 8) == wanted
    # What is taken and what is free is counted in the heaps of that memory, also where another kind is forced.
    local = [i for i, heap in enumerate(described.heaps) if heap.device_local]
    of_host = next((heap for flags, heap in types if flags & 14 == 14), None)
    assert program_heaps(described, None) == ([of_host] if wanted == "host" else local)
    assert program_heaps(described, "host") == (local if of_host is None else [of_host])
    assert program_heaps(described, "staging") == local


VIEW_AFTER_CLOSE = """
import atexit, gc, sys
from rlx.backends import vulkan
from rlx.backends.vulkan import api
from rlx.driver import MemoryPlan, Slot
from rlx.dtypes import u8

device = vulkan.backend.open(0)
plan = MemoryPlan("test", {0: Slot("arena0", 0, 1 << 22, u8)}, {"arena0": 1 << 22})
arena = device.arena(plan)
arena.fill(0, 3)
view = arena.view(0)
if view is None:
    sys.exit(77)
arena.close()
device.pool.trim()
assert view.sum() == 3 << 22
device.close()
atexit._run_exitfuncs()  # an instance outlives its devices, and they what is viewed
assert {"Instance", "Device"} <= {kind for kind, n in api.live_objects().items() if n}
view[:] = 5
part = view[1000:2000]
del view
assert part.sum() == 5000
del part, arena
gc.collect()
live = {kind: n for kind, n in api.live_objects().items() if n and kind not in ("Instance", "DebugUtilsMessengerEXT")}
assert not live, live
"""


def test_a_view_is_readable_after_its_arena_and_device_are_closed(clean_env: dict[str, str]) -> None:
    done = child(VIEW_AFTER_CLOSE, clean_env, PYTHONPATH=str(Path(__file__).parents[2]))
    if done.returncode == 77:
        pytest.skip("the host has no view of this device's memory")
    assert done.returncode == 0, done.stderr


def test_programs_of_a_closed_device_refuse_to_run(opened: Callable[[], VulkanDevice]) -> None:
    device = opened()
    g = rlx.Graph("host step")
    g.output("y", rlx.exp(g.input("x", (8,), "f64")) + 1)
    session = rlx.Session("vulkan")
    assert session.device is device
    exe = session.compile(g)
    feed = {"x": np.zeros(8)}
    np.testing.assert_array_equal(exe.run(feed)["y"], np.full(8, 2.0))
    device.close()
    with pytest.raises(rlx.errors.RlxError, match="closed"):
        exe.run(feed)
