"""The Vulkan backend. Importing it loads neither the binding nor a driver; the first use of `backend` does."""

from __future__ import annotations

import atexit
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from rlx.backends.gpu import PROGRAMS
from rlx.errors import DeviceUnavailable
from rlx.host.locks import renewed

if TYPE_CHECKING:
    from rlx.backends.vulkan.device import VulkanDevice
    from rlx.driver.device import DeviceInfo


class VulkanBackend:
    """Lists and opens Vulkan devices, by the index that `probe` gives them."""

    name = "vulkan"
    needed = (
        *PROGRAMS, "rlx.backends.vulkan.recorder", "rlx.backends.vulkan.arena",
        "rlx.backends.gpu.elementwise.emit_spirv",
    )  # fmt: skip

    def __init__(self) -> None:
        self._lock = renewed(self, "_lock", threading.Lock)
        self._open: dict[int, VulkanDevice] = {}
        self._at_exit = False

    def probe(self) -> list[DeviceInfo]:
        """All usable Vulkan devices. Raises: DeviceUnavailable with the reason when there is none."""
        from rlx.backends.vulkan.discovery import physical_devices

        self._register()
        return [physical.info for physical in physical_devices()]

    def open(self, index: int) -> VulkanDevice:
        """The device, opened once a process, and again once it was closed or lost. Raises: DeviceUnavailable."""
        from rlx.backends.vulkan import api
        from rlx.backends.vulkan.device import VulkanDevice
        from rlx.backends.vulkan.discovery import physical_devices
        from rlx.backends.vulkan.memory import forced_memory
        from rlx.backends.vulkan.opened import bury_lost

        api.check_process()
        with self._lock:
            bury_lost()
            device = self._open.get(index)
            if device is not None and device.dead is None:
                return device
            devices = physical_devices()
            if not 0 <= index < len(devices):
                names = ", ".join(f"vulkan:{p.info.index} ({p.info.name})" for p in devices)
                raise DeviceUnavailable(f"there is no vulkan:{index}; there are {names}")
            self._register()
            self._open[index] = device = VulkanDevice(devices[index], forced_memory())
            return device

    def opened(self, index: int) -> VulkanDevice | None:
        result = self._open.get(index)
        if result is None or result.dead is not None:
            return None
        from rlx.backends.vulkan.opened import bury_lost

        with self._lock:
            bury_lost()  # as `open` does: the remains of a lost device are freed when the next one is requested
        return result

    def free_bytes(self, index: int) -> int | None:
        from rlx.backends.vulkan.discovery import physical_devices
        from rlx.backends.vulkan.memory import forced_memory, free_in_heap, program_heaps

        physical, forced = physical_devices()[index], None
        with suppress(DeviceUnavailable):  # `open` refuses a word that is no kind of memory
            forced = forced_memory()
        return free_in_heap(physical, program_heaps(physical, forced)[0])

    def _register(self) -> None:
        if not self._at_exit:
            self._at_exit = True
            atexit.register(_close)


def _close() -> None:
    """Closes devices, then the instance, before the interpreter exits, since drivers' threads may crash otherwise."""
    from rlx.backends.vulkan import api

    # If devices were only listed and none was opened, the module is not loaded.
    opened = sys.modules.get("rlx.backends.vulkan.opened")
    if opened is None or opened.close_at_exit():
        api.close_instance()


backend = VulkanBackend()
