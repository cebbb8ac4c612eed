"""Free memory of a GPU by NVIDIA's management library: asking CUDA would open the device, which takes memory itself.

Source: NVML API reference."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any
from uuid import UUID


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@cache
def _library() -> Any:
    """The initialized library. Raises: OSError without one."""
    library = ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
    if library.nvmlInit_v2():
        raise OSError("NVML does not initialize")
    return library


def free_bytes(uuid: bytes) -> int | None:
    """Free bytes of the GPU with this UUID, over all processes; None if the library is missing or does not report
    it."""
    if not uuid:
        return None
    try:
        library = _library()
    except OSError:
        return None
    device, memory = ctypes.c_void_p(), _Memory()
    name = f"GPU-{UUID(bytes=uuid)}".encode()
    if library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(device)) or library.nvmlDeviceGetMemoryInfo(
        device, ctypes.byref(memory)
    ):
        return None
    return int(memory.free)
