"""Executable memory that is never writable: code is written to a file in memory, which is mapped to be executed."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence

import numpy as np

from rlx.errors import UnsupportedOp

_SEAL_ALL = 0x1 | 0x2 | 0x4 | 0x8  # further seals, shrinking, growing, writing
_ADD_SEALS = 1033
_kept: list[tuple[mmap.mmap, np.ndarray]] = []  # code stays as long as the process


def map_code(images: Sequence[bytes]) -> list[int]:
    """The address of each image. Raises: UnsupportedOp where the system refuses executable memory."""
    page = mmap.PAGESIZE
    places, at = [], 0
    for image in images:
        places.append(at)
        at += -(-len(image) // page) * page
    try:
        file = os.memfd_create("rlx-kernels", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.truncate(file, at)
            for place, image in zip(places, images, strict=True):
                os.pwrite(file, image, place)
            fcntl.fcntl(file, _ADD_SEALS, _SEAL_ALL)
            # MAP_PRIVATE: a shared mapping of a file that is sealed against writing is refused by older systems.
            held = mmap.mmap(file, at, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
        finally:
            os.close(file)
    except (OSError, AttributeError, ValueError) as error:
        raise UnsupportedOp(f"the system refuses executable memory: {error}") from error
    view = np.frombuffer(held, np.uint8)
    _kept.append((held, view))
    return [view.ctypes.data + place for place in places]
