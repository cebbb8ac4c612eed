"""Clock: keeps a GPU's clock rate high between runs, if RLX_VULKAN_CLOCK asks for it.

After a second or two of idling a driver lowers the clock rate, and raises it again only under load: on an H200 (driver
580) runs of 3.2 ms took 14.5 ms after a pause of 3 s, until 0.28 s of work was done. Small submissions during the pause
(4 KB written, or a dispatch, every 0.25 s) changed nothing; with 4 ms of work every 20 ms runs took 6.2 ms, with 80 ms
every second 3.7 ms. With a CUDA context on the GPU they took 3.4 ms; the context takes 0.5 GB of its memory and 0.3 s
to create.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from rlx.errors import RlxError
from rlx.host.locks import renewed

if TYPE_CHECKING:
    from rlx.backends.vulkan.device import VulkanDevice

_log = logging.getLogger(__name__)

CLOCK_ENV = "RLX_VULKAN_CLOCK"


def lasting(software: bool) -> float:
    """For how many seconds after a run a device's clock rate is kept high: the value of RLX_VULKAN_CLOCK; 0 if it is
    unset and for software drivers. Raises: RlxError if the value is not a number of seconds."""
    text = os.environ.get(CLOCK_ENV, "").strip()
    try:
        seconds = float(text) if text else 0.0
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise RlxError(
            f"{CLOCK_ENV}={text!r}: expected for how many seconds after a run the clock is kept up, such as 30; 0 "
            "leaves it to the driver"
        )
    return 0.0 if software else seconds


def held_by_cuda(uuid: bytes) -> Callable[[], object] | None:
    """Holds the primary context of CUDA on the device of this UUID. Returns a function that releases it; None if CUDA
    is missing or has no such device. Source: CUDA Driver API, Primary Context Management."""
    try:
        driver: Any = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        count, device = ctypes.c_int(), ctypes.c_int()
        if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
            return None
        for number in range(count.value):
            own, context = (ctypes.c_ubyte * 16)(), ctypes.c_void_p()
            if driver.cuDeviceGet(ctypes.byref(device), number) or driver.cuDeviceGetUuid_v2(own, device):
                continue
            if bytes(own) == uuid and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0:
                return partial(driver.cuDevicePrimaryCtxRelease_v2, device)
    except (OSError, AttributeError):
        pass
    return None


class Clock:
    """Keeps a device's clock rate high until `lasts` seconds after its last run, by a thread that ends then."""

    def __init__(self, device: VulkanDevice, lasts: float) -> None:
        self._device = device
        self.lasts = lasts
        self._lock = renewed(self, "_lock", threading.Lock)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._last = 0.0

    def worked(self) -> None:
        """To be called when a run begins."""
        if not self.lasts:
            return
        self._last = time.monotonic()
        if self._thread is None and not self._stop.is_set():
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="rlx clock", daemon=True)
                    self._thread.start()

    def _run(self) -> None:
        info = self._device.info
        let_go = held_by_cuda(info.uuid)
        if let_go is None:
            _log.warning(
                "%s: CUDA has no such device, and nothing else keeps its clock up: unset %s", info.id, CLOCK_ENV
            )
            self.lasts = 0.0
            return
        try:
            while (left := self._last + self.lasts - time.monotonic()) > 0:
                if self._stop.wait(left):
                    break
        finally:
            let_go()
            self._thread = None

    def stop(self) -> None:
        """Ends the thread and prevents a new one. Idempotent."""
        self._stop.set()
        thread = self._thread
        if thread is not None and thread.ident is not None:  # an interrupt may have kept it from starting
            thread.join()
