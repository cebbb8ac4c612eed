"""The Vulkan devices that this process has opened, and how they end: when lost, after a fork, and at exit."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from typing import TYPE_CHECKING

from rlx.backends.vulkan import api
from rlx.errors import DeviceUnavailable, RlxError

if TYPE_CHECKING:
    from rlx.backends.vulkan.device import VulkanDevice

EXIT_SECONDS = 1.0  # how long the process waits for a device's work when it exits

# All devices that are not destroyed yet. A device is destroyed when it is closed or, where views of its memory still
# live, with the last of these. Lost devices that nothing refers to any more are in this set too.
OPENED: set[VulkanDevice] = set()


def bury_lost() -> None:
    """Closes lost devices whose objects are all closed or garbage-collected."""
    for device in tuple(OPENED):
        if device.dead is not None:
            device.bury()


def close_at_exit() -> bool:
    """Closes every device before the interpreter exits. Returns whether all are closed.

    Devices that may be in use are left to the system, which reclaims everything: those whose work does not end within
    EXIT_SECONDS, those that other threads, which still run for a moment, may be calling, and those whose memory is
    viewed. So is a device that was open at a fork: its memory is mapped in two processes, and a wait might never end.
    """
    left = False
    for device in tuple(OPENED):
        if device.usable:
            device.clock.stop()
    for device in tuple(OPENED):
        if device.usable and not device.forked:
            with contextlib.suppress(RlxError, KeyboardInterrupt):
                # The lock is never released: other threads submit nothing from here on.
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
    if OPENED:
        _leave_out_drivers_exit()


def _leave_out_drivers_exit() -> None:
    """Lets the process end by `_exit` once Python has finished and C's streams are written, with the status it has.

    `exit` would call the drivers' own exit handlers. NVIDIA's (580) frees there what it shares with the parent, whose
    own exit then never ends. C calls the handlers registered last first, so those of drivers, which were loaded before
    the fork, are skipped, as in the children of `multiprocessing`. Without `on_exit` in the C library, nothing is done.
    """
    libc = ctypes.CDLL(None)
    register = getattr(libc, "on_exit", None)
    if register is not None:
        register(libc._exit, None)
        register(libc.fcloseall, None)  # takes no arguments, and ignores those that a handler gets


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=_in_parent, after_in_child=_in_child)
