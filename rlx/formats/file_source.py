"""Reading parts of a model's open file. If the file is truncated meanwhile, a read is an error; a mapped file would end
the process."""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from rlx.errors import ModelFormatError, RlxError
from rlx.formats.files import shown


class FileSource:
    """An open file of `size` bytes, from which several threads may read, until `close` or garbage collection."""

    def __init__(self, file: BinaryIO, path: Path, size: int) -> None:
        self.path, self.size = path, size
        self._handle = os.dup(file.fileno())
        self._lock = threading.Lock()
        self.close = weakref.finalize(self, os.close, self._handle)

    def read_into(self, to: npt.NDArray[np.uint8], offset: int, name: str) -> None:
        """Fills the bytes from the file. Raises: ModelFormatError, RlxError."""
        if not self.close.alive:
            raise RlxError(f"{self.path}: tensor {shown(name)} cannot be read: the file was closed")
        left = to.data
        while left:
            try:
                got = self._read(left, offset)
            except OSError as error:
                raise ModelFormatError(
                    f"{self.path}: tensor {shown(name)} cannot be read: {error.strerror or error}"
                ) from error
            if not got:
                raise ModelFormatError(
                    f"{self.path}: tensor {shown(name)}: the file has been cut short since it was opened: it ends "
                    f"{len(left):,} bytes before the tensor does"
                )
            left, offset = left[got:], offset + got

    def _read(self, to: memoryview, offset: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._handle, [to], offset)
        with self._lock:  # all threads share the file's position on Windows
            os.lseek(self._handle, offset, os.SEEK_SET)
            content = os.read(self._handle, min(len(to), 1 << 24))
            to[: len(content)] = content
            return len(content)
