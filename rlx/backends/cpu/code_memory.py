"""Executable memory that is never writable at the same time.

Code is written to a file in memory, which is sealed and then mapped to be read and executed. Where the system has no
such files, it is written to ordinary memory, whose protection is then changed.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.errors import UnsupportedOp

_SEAL_ALL = 0x1 | 0x2 | 0x4 | 0x8  # further seals, shrinking, growing, writing
_ADD_SEALS = 1033
_kept: list[Any] = []


def never_freed(held: list[Any]) -> None:
    """Keeps what the list holds until the process ends. Workers may still execute it while the interpreter shuts down
    and clears its modules."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))


never_freed(_kept)


def map_code(images: Sequence[bytes]) -> list[int]:
    """The address of each image, which is the start of a page. Raises: UnsupportedOp where the system refuses."""
    page = mmap.PAGESIZE
    places, code = [], bytearray()
    for image in images:
        places.append(len(code))
        code += image + bytes(-len(image) % page)
    try:
        start = _sealed(bytes(code))
    except (OSError, AttributeError):
        try:
            start = _protected(bytes(code))
        except OSError as error:
            raise UnsupportedOp(f"the system refuses executable memory: {error}") from error
    return [start + place for place in places]


def _sealed(code: bytes) -> int:
    file = os.memfd_create("rlx-kernels", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        done = 0
        while done < len(code):
            done += os.write(file, code[done:])
        fcntl.fcntl(file, _ADD_SEALS, _SEAL_ALL)
        # MAP_PRIVATE: older systems refuse a shared mapping of a file that is sealed against writing.
        held = mmap.mmap(file, len(code), flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
    finally:
        os.close(file)
    view = np.frombuffer(held, np.uint8)
    _kept.append((held, view))
    return int(view.ctypes.data)


def _protected(code: bytes) -> int:
    held = mmap.mmap(-1, len(code), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    held[:] = code
    view = np.frombuffer(held, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(len(code)), mmap.PROT_READ | mmap.PROT_EXEC
    if libc.mprotect(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    _kept.append((held, view))
    return int(view.ctypes.data)
