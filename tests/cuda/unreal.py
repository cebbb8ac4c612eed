"""Stand-ins for the CUDA calls that rlx makes: they allocate host memory and do nothing else. Tests let one fail."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np


class Raised(RuntimeError):
    """An error as CuPy raises it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class Runtime:
    """A stand-in for CuPy's runtime module and its driver module."""

    streamNonBlocking = eventDisableTiming = hostAllocPortable = streamCaptureModeRelaxed = 1
    memcpyHostToDevice = memcpyDeviceToHost = memcpyDeviceToDevice = eventDefault = 0

    def __init__(self) -> None:
        self._handles = itertools.count(1)
        self._memory: dict[int, Any] = {}
        self._capturing = 0
        self._word = ctypes.c_uint32(1024)

    def __getattr__(self, name: str) -> Any:
        """Every call that has no effect here; those that make something give a new handle."""
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args: next(self._handles)

    def getDeviceCount(self) -> int:
        return 1

    def driverGetVersion(self) -> int:
        return 12020  # older than the drivers whose launches `early.py` makes past these calls

    def getDeviceProperties(self, index: int) -> dict[str, Any]:
        return {
            "name": b"none", "totalGlobalMem": 1 << 34, "major": 9, "minor": 0, "integrated": 0, "warpSize": 32,
            "maxGridSize": (2**31 - 1, 65535, 65535), "maxThreadsPerBlock": 1024, "sharedMemPerBlock": 49152,
            "sharedMemPerBlockOptin": 232448,
        }  # fmt: skip

    def memGetInfo(self) -> tuple[int, int]:
        return 1 << 34, 1 << 34

    def eventQuery(self, event: int) -> int:
        return 0

    def malloc(self, nbytes: int) -> int:
        made = np.empty(nbytes + 512, np.uint8)  # a workspace of many megabytes takes no time: nobody writes it
        address = made.ctypes.data + -made.ctypes.data % 512  # as the driver's memory lies
        self._memory[address] = made
        return address

    def hostAlloc(self, nbytes: int, flags: int) -> int:
        return self.malloc(nbytes)

    def free(self, address: int) -> None:
        del self._memory[address]

    freeHost = free

    def memsetAsync(self, address: int, byte: int, nbytes: int, stream: int) -> None:
        ctypes.memset(address, byte, nbytes)

    def memcpyAsync(self, target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        if stream != self._capturing:
            ctypes.memmove(target, source, nbytes)

    def memcpy(self, target: int, source: int, nbytes: int, kind: int) -> None:
        ctypes.memmove(target, source, nbytes)

    def moduleGetGlobal(self, module: int, name: str) -> int:
        return ctypes.addressof(self._word)

    def streamBeginCapture(self, stream: int, mode: int) -> None:
        self._capturing = stream

    def streamEndCapture(self, stream: int) -> int:
        self._capturing = 0
        return next(self._handles)

    def eventElapsedTime(self, start: int, end: int) -> float:
        return 0.01


class Library:
    """cuBLAS, cuBLASLt or NVRTC: every call succeeds, and handles are numbers."""

    def __init__(self, name: str, major: int) -> None:
        self._name = name
        self._handles = itertools.count(1)
        self.nvrtcGetErrorString = lambda status: b"an error"

    def __getitem__(self, name: str) -> Any:
        """The address of a function: none, so that the library lies in no file."""
        return ctypes.CFUNCTYPE(None)()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*args: Any) -> int:
            if "Create" in name:
                args[0]._obj.value = next(self._handles)
            elif name in ("nvrtcGetNumSupportedArchs", "nvrtcGetCUBINSize"):
                args[-1]._obj.value = 1
            elif name == "nvrtcGetSupportedArchs":
                args[0][0] = 90
            elif name == "cublasLtMatmulAlgoGetHeuristic":
                args[-1]._obj.value = 1
            return 0

        setattr(self, name, call)
        return call
