"""Finds NVIDIA's libraries and headers: pip wheels, CUDA_PATH, conda, the loader's own paths, /usr/local/cuda."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from rlx.errors import DeviceUnavailable

# Folders of CUDA 12's wheels under site-packages/nvidia/; those of CUDA 13 share the folder cu13.
_WHEELS = {"nvrtc": "cuda_nvrtc", "cublas": "cublas", "cublasLt": "cublas"}
_CUDART_VERSION = re.compile(rb"#define\s+CUDART_VERSION\s+(\d+)")


def _wheel_roots() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    places = spec.submodule_search_locations if spec is not None else None
    return [Path(p) for p in places or ()]


def _toolkit_roots() -> Iterator[Path]:
    """Folders of installed toolkits: those that the user names first, then the Python environment's own (conda)."""
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        if os.environ.get(variable):
            yield Path(os.environ[variable])
    yield Path(sys.prefix)
    for targets in ("x86_64-linux", "sbsa-linux"):
        yield Path(sys.prefix) / "targets" / targets


def _file_name(name: str, major: int) -> str:
    if sys.platform == "win32":
        return f"{name}64_{major}0_0.dll" if name == "nvrtc" else f"{name}64_{major}.dll"
    return f"lib{name}.so.{major}"


def _candidates(name: str, major: int) -> Iterator[Path]:
    soname = _file_name(name, major)
    folders = ("bin", "bin/x86_64", "bin/x64") if sys.platform == "win32" else ("lib64", "lib")
    for root in _wheel_roots():
        for folder in folders:
            yield root / f"cu{major}" / folder / soname
            yield root / _WHEELS[name] / folder / soname
    for root in _toolkit_roots():
        for folder in folders:
            yield root / folder / soname
    yield Path(soname)  # the loader's search also finds a library that another package has loaded
    for system in (f"/usr/local/cuda-{major}", "/usr/local/cuda"):
        yield Path(system) / "lib64" / soname


@cache
def load_library(name: str, major: int) -> ctypes.CDLL:
    """The library lib<name>.so.<major>, on Windows <name>64_<major>.dll; `name` is "nvrtc", "cublas" or "cublasLt".

    Raises: DeviceUnavailable saying what to install.
    """
    failed: list[str] = []
    for path in _candidates(name, major):
        if path.is_absolute() and not path.is_file():
            continue
        try:
            return ctypes.CDLL(str(path))
        except OSError as error:
            failed.append(str(error))
    raise DeviceUnavailable(
        f"CUDA: {_file_name(name, major)} cannot be loaded ({'; '.join(failed)}); pip install 'rlx[cuda{major}x]', "
        "or set CUDA_PATH to an installed toolkit"
    )


class _Symbol(ctypes.Structure):
    """Dl_info of the system's dlfcn.h: the file and the symbol that an address comes from."""

    _fields_ = tuple(zip(("file", "base", "name", "at"), (ctypes.c_char_p, ctypes.c_void_p) * 2, strict=True))


def library_path(lib: ctypes.CDLL, function: str) -> str:
    """The file that a library with that function was loaded from, also where it was found under its bare name."""
    symbol = _Symbol()
    if sys.platform != "win32" and hasattr(own := ctypes.CDLL(None), "dladdr"):
        own.dladdr(ctypes.cast(lib[function], ctypes.c_void_p), ctypes.byref(symbol))
    return os.fsdecode(symbol.file) if symbol.file else lib._name


@cache
def include_folder(major: int) -> Path | None:
    """The folder of CUDA headers (cuda_fp16.h, …) of a toolkit of version `major`, or None where there is none."""
    places = [root / f"cu{major}" / "include" for root in _wheel_roots()]
    places += [root / "cuda_runtime" / "include" for root in _wheel_roots()]
    places += [root / "include" for root in _toolkit_roots()]
    places += [Path(f"/usr/local/cuda-{major}/include"), Path("/usr/local/cuda/include")]
    for place in places:
        if (place / "cuda_fp16.h").is_file() and toolkit_version(place) // 1000 == major:
            return place
    return None


@cache
def toolkit_version(include: Path) -> int:
    """The toolkit's version by its headers, such as 13000 for 13.0; 0 where they do not state it."""
    try:
        text = (include / "cuda_runtime_api.h").read_bytes()
    except OSError:
        return 0
    match = _CUDART_VERSION.search(text)
    return int(match[1]) if match else 0
