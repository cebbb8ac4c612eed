"""Discovery, the end of things in any order, lost devices, forks, pipelines and their cache."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx.backends.vulkan import api, backend, discovery
from rlx.backends.vulkan.arena import VulkanArena
from rlx.backends.vulkan.device import VulkanDevice
from rlx.backends.vulkan.discovery import Physical, physical_devices
from rlx.backends.vulkan.recorder import Recorded
from rlx.driver.device import Backend, Device
from rlx.errors import ArenaError, DeviceLost, DeviceUnavailable, OutOfDeviceMemory
from tests.threads import at_once
from tests.vulkan.conftest import axpy, child, slots_plan

pytestmark = pytest.mark.vulkan


# -- discovery


def test_probe(physical: Physical) -> None:
    infos = backend.probe()
    assert [info.id for info in infos] == [f"vulkan:{i}" for i in range(len(infos))]
    info = infos[0]
    assert info == physical.info
    assert info.memory_bytes > 0
    assert "Vulkan 1." in info.driver
    limits = physical.limits
    assert limits.max_group_threads >= 128
    assert min(limits.max_groups) >= 65535
    assert limits.shared_bytes >= 16384
    assert 0 < limits.max_alloc_bytes <= max(heap.nbytes for heap in physical.heaps)
    if info.name.startswith("llvmpipe"):
        assert info.kind == "software"
        assert not info.preserves_subnormals
        assert info.features >= {"i64", "f64", "i16", "16bit_storage", "8bit_storage", "subgroup"}


def test_protocols(opened: Callable[[], VulkanDevice]) -> None:
    family: Backend = backend
    device: Device = opened()
    assert family.name == "vulkan"
    assert device.info.backend == "vulkan"


def test_opened_once_and_again_after_close(opened: Callable[[], VulkanDevice]) -> None:
    first = opened()
    assert opened() is first
    first.close()
    second = opened()
    assert second is not first
    assert second.acquire(16).nbytes == 16


def test_unknown_index(physical: Physical) -> None:
    with pytest.raises(DeviceUnavailable, match=r"no vulkan:99; there are vulkan:0"):
        backend.open(99)
    with pytest.raises(DeviceUnavailable, match="no vulkan:-1"):
        backend.open(-1)


REFUSED = """
from rlx.errors import DeviceUnavailable
from rlx.backends.vulkan import backend
try:
    backend.probe()
except DeviceUnavailable as error:
    print(error)
"""


NO_LOADER = """
from rlx.backends.vulkan import loader
loader.library_names = lambda: ["libnosuchvulkan.so.1"]
"""


def test_reasons_why_there_is_no_device(repo: Path, clean_env: dict[str, str], tmp_path: Path) -> None:
    env = {**clean_env, "PYTHONPATH": str(repo)}
    nothing = tmp_path / "none.json"
    said = child(REFUSED, env, VK_ICD_FILENAMES=str(nothing), VK_DRIVER_FILES=str(nothing))
    assert "found no driver" in said.stdout or "no driver offers one" in said.stdout, said
    hidden = "import ctypes, sys; sys.modules['vulkan'] = None\n" + REFUSED
    said = child(hidden, env)
    assert "pip install vulkan" in said.stdout, said
    said = child(NO_LOADER + REFUSED, env)
    assert "no Vulkan loader (libnosuchvulkan.so.1)" in said.stdout, said


def test_drivers_layered_over_another_api_are_asked_for(
    physical: Physical, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as MoltenVK: a loader lists them where an extension and a flag of the instance say so."""
    asked: list[Any] = []

    def refuse(kind: str, parent: Any, call: Any, what: str) -> None:
        asked.append(call.args[0])
        raise api.VkError("no instance")

    monkeypatch.setattr(api, "created", refuse)
    for offered, flags in ((set(), 0), ({"VK_KHR_portability_enumeration"}, 1)):
        monkeypatch.setattr(api, "instance_extensions", lambda offered=offered: offered)
        with pytest.raises(api.VkError):
            api.Instance()
        assert asked[-1].flags == flags and asked[-1].enabledExtensionCount == len(offered)
    assert "VK_KHR_portability_subset" in discovery._PLAIN_EXTENSIONS


def test_layer_that_is_not_installed(repo: Path, clean_env: dict[str, str], tmp_path: Path) -> None:
    env = {**clean_env, "PYTHONPATH": str(repo), "RLX_VULKAN_VALIDATION": "1", "VK_LAYER_PATH": str(tmp_path)}
    said = child(REFUSED, env)
    assert "vulkan-validationlayers" in said.stdout, said


def test_import_loads_no_binding(repo: Path, clean_env: dict[str, str]) -> None:
    code = "import sys, rlx.backends.vulkan; print([m for m in sys.modules if m.split('.')[0] in ('vulkan', 'cffi')])"
    assert child(code, {**clean_env, "PYTHONPATH": str(repo)}).stdout.strip() == "[]"


def test_devices_refused_say_why(monkeypatch: pytest.MonkeyPatch, physical: Physical) -> None:
    from rlx.backends.vulkan import discovery

    def refuse(handle: Any, index: int) -> Physical:
        raise DeviceUnavailable("Old Card offers Vulkan 1.1; rlx needs 1.2")

    monkeypatch.setattr(discovery, "describe", refuse)
    with pytest.raises(DeviceUnavailable, match=r"Old Card offers Vulkan 1\.1"):
        physical_devices()


def test_results_become_typed_errors() -> None:
    assert api.check(2, "waiting") == 2
    for result, kind in ((-4, DeviceLost), (-9, DeviceUnavailable)):
        with pytest.raises(kind, match="doing this"):
            api.check(result, "doing this")
    for result in (-1, -2, -5, -10, -12, -1000069000, -1000161000):
        with pytest.raises(OutOfDeviceMemory, match=r"doing this.*close executables"):
            api.check(result, "doing this")
    with pytest.raises(api.VkError, match="-13"):
        api.check(-13, "doing this")


def test_a_variable_that_hides_all_drivers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_LOADER_DRIVERS_SELECT", "VK_LOADER_DRIVERS_DISABLE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(DeviceUnavailable, match=r"found no driver.*\(VkResult -9\)$"):
        api.check(-9, "vkCreateInstance")
    monkeypatch.setenv("VK_ICD_FILENAMES", "/none.json")
    with pytest.raises(DeviceUnavailable, match=r"VK_ICD_FILENAMES=/none\.json in the environment names the only ones"):
        api.check(-9, "vkCreateInstance")
    monkeypatch.setenv("VK_LOADER_DRIVERS_DISABLE", "*")
    for result in (-9, -3):  # The loader's, and that of devices where each driver was left out.
        with pytest.raises(DeviceUnavailable, match=r"VK_LOADER_DRIVERS_DISABLE=\* in the environment names ones that"):
            api.check(result, "vkCreateInstance")


def test_structures_keep_what_they_point_to() -> None:
    made = [
        api.struct(
            "VkInstanceCreateInfo",
            "INSTANCE_CREATE_INFO",
            pApplicationInfo=api.struct(
                "VkApplicationInfo", "APPLICATION_INFO", pApplicationName=f"name {i}"
            ),
            enabledLayerCount=2,
            ppEnabledLayerNames=[f"layer {i}", "other"],
        )
        for i in range(200)
    ]
    gc.collect()
    for i, info in enumerate(made):
        assert api.text(info.pApplicationInfo.pApplicationName) == f"name {i}"
        assert api.text(info.ppEnabledLayerNames[0]) == f"layer {i}"


# -- the end


def run(recorded: Recorded) -> None:
    recorded.launch()
    recorded.wait()


@pytest.mark.parametrize("order", ["device", "arena", "recording", "buffers"])
@pytest.mark.usefixtures("kernels")
def test_anything_may_be_closed_first(device: VulkanDevice, order: str) -> None:
    arena = device.arena(slots_plan(2, 10))
    recorded = device.record([axpy(arena, 0, 1, 1.0)], arena)
    recorded.launch()
    objects: dict[str, Any] = {
        "device": device, "arena": arena, "recording": recorded, "buffers": arena.buffer("arena0"),
    }  # fmt: skip
    objects.pop(order).close()
    with pytest.raises((DeviceUnavailable, ArenaError)):
        recorded.launch()
    for item in objects.values():
        item.close()
    for call in (lambda: device.acquire(1), device.queue_wait, lambda: device.record([], arena)):
        with pytest.raises(DeviceUnavailable, match="was closed"):
            call()


@pytest.mark.usefixtures("kernels")
def test_nothing_leaks_however_it_is_dropped(device: VulkanDevice) -> None:
    arena = device.arena(slots_plan(2, 10))
    device.record([axpy(arena, 0, 1, 1.0)], arena).close()
    before = api.live_objects()
    for i in range(5):
        other = device.arena(slots_plan(2, 10))
        recorded = device.record([axpy(other, 0, 1, 1.0)], other, timings=i % 2 == 0)
        recorded.launch()
        if i < 3:
            recorded.close()
            other.close()
        del recorded, other
    device.queue_wait()
    gc.collect()
    device.acquire(1).close()  # buries what was dropped
    after = api.live_objects()
    extra = {kind: after[kind] - before.get(kind, 0) for kind in after if after[kind] != before.get(kind, 0)}
    assert extra.keys() <= {"Buffer", "DeviceMemory"}  # what waits in the pool
    assert sum(extra.values()) <= 2 * len(device.pool)
    arena.close()


def test_nothing_leaks_in_a_cycle(device: VulkanDevice) -> None:
    """Finalizers of what is collected together run once, whatever is alive again afterwards."""
    for _ in range(3):
        cycle: list[Any] = [device.arena(slots_plan(2, 10))]
        cycle.append(cycle)
        del cycle
        gc.collect()
    device.acquire(1).close()
    device.pool.trim()
    assert api.live_objects().get("Buffer", 0) <= 1  # of transfers


@pytest.mark.usefixtures("kernels")
def test_failed_recordings_leave_nothing(device: VulkanDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    with device.arena(slots_plan(2, 10)) as arena:
        steps = [axpy(arena, 0, 1, 1.0)]
        device.record(steps, arena).close()
        before = api.live_objects()
        monkeypatch.setattr(
            "rlx.backends.vulkan.recorder.Recorded._record_batch", lambda *a: api.check(-2, "recording")
        )
        with pytest.raises(OutOfDeviceMemory):
            device.record(steps, arena)
        assert api.live_objects() == before


class Lost:
    """The library of a device that is gone: the named calls answer VK_ERROR_DEVICE_LOST."""

    def __init__(self, lib: Any, *names: str) -> None:
        self._lib, self._names = lib, names

    def __getattr__(self, name: str) -> Any:
        if name in self._names:
            return lambda *args: -4
        return getattr(self._lib, name)


@pytest.mark.parametrize("call", ["vkQueueSubmit", "vkWaitForFences"])
@pytest.mark.usefixtures("kernels", "nothing_left")
def test_lost_device_says_so_to_everyone_and_opens_again(
    opened: Callable[[], VulkanDevice], call: str
) -> None:
    device = opened()
    arena = device.arena(slots_plan(2, 10))
    first = device.record([axpy(arena, 0, 1, 1.0)], arena)
    second = device.record([axpy(arena, 0, 1, 1.0)], arena)
    device.queue_wait()
    real = device.lib
    device.lib = Lost(real, call)
    with pytest.raises(DeviceLost):
        run(first)
    for attempt in (
        first.launch,
        second.launch,
        second.wait,
        lambda: arena.read_bytes(0),
        lambda: device.acquire(1),
    ):
        with pytest.raises(DeviceLost, match="lost"):
            attempt()
    fresh = opened()
    assert fresh is not device
    with fresh.arena(slots_plan(2, 10)) as other, fresh.record([axpy(other, 0, 1, 1.0)], other) as recorded:
        recorded.launch()
        recorded.wait()
    device.lib = real
    real.vkDeviceWaitIdle(device.handle)  # a device that is really gone has nothing under way
    first.close()
    arena.close()
    device.close()


FORK = """
import faulthandler, os, sys, threading
import numpy as np
from rlx.backends.vulkan import backend
from rlx.errors import DeviceUnavailable
device = backend.open(0)
buffer = device.acquire(64)
dropped = device.acquire(64)
locked = device.submitting
with locked:  # as if another thread were submitting
    pid = os.fork()
if pid == 0:
    said = 0
    calls = [lambda: device.acquire(1), lambda: buffer.write(0, np.zeros(1, np.uint8)), backend.probe,
             lambda: backend.open(0), device.queue_wait, lambda: buffer.read(0, np.zeros(1, np.uint8)), buffer.view]
    for call in calls:
        try:
            call()
        except DeviceUnavailable as error:
            said += "forked" in str(error)
    buffer.close()
    del dropped
    device.close()
    sys.stdout.write(f"{said} of {len(calls)}\\n")
    sys.exit(0)
os.waitpid(pid, 0)
faulthandler.dump_traceback_later(90)  # says which call an exit that does not come waits in
buffer.write(0, np.ones(64, np.uint8))
print("parent fine", buffer.view()[:2] if buffer.view() is not None else "")
"""


@pytest.mark.parametrize("memory", ["", "staging"])
def test_child_of_a_fork_is_told(
    repo: Path, clean_env: dict[str, str], physical: Physical, memory: str
) -> None:
    code = FORK.replace("with locked", "import warnings; warnings.simplefilter('ignore')\nwith locked")
    said = child(code, {**clean_env, "PYTHONPATH": str(repo), "RLX_VULKAN_MEMORY": memory})
    assert "7 of 7" in said.stdout, said
    assert "parent fine" in said.stdout, said
    assert said.returncode == 0


def test_a_forked_child_ends_as_python_says_but_without_the_drivers_exit(
    repo: Path, clean_env: dict[str, str], physical: Physical
) -> None:
    """NVIDIA's exit handlers, run in the child, keep the parent from ending."""
    code = """
import atexit, ctypes, os, sys
from rlx.backends.vulkan import backend
libc = ctypes.CDLL(None)
libc.on_exit(libc.abort, None)  # stands for a driver's handler
device = backend.open(0)
pid = os.fork()
if pid == 0:
    atexit.register(print, "Python's handler")
    libc.puts(b"C's buffer")
    sys.exit(3)
print("status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
device.close()
os._exit(0)
"""
    said = child(code, {**clean_env, "PYTHONPATH": str(repo)})
    assert said.returncode == 0, said
    assert sorted(said.stdout.splitlines()) == ["C's buffer", "Python's handler", "status 3"], said


def test_after_a_fork_the_parent_calls_no_driver_at_its_end(
    repo: Path, clean_env: dict[str, str], physical: Physical
) -> None:
    """Drivers have been seen to wait there without end, with device memory mapped when the process forked."""
    code = """
import os
from rlx.backends.vulkan import api, backend
device = backend.open(0)
buffer = device.acquire(64)
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
buffer.fill(0, 64, 1)
real = api.binding()
class Told:
    def __getattr__(self, name):
        print(name)
        return getattr(real.lib, name)
told = Told()
device.lib = told
api.binding = lambda: api.Binding(real.ffi, told)
"""
    code = "import warnings; warnings.simplefilter('ignore')" + code
    said = child(code, {**clean_env, "PYTHONPATH": str(repo)})
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")


def test_child_that_is_first_to_use_vulkan(repo: Path, clean_env: dict[str, str], physical: Physical) -> None:
    code = (
        "import os\nfrom rlx.backends.vulkan import backend\npid = os.fork()\n"
        "backend.open(0).acquire(64).close()\nprint('fine')\nif pid: os.waitpid(pid, 0)"
    )
    assert child(code, {**clean_env, "PYTHONPATH": str(repo)}).stdout == "fine\nfine\n"


EXIT = """
import sys
sys.path.insert(0, sys.argv[1]) if len(sys.argv) > 1 else None
from rlx.backends.vulkan import api, backend
device = backend.open(0)
kept = [device.acquire(100) for _ in range(3)]
import atexit
atexit.register(lambda: None)
"""


def test_exit_with_everything_open_is_quiet(
    repo: Path, clean_env: dict[str, str], physical: Physical
) -> None:
    said = child(EXIT, {**clean_env, "PYTHONPATH": str(repo)})
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")


# -- memory between threads


def test_threads_acquire_and_release(device: VulkanDevice) -> None:
    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        out = np.empty(20_000, np.uint8)
        for _ in range(60):
            size = int(rng.integers(1, 20_000))
            buffer = device.acquire(size)
            buffer.read(0, out[:size])
            assert not out[:size].any(), "not zero"
            buffer.fill(0, size, seed + 1)
            buffer.read(0, out[:size])
            assert (out[:size] == seed + 1).all(), "in two hands"
            buffer.close()

    at_once(8, work)
    assert len(device.pool) <= 16


def test_free_bytes_counts_what_is_taken(device: VulkanDevice) -> None:
    before = device.free_bytes()
    buffer = device.acquire(8 << 20)
    assert device.free_bytes() <= before - (8 << 20) or "VK_EXT_memory_budget" in device.physical.extensions
    buffer.close()
    assert device.free_bytes() >= before - (1 << 20)


def test_arena_is_a_vulkan_arena(device: VulkanDevice) -> None:
    with device.arena(slots_plan(1, 4)) as arena:
        assert isinstance(arena, VulkanArena)
        assert arena.size_bytes == 256
