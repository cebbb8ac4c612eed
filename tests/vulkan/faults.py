"""`python -m tests.vulkan.faults PART... [all]`: a program's life in which each Vulkan call fails in turn, as it may.

PART is "open" (instance and device), "program" (compile, weights, state, runs, reads, twin, close), "pipeline" (the
first program of a device) or "lost" (calls that find the device gone). After each fault: the error was typed, or an
interrupt, or the results were right; another session on the device is unharmed, or is told that the device is lost;
nothing made is left; the same life again succeeds. "open" followed by K and N makes every N-th fault, from the K-th on;
by itself it leaves them to processes of their own where the driver is no software: after some dozens of instances in
one process NVIDIA's can make no more. Each call fails in one way at least (in `make test` only some of the calls of a
function that is called often), and each function in each of its ways; with "all", each call in each way. The calls and
faults are printed as JSON, by part; whatever is wrong ends with a traceback.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

import rlx
from rlx.backends.vulkan import api, recorder
from rlx.errors import DeviceLost, DeviceUnavailable, OutOfDeviceMemory, RlxError
from tests.faults import AFTER, BEFORE, Injector, Result, W, X, each_fault, life, program, run
from tests.full import full

EXHAUSTED = {-1, -2, -5, -10, -12, -1000069000, -1000161000}
LOST, UNKNOWN = -4, -13
# What each call may answer (Vulkan specification, the section of each call) besides running out of memory.
MORE: dict[str, tuple[Result, ...]] = {
    "vkCreateInstance": (-3, -6, -7, -9),
    "vkEnumeratePhysicalDevices": (-3,),
    "vkCreateDevice": (-3, -7, -8, -10, LOST),
    "vkAllocateMemory": (-10, -1000069000, -1000161000),
    "vkMapMemory": (-5,),
    "vkAllocateCommandBuffers": (-12,),
    "vkCreateComputePipelines": (-1000012000,),
}
MOST = 1000 if full() else 4  # calls of one function that fail
PROCESSES = 8  # some eight faults in each, with two instances a fault
_FLAGS = ("-X", "dev", "-W", "error")
IN_THE_QUEUE = ("vkQueueSubmit", "vkWaitForFences", "vkGetFenceStatus", "vkGetQueryPoolResults")


class Driver(Injector):
    """The loader's functions, of which those that return a VkResult are counted.

    A device that was lost stays so: every later call on it says so too.
    """

    def __init__(self, real: api.Binding) -> None:
        super().__init__()
        self.real = real
        self.lost: set[Any] = set()
        self.devices: dict[Any, Any] = {}  # by queue

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.real.lib, name)
        if not name.startswith("vk"):
            return real
        made = self._counted(name, real) if self.real.ffi.typeof(real).result.kind == "enum" else real
        if name == "vkGetDeviceQueue":
            made = self._queue
        elif name == "vkDestroyDevice":
            made = self._destroyed
        setattr(self, name, made)
        return made

    def _queue(self, device: Any, family: int, index: int, out: Any) -> None:
        self.real.lib.vkGetDeviceQueue(device, family, index, out)
        self.devices[out[0]] = device

    def _destroyed(self, device: Any, null: Any) -> None:
        self.lost.discard(device)  # the next one may have its address
        self.real.lib.vkDestroyDevice(device, null)

    def _counted(self, name: str, real: Callable[..., int]) -> Callable[..., int]:
        def call(*args: Any) -> int:
            device = self.devices.get(args[0], args[0]) if args else None
            if device in self.lost:
                return LOST
            result = self.reached(name)
            if result is None:
                return real(*args)
            if result == AFTER:
                real(*args)
            if isinstance(result, str):
                raise KeyboardInterrupt
            if result == LOST and name != "vkCreateDevice":
                self.real.lib.vkDeviceWaitIdle(device)  # one that is gone has nothing under way
                self.lost.add(device)
            return result

        return call


def installed() -> Driver:
    """A driver that everything in this process calls from here on."""
    real = api.binding()
    driver = Driver(real)
    binding = api.Binding(real.ffi, driver)
    api.binding = lambda: binding  # type: ignore[assignment]
    return driver


def expected(result: Result) -> type[BaseException]:
    if isinstance(result, str):
        return KeyboardInterrupt
    if result in EXHAUSTED:
        return OutOfDeviceMemory
    if result == LOST:
        return DeviceLost
    return api.VkError if result in (UNKNOWN, -1000012000) else DeviceUnavailable


def ways(name: str) -> tuple[Result, ...]:
    """How a call is made to fail, lost devices apart."""
    return (-1, -2, UNKNOWN, BEFORE, AFTER, *MORE.get(name, ()))


def opened() -> rlx.Session:
    return rlx.Session("vulkan:0", timings=True)


def ended() -> None:
    """Closes the device and the instance; nothing that was made is left."""
    from rlx.backends.vulkan.opened import OPENED

    gc.collect()
    for each in tuple(OPENED):
        each.close()
    api.close_instance()
    assert api.live_objects() == {}, api.live_objects()


def open_part(driver: Driver) -> Counter[str]:
    """Each call of opening the device."""
    numbers = [int(word) for word in sys.argv[2:] if word.isdecimal()]
    if not numbers and opened().info.kind != "software":
        return _in_processes()
    share = (numbers[0], numbers[1]) if numbers else (0, 1)
    return each_fault(driver, lambda: opened() and None, ways, expected, ended, share=share)


def _in_processes() -> Counter[str]:
    """The part, PROCESSES of them one after another, each with its share of the faults."""
    made: Counter[str] = Counter()
    for k in range(PROCESSES):
        command = [sys.executable, *_FLAGS, "-m", "tests.vulkan.faults", "open", str(k), str(PROCESSES), *sys.argv[2:]]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        if said.returncode or said.stderr:
            raise AssertionError(f"share {k} of {PROCESSES}: status {said.returncode}\n{said.stderr}")
        made.update(json.loads(said.stdout)["open"])
    return made


def pipeline_part(driver: Driver) -> Counter[str]:
    """Each call of the first life on a device that is about its pipelines."""
    stems = (
        "vkCreateShaderModule",
        "vkCreatePipelineCache",
        "vkCreateComputePipelines",
        "vkGetPipelineCacheData",
    )
    return each_fault(
        driver, lambda: life(opened()), lambda name: ways(name) if name in stems else (), expected, ended
    )


def program_part(driver: Driver) -> Counter[str]:
    """Each call of a life on a device whose pipelines are made, beside another session's program."""
    session, other = opened(), opened()
    device = session.device
    beside = other.compile(program())
    beside.set_param("w", W)
    life(session)

    def left() -> dict[str, int]:
        gc.collect()
        device.submissions.trim()
        device.bury()
        device.pool.trim()
        return api.live_objects()

    for _ in range(2):
        run(beside, beside.get_state("s"))
    before = left()

    def after() -> None:
        assert left() == before, (left(), before)
        beside.set_state("s", np.zeros(6, np.float32))
        run(beside, np.zeros(6))
        if "all" in sys.argv:  # else the next call's life shows it
            life(session)
            left()

    return each_fault(driver, lambda: life(session), ways, expected, after, MOST)


def lost_part(driver: Driver) -> Counter[str]:
    """Each call of a life that waits for the device finds it gone; the other session is told, and a new one lives."""
    sessions = [opened()]

    def begun() -> rlx.CompiledGraph:
        exe = sessions[0].compile(program())
        exe.set_param("w", W)
        run(exe, np.zeros(6))
        return exe

    beside = [begun()]
    life(sessions[0])

    def after() -> None:
        gone = sessions[0].device
        if gone.dead is not None:
            uses = (
                lambda: beside[0].run({"x": X}), lambda: beside[0].get_state("s"), beside[0].clone,
                lambda: life(sessions[0]), lambda: sessions[0].compile(program()),
            )  # fmt: skip
            for use in uses:
                try:
                    use()
                except DeviceLost:
                    continue
                raise AssertionError("the other session was not told")
            sessions[0] = opened()
            assert sessions[0].device is not gone
            assert api.live_objects()["Device"] == 2
            beside[0].close()
            del use, uses
            beside[0] = begun()  # the last user of the old device is gone
            gc.collect()
            opened()
            assert gone.closed and api.live_objects()["Device"] == 1, api.live_objects()
            life(sessions[0])

    return each_fault(
        driver,
        lambda: life(sessions[0]),
        lambda name: (LOST,) if name in IN_THE_QUEUE else (),
        expected,
        after,
        MOST,
    )


PARTS = {"open": open_part, "program": program_part, "pipeline": pipeline_part, "lost": lost_part}


def main() -> None:
    # Transfers, and every call about memory; each step in a command buffer of its own until it has been timed.
    os.environ["RLX_VULKAN_MEMORY"], os.environ["RLX_CACHE_DIR"] = "staging", "off"
    recorder.FIRST_STEPS = 1
    logging.disable()
    life(opened())  # imports all that a life imports
    ended()
    gc.freeze()  # so that collecting after each fault walks over what came later, not over the modules
    driver, made = installed(), {}
    for part in (part for part in PARTS if part in sys.argv[1:]):
        made[part] = PARTS[part](driver)
        with suppress(RlxError):
            ended()
    print(json.dumps(made))


if __name__ == "__main__":
    main()
