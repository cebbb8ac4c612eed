"""The Vulkan devices this process has opened, and what becomes of them when they are lost, at a fork, at the end."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

from rlx.backends.vulkan import api
from rlx.errors import DeviceUnavailable, RlxError

if TYPE_CHECKING:
    from rlx.backends.vulkan.device import VulkanDevice

EXIT_SECONDS = 1.0  # how long the end of the process waits for the work of a device

# Until they are closed, those that were lost and that nobody refers to any more among them.
OPENED: set[VulkanDevice] = set()


def bury_lost() -> None:
    """Closes lost devices that nobody uses any more."""
    for device in tuple(OPENED):
        if device.dead is not None:
            device.bury()


def close_at_exit() -> bool:
    """Closes every device before the interpreter goes. Returns whether it did.

    What may be in use is left to the system, which takes everything back: work that does not end within EXIT_SECONDS,
    and devices that other threads, which live on for a moment, may be calling.
    """
    left = False
    for device in tuple(OPENED):
        if device.usable:
            with contextlib.suppress(RlxError, KeyboardInterrupt):
                # For good: other threads submit nothing from here on.
                free = device.submitting.acquire(timeout=EXIT_SECONDS)
                ended = free and (device.dead is not None or device.drain(EXIT_SECONDS))
                if ended and len(sys._current_frames()) == 1:
                    device.destroy_all()
            left |= device.handle is not None
    return not left


def _forked() -> None:
    for device in tuple(OPENED):
        device.dead = DeviceUnavailable(api.FORKED)


os.register_at_fork(after_in_child=_forked)
