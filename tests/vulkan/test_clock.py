"""A Vulkan device's clock is kept up from a run until a while after it, and never after the device is closed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rlx.backends.vulkan import clock
from rlx.backends.vulkan.clock import lasting
from rlx.backends.vulkan.device import VulkanDevice
from rlx.backends.vulkan.discovery import Physical
from rlx.errors import RlxError
from tests.vulkan.conftest import child


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What a stand-in for CUDA's driver is asked for."""
    asked: list[object] = []

    def hold(uuid: bytes) -> Callable[[], None]:
        asked.append(uuid)
        return lambda: asked.append("let go")

    monkeypatch.setattr(clock, "held_by_cuda", hold)
    return asked


def threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "rlx clock"]


def ran(device: VulkanDevice) -> None:
    """Work of the device, which copies enqueue."""
    a, b = device.acquire(64), device.acquire(64)
    device.submissions.copy(a, 0, b, 0, 64)
    device.queue_wait()
    a.close()
    b.close()


def test_without_being_asked_nothing_is_held(device: VulkanDevice, held: list[object]) -> None:
    ran(device)
    assert threads() == [] and held == []


def test_it_begins_with_a_run_and_ends_with_the_device(device: VulkanDevice, held: list[object]) -> None:
    device.clock.lasts = 600.0
    assert threads() == []
    ran(device)
    ran(device)
    assert len(threads()) == 1
    device.close()
    assert threads() == [] and held == [device.info.uuid, "let go"]


def test_it_ends_by_itself_and_begins_again(device: VulkanDevice, held: list[object]) -> None:
    device.clock.lasts = 1e-9
    for _ in range(2):
        device.clock.worked()
        for thread in threads():
            thread.join()
    assert held == [device.info.uuid, "let go"] * 2


def test_where_nothing_keeps_it_up_a_warning_says_so(
    device: VulkanDevice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clock, "held_by_cuda", lambda uuid: None)
    device.clock.lasts = 600.0
    ran(device)
    for thread in threads():
        thread.join()
    ran(device)
    assert caplog.text.count("nothing else keeps its clock up: unset RLX_VULKAN_CLOCK") == 1


def test_software_is_no_device_of_cudas(device: VulkanDevice) -> None:
    if device.info.kind == "software":
        assert clock.held_by_cuda(device.info.uuid) is None


def test_the_environment_says_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, seconds in (("0", 0.0), (" 2.5 ", 2.5), ("", 0.0)):
        monkeypatch.setenv("RLX_VULKAN_CLOCK", text)
        assert lasting(software=False) == seconds and lasting(software=True) == 0
    for text in ("on", "-1", "nan", "inf"):
        monkeypatch.setenv("RLX_VULKAN_CLOCK", text)
        with pytest.raises(RlxError, match=r"RLX_VULKAN_CLOCK.*0 leaves it to the driver"):
            lasting(software=False)


EXIT = """
from rlx.backends.vulkan import backend, clock
clock.held_by_cuda = lambda uuid: lambda: print("let go")
device = backend.open(0)
device.clock.lasts = 600.0
buffer = device.acquire(64)
device.submissions.copy(buffer, 0, device.acquire(64), 0, 64)
print("ends")
"""


@pytest.mark.late
def test_a_process_ends_with_it(repo: Path, clean_env: dict[str, str], physical: Physical) -> None:
    said = child(EXIT, {**clean_env, "PYTHONPATH": str(repo)})
    assert said.returncode == 0 and said.stdout.split() == ["ends", "let", "go"]
