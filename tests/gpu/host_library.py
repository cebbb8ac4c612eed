"""Libraries made by the host's C++ compiler and kept between runs, by everything that they are made from."""

from __future__ import annotations

import atexit
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
_LANGUAGE = ("-std=c++17", "-ffp-contract=off", "-fPIC", "-w")
_OPTIONS = (*_LANGUAGE, "-shared", "-x", "c++", "-")


def compiler() -> str | None:
    return shutil.which("g++") or shutil.which("clang++")


@cache
def _identity(*options: str) -> str:
    """The compiler's version and the processor that `options` compile for, as the compiler reports them."""
    command = [str(compiler()), *options, "-dM", "-E", "-x", "c++", os.devnull]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@cache
def _linker() -> tuple[str, ...]:
    """The option for gold where that linker is installed: the usual one takes a fifth of a small kernel's time."""
    return ("-fuse-ld=gold",) if shutil.which("ld.gold") else ()


@cache
def _read_before(headers: tuple[str, ...], options: tuple[str, ...]) -> Path:
    """A folder with a precompiled header of all `headers`, which g++ uses for the name of the first."""
    folder = Path(tempfile.mkdtemp(prefix="rlx-host-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    command = [str(compiler()), *options, *(f"-I{place}" for place in (HERE, *HEADER_FOLDERS)), *_LANGUAGE]
    every = folder / "every.h"
    every.write_text("".join(f'#include "{name}"\n' for name in headers))
    subprocess.run([*command, "-x", "c++-header", every, "-o", folder / f"{headers[0]}.gch"], check=True)
    return folder


def library(
    text: str,
    options: tuple[str, ...],
    folders: tuple[Path, ...] = HEADER_FOLDERS,
    mode: int = ctypes.DEFAULT_MODE,
    common: tuple[str, ...] = (),
) -> ctypes.CDLL:
    """The library of a C++ text, whose headers are looked up beside this module and in `folders`; loaded by `mode`.

    A text that begins with `#include` of the first of the headers `common` takes all of them, read once for many texts.
    """
    places = (HERE, *folders)
    headers = [part for header in headers_of(text, places) for part in header]
    key = (text, *headers, *options, *_OPTIONS, _identity(*(o for o in options if o.startswith("-m"))))
    made = kept("host-library").get(key)
    with tempfile.TemporaryDirectory(prefix="rlx-host-") as folder:
        path = Path(folder) / "library.so"
        if made is None:
            once = [_read_before(common, options)] if common else []
            command = [
                str(compiler()),
                *options,
                *_linker(),
                *(f"-I{place}" for place in (*once, *places)),
                *_OPTIONS,
                "-o",
                str(path),
            ]
            subprocess.run(command, input=text.encode(), check=True)
            kept("host-library").put(key, path.read_bytes())
        else:
            path.write_bytes(made)
        return ctypes.CDLL(str(path), mode)  # stays loaded when its file is removed
