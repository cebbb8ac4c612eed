"""NVRTC by ctypes: compiles CUDA source to cubin or PTX without a GPU and CuPy, so that tests compile every kernel."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from functools import cache

from rlx.backends.cuda.libraries import include_folder, library_path, load_library
from rlx.backends.cuda.nvrtc_process import COMPILATION, compiled
from rlx.backends.cuda.processes import Processes
from rlx.errors import DeviceUnavailable, OutOfDeviceMemory, RlxError

MAJORS = (13, 12)  # the supported major versions of CUDA, newest first
_SUCCESS, _OUT_OF_MEMORY = 0, 1

# Honest f32 (subnormals kept, IEEE division and square root, no contraction that the source does not ask for).
NUMERIC_OPTIONS = ("--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")
BASE_OPTIONS = ("--std=c++17", *NUMERIC_OPTIONS)


class Nvrtc:
    """The NVRTC library of one major version of CUDA. Any thread may compile."""

    def __init__(self, major: int) -> None:
        self._lib = load_library("nvrtc", major)
        self._lib.nvrtcGetErrorString.restype = ctypes.c_char_p
        first, second = ctypes.c_int(), ctypes.c_int()
        self._check(self._lib.nvrtcVersion(ctypes.byref(first), ctypes.byref(second)), "nvrtcVersion")
        self.version = (first.value, second.value)
        self.include = include_folder(major)
        self._path = library_path(self._lib, "nvrtcVersion")
        self._size = _file_size(self._path)

    @property
    def identity(self) -> str:
        """Identifies the build in cache keys: version and file size, in which builds of one version differ."""
        return f"nvrtc {self.version[0]}.{self.version[1]} {self._size}"

    def archs(self) -> list[int]:
        """The compute capabilities that it compiles for, 90 for 9.0, ascending."""
        count = ctypes.c_int()
        self._check(self._lib.nvrtcGetNumSupportedArchs(ctypes.byref(count)), "nvrtcGetNumSupportedArchs")
        archs = (ctypes.c_int * count.value)()
        self._check(self._lib.nvrtcGetSupportedArchs(archs), "nvrtcGetSupportedArchs")
        return sorted(archs)

    def compile(
        self,
        text: str,
        name: str,
        options: Sequence[str],
        headers: Mapping[str, str],
        arch: str,
        processes: Processes | None = None,
    ) -> bytes:
        """Compiles `text` to a cubin for an `arch` such as "sm_90", to PTX for one such as "compute_90".

        `headers` are texts by the name they are included under; `name` is the file name in messages. One of the
        `processes` compiles, or this process where none can.
        Raises: RlxError with the compiler's log, which gives file and line.
        """
        flags = [*options, f"--gpu-architecture={arch}"]
        if self.include is not None:
            flags.append(f"--include-path={self.include}")
        kind = "CUBIN" if arch.startswith("sm_") else "PTX"
        request = (text, name, dict(headers), flags, kind)
        answer = None if processes is None else processes.compiled(*request)
        if answer is None or answer[1] not in (_SUCCESS, COMPILATION):  # another process may lack what this one has
            answer = compiled(self._lib, *request)
        call, status, result = answer
        if status == COMPILATION:
            log = result.decode("utf-8", "replace").rstrip("\0\n")
            hint = "" if self.include is not None else "\n(no CUDA headers were found: set CUDA_PATH)"
            raise RlxError(f"NVRTC cannot compile {name} for {arch} with {' '.join(flags)}:\n{log}{hint}")
        self._check(status, call)
        return result

    def processes(self) -> Processes:
        """Processes for `compile`, so that several kernels are compiled at a time."""
        same = _file_size(self._path) == self._size  # an upgrade may replace the file while this process runs
        return Processes(self._path if same else "")

    def _check(self, status: int, call: str) -> None:
        if status != _SUCCESS:
            said = f"{call} failed: {self._lib.nvrtcGetErrorString(status).decode()} ({status})"
            raise OutOfDeviceMemory(said) if status == _OUT_OF_MEMORY else RlxError(said)


def _file_size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:  # the loader found it under its bare name, on a system that does not say where
        return 0


@cache
def nvrtc(major: int) -> Nvrtc:
    """The compiler of that major version of CUDA, loaded once. Raises: DeviceUnavailable where it is not installed."""
    return Nvrtc(major)


def available() -> list[int]:
    """The major versions of CUDA whose compiler is installed here, newest first."""
    result = []
    for major in MAJORS:
        try:
            nvrtc(major)
        except DeviceUnavailable:
            continue
        result.append(major)
    return result


def compile_ptx_only(
    source: str,
    options: Sequence[str] = (),
    arch: str = "compute_90",
    *,
    name: str = "kernel.cu",
    headers: Mapping[str, str] | None = None,
    major: int | None = None,
) -> bytes:
    """Compiles CUDA source without a GPU and without CuPy; `arch` "sm_90" gives a cubin instead of PTX.

    `options` are added to those of every kernel. `major` is the major version of CUDA, by default the newest installed.
    Raises: RlxError with the log; DeviceUnavailable where no compiler is installed.
    """
    if major is None:
        major = next(iter(available()), MAJORS[-1])
    return nvrtc(major).compile(source, name, [*BASE_OPTIONS, *options], headers or {}, arch)
