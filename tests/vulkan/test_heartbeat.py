"""The heartbeat of a Vulkan device: from a run until a while after it, and never after the device is closed."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from rlx.backends.vulkan.device import VulkanDevice
from rlx.backends.vulkan.discovery import Physical
from rlx.backends.vulkan.heartbeat import LASTS, Heartbeat, lasting
from rlx.errors import RlxError
from tests.vulkan.conftest import child

LONG = 600.0


def beating(device: VulkanDevice, lasts: float = LONG) -> Heartbeat:
    """The device's heartbeat, of beats without a pause for so many seconds."""
    device.heartbeat.lasts, device.heartbeat.every = lasts, 0.0
    return device.heartbeat


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "rlx heartbeat"]


def ran(device: VulkanDevice) -> None:
    """Work of the device, which copies enqueue."""
    a, b = device.acquire(64), device.acquire(64)
    device.submissions.copy(a, 0, b, 0, 64)
    device.queue_wait()
    a.close()
    b.close()


def test_software_has_none(device: VulkanDevice) -> None:
    ran(device)
    assert threads() == []


def test_it_begins_with_a_run_and_ends_with_the_device(device: VulkanDevice) -> None:
    beating(device)
    assert threads() == []
    ran(device)
    (_,) = threads()
    while device.heartbeat.beats < 3:
        device.drain()
    ran(device)
    assert len(threads()) == 1
    device.close()
    assert threads() == []


def test_it_ends_by_itself_and_begins_again(device: VulkanDevice) -> None:
    beating(device, 1e-9)
    for _ in range(2):
        ran(device)
        for thread in [t for t in threading.enumerate() if t.name == "rlx heartbeat"]:
            thread.join()
        assert threads() == []


def test_results_are_as_without(device: VulkanDevice) -> None:
    beating(device)
    data, out = np.arange(16, dtype=np.uint8), np.zeros(16, np.uint8)
    a, b = device.acquire(16), device.acquire(16)
    for k in range(20):
        a.write(0, data + k)
        device.submissions.copy(a, 0, b, 0, 16)
        b.read(0, out)
        np.testing.assert_array_equal(out, data + k)
    a.close()
    b.close()


def test_a_lost_device_ends_it(device: VulkanDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Heartbeat) -> None:
        raise RlxError("lost")

    monkeypatch.setattr(Heartbeat, "_beat", refused)
    beating(device)
    ran(device)
    for thread in [t for t in threading.enumerate() if t.name == "rlx heartbeat"]:
        thread.join()
    assert threads() == []


def test_the_environment_says_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lasting(software=False) == LASTS and lasting(software=True) == 0
    for text, seconds in (("0", 0.0), (" 2.5 ", 2.5), ("", LASTS)):
        monkeypatch.setenv("RLX_VULKAN_HEARTBEAT", text)
        assert lasting(software=False) == seconds
    for text in ("on", "-1", "nan", "inf"):
        monkeypatch.setenv("RLX_VULKAN_HEARTBEAT", text)
        with pytest.raises(RlxError, match=r"RLX_VULKAN_HEARTBEAT.*0 leaves it to the driver"):
            lasting(software=False)


EXIT = """
from rlx.backends.vulkan import backend
device = backend.open(0)
device.heartbeat.lasts, device.heartbeat.every = 600.0, 0.0
buffer = device.acquire(64)
device.submissions.copy(buffer, 0, device.acquire(64), 0, 64)
while device.heartbeat.beats < 3:
    device.drain()
print("ends")
"""


@pytest.mark.late
def test_a_process_ends_with_it(repo: Path, clean_env: dict[str, str], physical: Physical) -> None:
    assert child(EXIT, {**clean_env, "PYTHONPATH": str(repo)}).stdout.strip() == "ends"
