"""Libraries made by the host's C++ compiler and kept between runs, by everything that they are made from."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from rlx.backends.cuda.sources import HEADER_FOLDERS, headers_of
from tests.kept import kept

HERE = Path(__file__).parent
_OPTIONS = ("-std=c++17", "-ffp-contract=off", "-fPIC", "-w", "-shared", "-x", "c++", "-")


def compiler() -> str | None:
    return shutil.which("g++") or shutil.which("clang++")


@cache
def _identity(*options: str) -> str:
    """What the compiler says of itself and of the processor that `options` compile for."""
    command = [str(compiler()), *options, "-dM", "-E", "-x", "c++", os.devnull]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@cache
def _linker() -> tuple[str, ...]:
    """The option for gold where that linker is installed: the usual one takes a fifth of a small kernel's time."""
    return ("-fuse-ld=gold",) if shutil.which("ld.gold") else ()


def library(
    text: str,
    options: tuple[str, ...],
    folders: tuple[Path, ...] = HEADER_FOLDERS,
    mode: int = ctypes.DEFAULT_MODE,
) -> ctypes.CDLL:
    """The library of a C++ text, whose headers are looked up beside this module and in `folders`; loaded by `mode`."""
    places = (HERE, *folders)
    headers = [part for header in headers_of(text, places) for part in header]
    key = (text, *headers, *options, *_OPTIONS, _identity(*(o for o in options if o.startswith("-m"))))
    made = kept("host-library").get(key)
    with tempfile.TemporaryDirectory(prefix="rlx-host-") as folder:
        path = Path(folder) / "library.so"
        if made is None:
            command = [
                str(compiler()),
                *options,
                *_linker(),
                *(f"-I{place}" for place in places),
                *_OPTIONS,
                "-o",
                str(path),
            ]
            subprocess.run(command, input=text.encode(), check=True)
            kept("host-library").put(key, path.read_bytes())
        else:
            path.write_bytes(made)
        return ctypes.CDLL(str(path), mode)  # stays loaded when its file is removed
