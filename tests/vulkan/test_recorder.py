"""Recorded steps run in order, again and again, from any thread, and refuse what cannot run."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

from rlx.backends.gpu.program.steps import Copy, FileKernel, HostCall, Launch, Ref, TreeKernel, TreeOperand
from rlx.backends.vulkan import api, recorder
from rlx.backends.vulkan.arena import VulkanArena
from rlx.backends.vulkan.device import VulkanDevice
from rlx.backends.vulkan.discovery import Physical
from rlx.backends.vulkan.recorder import Recorded, divided
from rlx.dtypes import f32
from rlx.errors import ArenaError, OutOfDeviceMemory, UnsupportedOp
from rlx.ir.expr import arg
from tests.threads import at_once
from tests.vulkan.conftest import axpy, ref, shift, slots_plan

pytestmark = [pytest.mark.vulkan, pytest.mark.usefixtures("kernels")]


def run(recorded: Recorded) -> None:
    recorded.launch()
    recorded.wait()


def put(arena: VulkanArena, node: int, value: float) -> None:
    arena.write_input_f32(node, f32, np.full(arena.slot_elems(node), value, np.float32))


def get(arena: VulkanArena, node: int) -> np.ndarray:
    return arena.read_output_f32(node, f32, arena.slot_elems(node))


def test_launches_and_copies(any_memory: VulkanDevice) -> None:
    with any_memory.arena(slots_plan(4, 1000)) as arena:
        x = np.random.default_rng(0).integers(-99, 99, 1000).astype(np.float32)  # exact however it is summed
        arena.write_input_f32(0, f32, x)
        steps = [
            shift(arena, 0, 1, 2, 4),  # 1 = x + 3
            Copy(ref(arena, 1), ref(arena, 2)),
            axpy(arena, 1, 2, -2.0),  # 2 = -(x + 3)
            shift(arena, 2, 3, -7, 2, wide=True),
        ]
        recorded = any_memory.record(steps, arena)
        assert recorded.schedule == (tuple(steps), frozenset({1, 2, 3}))
        run(recorded)
        one = (x + np.float32(3)).astype(np.float32)
        two = np.float32(-2) * one + one
        assert (get(arena, 1) == one).all()
        assert (get(arena, 2) == two).all()
        assert (get(arena, 3) == two - np.float32(7) + np.float32(0.5)).all()
        recorded.close()


def test_tree_kernels(device: VulkanDevice) -> None:
    """(x + s) * x, with a scalar operand, and a strided one read backwards."""
    flat, scalar = TreeOperand(f32, "flat"), TreeOperand(f32, "scalar")
    x, s = arg(0, f32), arg(1, f32)
    plain = TreeKernel(((x + s) * x,), (flat, scalar), (flat,), 0)
    turned = TreeKernel((-x,), (TreeOperand(f32, "strided"),), (flat,), 1)
    n = 1000
    with device.arena(slots_plan(5, n)) as arena:
        values = np.arange(n, dtype=np.float32)
        arena.write_input_f32(0, f32, values)
        put(arena, 1, 3.0)
        arena.write_bytes(4, np.array([n, n - 1, -1], np.int32))  # dims, first element, strides
        a, b, c, d, meta = (ref(arena, i) for i in range(5))
        groups = (-(-n // 256), 1, 1)
        steps = [
            Launch(plain, groups, (a, b, c, n), (a, b), (c,), "plain"),
            Launch(turned, groups, (meta, a, d, n), (meta, a), (d,), "turned"),
        ]
        with device.record(steps, arena) as recorded:
            run(recorded)
        assert (get(arena, 2) == (values + 3) * values).all()
        np.testing.assert_array_equal(get(arena, 3), -values[::-1])


def test_default_constants(device: VulkanDevice) -> None:
    with device.arena(slots_plan(2, 10)) as arena:
        with device.record([shift(arena, 0, 1)], arena) as recorded:
            run(recorded)
        assert (get(arena, 1) == 125).all()


def test_thousand_submits(any_memory: VulkanDevice) -> None:
    with any_memory.arena(slots_plan(2, 100)) as arena:
        put(arena, 0, 1.0)
        recorded = any_memory.record([axpy(arena, 0, 1, 1.0)], arena)
        for _ in range(1000):
            run(recorded)
        assert (get(arena, 1) == 1000).all()
        recorded.close()


def test_runs_are_ordered_without_waiting(device: VulkanDevice) -> None:
    with device.arena(slots_plan(3, 5000)) as arena:
        put(arena, 0, 1.0)
        first = device.record([axpy(arena, 0, 1, 1.0)], arena)  # 1 += 1
        second = device.record([axpy(arena, 1, 2, 1.0)], arena)  # 2 += 1's value
        for _ in range(20):
            first.launch()
            second.launch()
        assert (get(arena, 2) == sum(range(1, 21))).all()  # reading waits for both
        first.wait()
        second.wait()
        first.close()
        second.close()


def test_host_writes_wait_for_a_run_under_way(any_memory: VulkanDevice) -> None:
    with any_memory.arena(slots_plan(2, 200_000)) as arena:
        put(arena, 0, 1.0)
        recorded = any_memory.record([axpy(arena, 0, 1, 1.0)] * 10, arena)
        recorded.launch()
        put(arena, 0, 100.0)
        recorded.wait()
        assert (get(arena, 1) == 10).all()
        recorded.close()


@pytest.mark.parametrize("max_steps", [1, 3, 10, 100])
def test_split_into_batches(device: VulkanDevice, max_steps: int) -> None:
    with device.arena(slots_plan(3, 300)) as arena:
        put(arena, 0, 1.0)
        steps = [axpy(arena, 0, 1, 1.0), axpy(arena, 1, 2, 1.0)] * 5
        recorded = Recorded(device, steps, arena, max_steps=max_steps)
        assert recorded.batches == -(-10 // max_steps)
        for _ in range(2):
            run(recorded)
        assert (get(arena, 1) == 10).all()
        assert (get(arena, 2) == sum(range(1, 11))).all()
        recorded.close()


def test_steps_are_divided_by_the_time_they_took() -> None:
    batches = [range(4), range(4, 8), range(8, 10)]
    assert divided(batches, [0.01, 0.01, 0.01]) == [range(10)]
    assert divided(batches, [0.01, 0.8, 0.01]) == [range(5), range(5, 6), range(6, 7), range(7, 10)]
    assert divided([range(4)], [9.0]) == [range(i, i + 1) for i in range(4)]
    assert divided([range(1)], [9.0]) == [range(1)]


@pytest.mark.parametrize("limit, batches", [(1000.0, 1), (0.0, 8)])
def test_after_the_first_run_it_is_recorded_anew(
    device: VulkanDevice, monkeypatch: pytest.MonkeyPatch, limit: float, batches: int
) -> None:
    """In one command buffer where the steps are fast, in one for each step where each takes too long."""
    monkeypatch.setattr(recorder, "SUBMIT_SECONDS", limit)
    with device.arena(slots_plan(2, 10)) as arena:
        put(arena, 0, 1.0)
        with device.record([axpy(arena, 0, 1, 1.0)] * 8, arena) as recorded:
            assert recorded.batches == 2
            for runs in (1, 2, 3):
                run(recorded)
                assert recorded.batches == batches
                assert (get(arena, 1) == 8 * runs).all()


class Failing:
    """The library, one call of which fails."""

    def __init__(self, real: Any, call: str, error: BaseException) -> None:
        self._real, self._call, self._error = real, call, error

    def __getattr__(self, name: str) -> Any:
        if name == self._call:
            return self._fail
        return getattr(self._real, name)

    def _fail(self, *args: Any) -> int:
        raise self._error


@pytest.mark.parametrize("error", [OutOfDeviceMemory("full"), KeyboardInterrupt()], ids=["full", "interrupt"])
@pytest.mark.parametrize(
    "call", ["vkCreateCommandPool", "vkAllocateCommandBuffers", "vkBeginCommandBuffer", "vkEndCommandBuffer"]
)
def test_what_was_recorded_runs_on_where_recording_anew_fails(
    device: VulkanDevice, monkeypatch: pytest.MonkeyPatch, error: BaseException, call: str
) -> None:
    with device.arena(slots_plan(2, 10)) as arena:
        put(arena, 0, 1.0)
        with device.record([axpy(arena, 0, 1, 1.0)] * 8, arena) as recorded:
            recorded.launch()
            before = api.live_objects()
            real = api.binding()
            with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
                failing = Failing(real.lib, call, error)
                patch.setattr(api, "binding", lambda: api.Binding(real.ffi, failing))
                patch.setattr(device, "lib", failing)
                recorded.wait()
            for runs in (2, 3):
                run(recorded)
                assert (get(arena, 1) == 8 * runs).all()
            assert api.live_objects() == before


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["vkResetFences", "vkQueueSubmit", "vkWaitForFences"])
def test_an_interrupted_run_is_waited_for_by_the_next(
    any_memory: VulkanDevice, monkeypatch: pytest.MonkeyPatch, call: str, when: str
) -> None:
    """Launched, interrupted at the call, launched again; and a transfer likewise."""
    real = any_memory.lib

    class Interrupted(Failing):
        def _fail(self, *args: Any) -> int:
            if when == "after":
                getattr(real, call)(*args)
            raise KeyboardInterrupt

    with any_memory.arena(slots_plan(2, 50_000)) as arena:
        put(arena, 0, 1.0)
        with any_memory.record([axpy(arena, 0, 1, 1.0)] * 9, arena) as recorded:
            for work in (lambda: run(recorded), lambda: get(arena, 0), lambda: put(arena, 0, 1.0)):
                with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
                    patch.setattr(any_memory, "lib", Interrupted(real, call, KeyboardInterrupt()))
                    work()
                put(arena, 0, 1.0)
                arena.fill(1, 0)
                run(recorded)
                assert (get(arena, 1) == 9).all()


@pytest.mark.parametrize("call", ["vkQueueSubmit", "vkWaitForFences"])
def test_a_run_that_is_broken_off_is_not_timed(
    device: VulkanDevice, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The next run comes much later: what passed meanwhile is no time of a step."""
    moment = 0.0
    monkeypatch.setattr(recorder.time, "perf_counter", lambda: moment)
    with (
        device.arena(slots_plan(2, 10)) as arena,
        device.record([axpy(arena, 0, 1, 1.0)] * 4, arena) as recorded,
    ):
        assert recorded.batches == 1
        with monkeypatch.context() as patch:
            patch.setattr(device, "lib", Failing(device.lib, call, KeyboardInterrupt()))
            with pytest.raises(KeyboardInterrupt):
                run(recorded)
        moment = 1000.0
        for _ in range(2):
            run(recorded)
            assert recorded.batches == 1


def test_an_interrupt_leaves_one_command_buffer_under_way(
    device: VulkanDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a recording that was divided nobody waits for more, and the next run begins anew."""
    monkeypatch.setattr(recorder, "SUBMIT_SECONDS", 0.0)
    real, submitted = device.submit, []
    monkeypatch.setattr(device, "submit", lambda *args: (submitted.append(args), real(*args)))
    with device.arena(slots_plan(2, 10)) as arena:
        put(arena, 0, 1.0)
        with device.record([axpy(arena, 0, 1, 1.0)] * 8, arena) as recorded:
            run(recorded)
            assert recorded.batches == 8
            submitted.clear()
            with monkeypatch.context() as patch:
                patch.setattr(device, "lib", Failing(device.lib, "vkWaitForFences", KeyboardInterrupt()))
                with pytest.raises(KeyboardInterrupt):
                    run(recorded)
            assert len(submitted) == 1
            run(recorded)
            assert len(submitted) == 9
            assert (get(arena, 1) == 8 + 1 + 8).all()


def test_no_steps(device: VulkanDevice) -> None:
    with device.arena(slots_plan(1, 10)) as arena, device.record([], arena) as recorded:
        run(recorded)
        assert recorded.schedule == ((), frozenset())


def test_timings(device: VulkanDevice) -> None:
    with device.arena(slots_plan(2, 100_000)) as arena:
        recorded = device.record([axpy(arena, 0, 1, 1.0)] * 3, arena, timings=True)
        with pytest.raises(ArenaError, match="launch the recording"):
            recorded.timings()
        for _ in range(2):
            run(recorded)
            times = recorded.timings()
            assert len(times) == 3
            assert all(t >= 0 for t in times)
        recorded.close()
        plain = device.record([axpy(arena, 0, 1, 1.0)], arena)
        with pytest.raises(UnsupportedOp, match="timings=True"):
            plain.timings()
        plain.close()


def test_threads_share_a_queue(device: VulkanDevice) -> None:
    def work(seed: int) -> None:
        with device.arena(slots_plan(2, 333)) as arena:
            put(arena, 0, float(seed))
            with device.record([axpy(arena, 0, 1, 1.0)], arena) as recorded:
                for _ in range(50):
                    run(recorded)
            assert (get(arena, 1) == 50 * seed).all()

    at_once(16, work)


def test_threads_share_a_recording(device: VulkanDevice) -> None:
    with device.arena(slots_plan(2, 64)) as arena:
        put(arena, 0, 1.0)
        recorded = device.record([axpy(arena, 0, 1, 1.0)], arena)
        at_once(4, lambda _: [run(recorded) for _ in range(100)])
        assert (get(arena, 1) == 400).all()
        recorded.close()


# -- refusals


def bad(arena: VulkanArena, **changes: object) -> Launch:
    from dataclasses import replace

    return replace(axpy(arena, 0, 1, 1.0), **changes)  # type: ignore[arg-type]


def test_grid_beyond_the_device(device: VulkanDevice) -> None:
    with device.arena(slots_plan(2, 10)) as arena:
        for groups in ((0, 1, 1), (1, 1, device.limits.max_groups[2] + 1)):
            with pytest.raises(UnsupportedOp, match="workgroups"):
                device.record([bad(arena, groups=groups)], arena)


@pytest.mark.parametrize(
    "args, message",
    [
        ((Ref("arena0", 0, 4),) * 17, "at most 128"),
        ((1, Ref("arena0", 0, 4)), "argument 1"),
        ((Ref("arena0", 0, 4), 1 << 32), "argument 1"),
        ((Ref("arena0", 0, 4), -(1 << 31) - 1), "argument 1"),
        ((Ref("arena0", 500, 400),), "leaves its segment"),
        ((Ref("nowhere", 0, 4),), "nowhere"),
    ],
)
def test_bad_arguments(device: VulkanDevice, args: tuple[object, ...], message: str) -> None:
    with device.arena(slots_plan(2, 10)) as arena, pytest.raises(ArenaError, match=message):
        device.record([bad(arena, args=args)], arena)


def test_bad_copies_and_host_calls(device: VulkanDevice) -> None:
    with device.arena(slots_plan(2, 10)) as arena:
        with pytest.raises(ArenaError, match="differ"):
            device.record([Copy(Ref("arena0", 0, 4), Ref("arena0", 8, 8))], arena)
        with pytest.raises(ArenaError, match="overlap"):
            device.record([Copy(Ref("arena0", 0, 8), Ref("arena0", 4, 8))], arena)
        with pytest.raises(UnsupportedOp, match="HostCall"):
            device.record([HostCall(None, (), ())], arena)  # type: ignore[arg-type]


def test_memory_of_another_device_or_named_twice(device: VulkanDevice, physical: Physical) -> None:
    other = VulkanDevice(physical)
    step = Launch(FileKernel("test_shift"), (1, 1, 1), (Ref("w", 0, 4), Ref("v", 0, 4), 1), (), ())
    with device.arena(slots_plan(1, 10)) as arena:
        arena.bind("w", other.acquire(64))
        with pytest.raises(ArenaError, match="not memory of"):
            device.record([step], arena)
        shared = device.acquire(64)
        arena.bind("w", shared)
        arena.bind("v", shared)
        with pytest.raises(ArenaError, match="another segment"):
            device.record([step], arena)
        shared.close()
    other.close()


def test_recording_retires_with_its_memory(device: VulkanDevice) -> None:
    arena = device.arena(slots_plan(2, 10))
    recorded = device.record([axpy(arena, 0, 1, 1.0)], arena)
    recorded.launch()
    arena.close()  # waits
    with pytest.raises(ArenaError, match="was closed"):
        recorded.launch()
    recorded.wait()
    recorded.close()
    recorded.close()
