"""Thawed: a program of the engine that `frozen.py` has written, in one block of memory, without a graph or llvmlite."""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.backends.cpu.code_memory import map_code
from rlx.backends.cpu.device import CpuDevice
from rlx.backends.cpu.forms import give_back
from rlx.backends.cpu.job import ROW_WORDS
from rlx.backends.cpu.segment import Segment
from rlx.driver.device import Bytes, address
from rlx.dtypes import as_dtype
from rlx.host.digest import sha256

Array = npt.NDArray[Any]
_WORD = 8
_PLACED: dict[bytes, int] = {}  # the address of machine code, by its digest


class Thawed:
    """A program, which runs on NumPy arrays of its inputs' types. One thread runs it at a time.

    `data` is what `freeze` returned: trusted as machine code is. `weights` are its weights by name, each once.
    Raises: OutOfDeviceMemory, UnsupportedOp where the system refuses executable memory."""

    def __init__(self, data: bytes, device: CpuDevice, threads: int, weights: Iterable[tuple[str, Bytes]]) -> None:
        said: dict[str, Any] = marshal.loads(data)
        self._buffer = device.acquire(said["nbytes"])
        self._segments: list[Segment] = []
        try:
            memory = self._buffer.memory()
            code = _placed(said["code"])
            lead, work = (code + place for place in said["runner"])
            initial = np.frombuffer(said["data"], np.int64)
            words = memory[: initial.nbytes].view(np.int64)
            words[...] = initial
            words[np.frombuffer(said["addresses"], np.int64)] += address(memory)
            words[np.frombuffer(said["calls"], np.int64)] += code
            for place, count in said["tables"]:
                segment = Segment()
                at = place // _WORD
                segment.run_table(words[at : at + ROW_WORDS * count].reshape(count, ROW_WORDS), lead, work, threads)
                self._segments.append(segment)
            for name, raw in weights:
                place, nbytes, _ = said["weights"][name]
                memory[place : place + nbytes] = raw
            *packing, self._main = self._segments
            for pack in packing:
                pack()
            for place, nbytes, read in said["weights"].values():
                if packing and not read:
                    give_back(memory[place : place + nbytes])
            self.inputs = {port[0]: _array(memory, *port[1:]) for port in said["inputs"]}
            self.outputs = {port[0]: _array(memory, *port[1:]) for port in said["outputs"]}
        except BaseException:
            self.close()
            raise
        self.nbytes: int = said["nbytes"]

    def takes(self, arrays: Sequence[Any]) -> bool:
        """Whether these are NumPy arrays of exactly the inputs' types, in their order."""
        return all(
            type(x) is np.ndarray and x.dtype == own.dtype and x.shape == own.shape
            for x, own in zip(arrays, self.inputs.values(), strict=True)
        )

    def run(self, arrays: Sequence[Array]) -> dict[str, Array]:
        """New arrays of the outputs, by name. Requires: the program `takes` these."""
        for own, x in zip(self.inputs.values(), arrays, strict=True):
            own[...] = x
        self._main()
        return {name: own.copy() for name, own in self.outputs.items()}

    def close(self) -> None:
        """Frees the memory. Idempotent."""
        for segment in self._segments:
            segment.end()
        self._segments = []
        self._buffer.close()


def _placed(code: bytes) -> int:
    """The address of machine code, which stays until the process ends; programs with the same code share it."""
    digest = sha256(code).digest()
    if digest not in _PLACED:
        (_PLACED[digest],) = map_code([code])
    return _PLACED[digest]


def _array(memory: Bytes, dtype: str, shape: tuple[int, ...], place: int) -> Array:
    kind = as_dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    return memory[place : place + count * kind.np.itemsize].view(kind.np).reshape(shape)
