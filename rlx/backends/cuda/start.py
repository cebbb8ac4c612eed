"""Starts the CUDA driver without holding Python's GIL, so that threads that import modules run meanwhile.

Source: CUDA Driver API, Initialization; Primary Context Management."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any


@cache
def driver_library() -> Any:
    """The driver's library. Raises: OSError without one."""
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def make_context(index: int) -> bool:
    """Creates the context that the runtime uses on a device. If it returns True, `drop_context` must be called once the
    runtime uses the context; if it fails, the runtime creates the context and reports what is wrong."""
    context, device = ctypes.c_void_p(), ctypes.c_int()
    try:
        driver = driver_library()
        if driver.cuDeviceGet(ctypes.byref(device), index):
            return False
        return bool(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0)
    except (OSError, AttributeError):
        return False


def drop_context(index: int) -> None:
    """Releases this module's reference to the context, so that only the runtime holds it."""
    device = ctypes.c_int()
    if driver_library().cuDeviceGet(ctypes.byref(device), index) == 0:
        driver_library().cuDevicePrimaryCtxRelease_v2(device)
