"""Memory of another driver of the same GPU, by those calls of the CUDA driver that CuPy does not have.

Source: CUDA Driver API, External Resource Interoperability."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable

from rlx.backends.cuda.start import driver_library
from rlx.errors import UnsupportedOp

_OPAQUE_FD = 1  # CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD


class _Handle(ctypes.Union):
    _fields_ = (("fd", ctypes.c_int), ("names", ctypes.c_void_p * 2))


class _MemoryDescription(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle", _Handle),
        ("size", ctypes.c_ulonglong),
        ("flags", ctypes.c_uint),
        ("reserved", ctypes.c_uint * 16),
    )


class _BufferDescription(ctypes.Structure):
    _fields_ = (
        ("offset", ctypes.c_ulonglong),
        ("size", ctypes.c_ulonglong),
        ("flags", ctypes.c_uint),
        ("reserved", ctypes.c_uint * 16),
    )


def gpu_uuid(index: int) -> bytes:
    """The UUID of a device, by which Vulkan names the same GPU; empty where the driver states none."""
    try:
        uuid, device = (ctypes.c_ubyte * 16)(), ctypes.c_int()
        driver = driver_library()
        if driver.cuDeviceGet(ctypes.byref(device), index) or driver.cuDeviceGetUuid_v2(uuid, device):
            return b""
    except (OSError, AttributeError):
        return b""
    return bytes(uuid)


class ImportedMemory:
    """See Imported. It is unmapped when it is dropped, in the context in which it was made."""

    def __init__(self, device: str, handle: int, nbytes: int) -> None:
        self.address = 0
        self._pid = os.getpid()
        self._context, self._memory = ctypes.c_void_p(), ctypes.c_void_p()
        self._device, self._driver = device, driver_library()
        driver = self._driver
        wanted = _MemoryDescription(type=_OPAQUE_FD, handle=_Handle(fd=handle), size=nbytes)
        try:
            self._check("cuCtxGetCurrent", driver.cuCtxGetCurrent(ctypes.byref(self._context)))
            self._check(
                "cuImportExternalMemory",
                driver.cuImportExternalMemory(ctypes.byref(self._memory), ctypes.byref(wanted)),
            )
        except UnsupportedOp:
            os.close(handle)  # the driver takes it over only where it succeeds
            raise
        address, whole = ctypes.c_ulonglong(), _BufferDescription(size=nbytes)
        status = driver.cuExternalMemoryGetMappedBuffer(
            ctypes.byref(address), self._memory, ctypes.byref(whole)
        )
        self._check("cuExternalMemoryGetMappedBuffer", status)
        self.address = int(address.value)

    def _check(self, call: str, status: int) -> None:
        if status:
            raise UnsupportedOp(
                f"{self._device}: {call} refused memory of another driver (CUresult {status})"
            )

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # When the interpreter exits, modules may already be gone; the driver then ends the mapping.
        if ending() or not self._memory.value or os.getpid() != self._pid:
            return
        # A failure leaves the mapping until the process ends; a finalizer has no caller to report it to.
        driver, before = self._driver, ctypes.c_void_p()
        if driver.cuCtxPushCurrent_v2(self._context) == 0:
            if self.address:
                driver.cuMemFree_v2(ctypes.c_ulonglong(self.address))
            driver.cuDestroyExternalMemory(self._memory)
            driver.cuCtxPopCurrent_v2(ctypes.byref(before))
