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

# Until they are destroyed, which is when they are closed or, where views of their memory live still, after the last
# of these. Those that were lost and that nobody refers to any more are among them.
OPENED: set[VulkanDevice] = set()


def bury_lost() -> None:
    """Closes lost devices that nobody uses any more."""
    for device in tuple(OPENED):
        if device.dead is not None:
            device.bury()


def close_at_exit() -> bool:
    """Closes every device before the interpreter goes. Returns whether it did.

    What may be in use is left to the system, which takes everything back: work that does not end within EXIT_SECONDS,
    devices that other threads, which live on for a moment, may be calling, and those whose memory is still viewed. So
    is a device that was open at a fork, whose memory has been mapped in two processes: no wait for it has a bound.
    """
    left = False
    for device in tuple(OPENED):
        if device.usable and not device.forked:
            with contextlib.suppress(RlxError, KeyboardInterrupt):
                # For good: other threads submit nothing from here on.
                free = device.submitting.acquire(timeout=EXIT_SECONDS)
                ended = free and (device.dead is not None or device.drain(EXIT_SECONDS))
                if ended and len(sys._current_frames()) == 1:
                    device.destroy_all()
        left |= device.handle is not None
    return not left


def _in_parent() -> None:
    for device in tuple(OPENED):
        device.forked = True


def _in_child() -> None:
    for device in tuple(OPENED):
        device.dead = DeviceUnavailable(api.FORKED)


os.register_at_fork(after_in_parent=_in_parent, after_in_child=_in_child)
