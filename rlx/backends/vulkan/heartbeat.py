"""Heartbeat: small submissions that keep a card's clock up between runs.

With nothing submitted, a driver lowers the clocks after a second or two, and the next run takes several times as long.
A CUDA context keeps them up by itself; a Vulkan device has no such thing.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from rlx.backends.vulkan.commands import COMPUTE, TRANSFER, Barrier, CommandBuffers, Fence
from rlx.backends.vulkan.memory import allocate
from rlx.driver.closing import Resources
from rlx.errors import RlxError
from rlx.host.locks import renewed

if TYPE_CHECKING:
    from rlx.backends.vulkan.device import VulkanDevice

HEARTBEAT_ENV = "RLX_VULKAN_HEARTBEAT"
EVERY = 0.5  # seconds
LASTS = 30.0  # seconds after the last run
_BYTES = 4096


def lasting(software: bool) -> float:
    """For how many seconds after a run a device's clock is kept up: what RLX_VULKAN_HEARTBEAT says, 0 for software.

    Raises: RlxError for what is no number of seconds."""
    text = os.environ.get(HEARTBEAT_ENV, "").strip()
    try:
        seconds = float(text) if text else LASTS
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise RlxError(
            f"{HEARTBEAT_ENV}={text!r}: expected for how many seconds after a run the clock is kept up, such as "
            f"{LASTS:g}; 0 leaves it to the driver"
        )
    return 0.0 if software else seconds


class Heartbeat:
    """Submits a small write each `every` seconds, from a run until `lasts` seconds after it, by a thread that lives no
    longer. Device and host wait for none of them."""

    def __init__(self, device: VulkanDevice, lasts: float, every: float = EVERY) -> None:
        self._device = device
        self.lasts, self.every = lasts, every
        self._lock = renewed(self, "_lock", threading.Lock)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._last = 0.0
        self.beats = 0  # how many were submitted
        self._held = Resources()
        self._work: tuple[CommandBuffers, Fence] | None = None

    def worked(self) -> None:
        """Says that a run begins."""
        self._last = time.monotonic()
        if self._thread is None and self.lasts and not self._stop.is_set():
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="rlx heartbeat", daemon=True)
                    self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self.every):
            idle = time.monotonic() - self._last
            if idle > self.lasts or not self._device.usable or self._device.dead is not None:
                break
            if idle >= self.every:
                try:
                    self._beat()
                except RlxError:  # the next run says what is wrong with the device
                    break
        self._thread = None

    def _beat(self) -> None:
        if self._work is None:
            self._work = self._recorded()
        commands, fence = self._work
        if fence.ended():
            commands.submit(0, fence)
            self.beats += 1

    def _recorded(self) -> tuple[CommandBuffers, Fence]:
        device = self._device
        with self._held.unwound():
            memory = allocate(device, _BYTES)
            self._held.callback(memory.free)
            commands = CommandBuffers(device, 1)
            self._held.callback(commands.close)
            fence = Fence(device)
            self._held.callback(fence.close)
            cb = commands.begin(0)
            Barrier(device, COMPUTE | TRANSFER, COMPUTE | TRANSFER).record(cb)
            device.lib.vkCmdFillBuffer(cb, memory.buffer, 0, _BYTES, 0)
            commands.end(0)
        return commands, fence

    def stop(self) -> None:
        """Ends the thread, and lets no other begin. Idempotent."""
        self._stop.set()
        thread = self._thread
        if thread is not None and thread.ident is not None:  # an interrupt may have kept it from starting
            thread.join()

    def close(self) -> None:
        """Destroys its objects. Requires: stopped, and nothing is under way. Idempotent."""
        self.stop()
        self._work = None
        self._held.close()
