"""Launches that may begin while the kernel before them still runs (programmatic dependent launch, CUDA C++ Programming
Guide): its blocks become resident and wait there, so that a step costs a microsecond less.

Such a kernel waits at BEGIN (bodies/begin.h) until all earlier launches have ended. Before that it writes nothing and
reads only its arguments, since earlier kernels may still read or write the memory that these point to. A value that is
used only to choose what to prefetch may be stale: PEEK reads it, bypassing the cache that could keep the stale value.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from rlx.backends.cuda.start import driver_library
from rlx.errors import DeviceUnavailable

MIN_CAPABILITY = 90
MIN_DRIVER = (12, 3)  # the first driver whose graphs preserve such launches
_STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute, whose value is a union of 64 bytes."""

    _fields_ = (("id", ctypes.c_uint64), ("value", ctypes.c_int32 * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint32),
    )


@cache
def _launch_ex() -> Any:
    """cuLaunchKernelEx of the driver, which returns its status."""
    try:
        call = driver_library().cuLaunchKernelEx
    except (OSError, AttributeError) as error:
        raise DeviceUnavailable(f"CUDA: the driver has no cuLaunchKernelEx ({error}); update it") from error
    call.argtypes = (ctypes.POINTER(_Config), ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    return call


def may_begin_early(capability: int, driver: str) -> bool:
    """Whether a device supports such launches, by its compute capability and its driver's version, such as "CUDA
    13.0"."""
    return capability >= MIN_CAPABILITY and tuple(map(int, driver.split()[-1].split("."))) >= MIN_DRIVER


def launch_early(
    function: int,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared_bytes: int,
    stream: int,
    arguments: int,
) -> int:
    """Launches a kernel of rlx after another of rlx on the same stream. Returns: CUDA's status, 0 for success."""
    attribute = _Attribute(_STREAM_SERIALIZATION)
    attribute.value[0] = 1
    config = _Config(
        (ctypes.c_uint32 * 3)(*grid), (ctypes.c_uint32 * 3)(*block), shared_bytes, stream, ctypes.pointer(attribute), 1
    )  # fmt: skip
    return int(_launch_ex()(ctypes.byref(config), function, arguments, None))
