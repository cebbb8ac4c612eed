"""CuPy's low-level runtime and driver calls, loaded on first use, and rlx's typed errors for theirs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from rlx.errors import DeviceLost, DeviceUnavailable, OutOfDeviceMemory, RlxError

MIN_CUDA = 12000
_OUT_OF_MEMORY = 2
_INSUFFICIENT_DRIVER = 35
_NO_DEVICE = 100
# Errors after which the context is dead and every further call in the process fails (CUDA runtime API, error table).
_FATAL = {46, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999}
_EXTRA = "pip install 'rlx[cuda13x]' (driver 580 or newer) or 'rlx[cuda12x]' (driver 525 or newer)"


@dataclass(frozen=True)
class Api:
    """CuPy's raw calls: its modules `runtime` and `driver` take integers, and are the same in CuPy 13 and 14."""

    runtime: Any
    driver: Any
    errors: tuple[type[Exception], ...]
    major: int  # the major version of CUDA that CuPy was built for: 12 or 13
    pid: int  # the process that loaded it; CUDA does not survive a fork


_loaded: Api | None = None


def load() -> Api:
    """CuPy's calls. Raises: DeviceUnavailable with the reason when CuPy is missing or CUDA was used before a fork."""
    global _loaded
    if _loaded is None:
        _loaded = _load()
    check_process(_loaded.pid, "cuda")
    return _loaded


def check_process(pid: int, device: str) -> None:
    """Raises: DeviceUnavailable in a forked child of the process that opened the device."""
    if os.getpid() != pid:
        raise DeviceUnavailable(
            f"{device} was opened by the process that this one was forked from, and CUDA does not work across a fork; "
            "start workers with multiprocessing's 'spawn' method and open the device in the worker"
        )


def _load() -> Api:
    try:
        import cupy
        from cupy_backends.cuda.api import driver, runtime
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "cupy":
            raise DeviceUnavailable(f"CUDA: CuPy is not installed; {_EXTRA}") from error
        raise DeviceUnavailable(f"CUDA: CuPy cannot be loaded ({_first_line(error)}); {_EXTRA}") from error
    if runtime.is_hip:
        raise DeviceUnavailable("CUDA: this CuPy is built for ROCm; use the Vulkan backend on AMD devices")
    version = runtime.runtimeGetVersion()
    if version < MIN_CUDA:
        raise DeviceUnavailable(
            f"CUDA: CuPy {cupy.__version__} is built for CUDA {version_text(version)}; rlx needs 12 or 13: {_EXTRA}"
        )
    errors = (runtime.CUDARuntimeError, driver.CUDADriverError)
    return Api(runtime, driver, errors, version // 1000, os.getpid())


def device_count(api: Api) -> int:
    """The number of devices. Raises: DeviceUnavailable with the reason when the driver cannot be used or has none."""
    try:
        count = int(api.runtime.getDeviceCount())
    except api.errors as error:
        status = status_of(error)
        if status == _NO_DEVICE:
            raise DeviceUnavailable("CUDA: the driver finds no NVIDIA device") from error
        if status == _INSUFFICIENT_DRIVER:
            raise DeviceUnavailable(_driver_reason(api)) from error
        raise DeviceUnavailable(f"CUDA: the driver cannot be used: {_first_line(error)}") from error
    if count == 0:
        raise DeviceUnavailable("CUDA: the driver finds no NVIDIA device")
    return count


def _driver_reason(api: Api) -> str:
    has = int(api.runtime.driverGetVersion())
    if has == 0:
        return "CUDA: no NVIDIA driver is installed (its library, libcuda.so.1 or nvcuda.dll, does not load)"
    return (
        f"CUDA: the driver supports CUDA up to {version_text(has)}, this CuPy needs "
        f"{version_text(int(api.runtime.runtimeGetVersion()))}; update the driver, or {_EXTRA}"
    )


def version_text(version: int) -> str:
    """ "13.2" for 13020."""
    return f"{version // 1000}.{version % 1000 // 10}"


def status_of(error: BaseException) -> int:
    """The CUDA error code that CuPy's exception carries."""
    return int(getattr(error, "status", -1))


def is_fatal(error: BaseException) -> bool:
    """Whether the error is one after which no call of this process can use the device."""
    return status_of(error) in _FATAL


def translate(error: BaseException, device: str, doing: str) -> RlxError:
    """The typed error for one that CuPy raised while `doing` something on `device`."""
    said = _first_line(error)
    if status_of(error) == _OUT_OF_MEMORY:
        return OutOfDeviceMemory(f"{device}: out of memory while {doing}: {said}")
    if is_fatal(error):
        return DeviceLost(
            f"{device}: the device failed while {doing}: {said}; every session on it in this process is dead: "
            "start a new process"
        )
    return RlxError(f"{device}: {doing} failed: {said}")


def _first_line(error: BaseException) -> str:
    """The first line of an error's message; some of CuPy's are a page framed by lines of "="."""
    lines = [line.strip() for line in str(error.__cause__ or error).splitlines() if line.strip(" =")]
    return lines[0] if lines else type(error).__name__
