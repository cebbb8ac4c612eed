"""Kernels compiled for AArch64, run by qemu's user-mode emulator. The program is an ELF file of one segment with the
kernels, their arguments and tables, and the arrays, which it writes to its output after the last step."""

from __future__ import annotations

import shutil
import struct
import subprocess
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.backends.cpu.compile import machine_code
from rlx.backends.cpu.machine import Machine
from rlx.backends.cpu.step import EngineStep

Array = npt.NDArray[Any]
MACHINE = Machine("aarch64", frozenset())
_BASE = 0x400000
_PAGE = 4096
_BEHIND = 256  # bytes that kernels may read behind an array


def emulator() -> str | None:
    """The path of qemu's emulator of AArch64 programs, or None."""
    return shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")


def run(steps: Sequence[EngineStep], arrays: Sequence[Array], folder: Path) -> None:
    """Runs the steps in the emulator and copies what they wrote to all arrays that they know."""
    path = emulator()
    assert path is not None
    for prepare in (s.prepare for s in steps if s.prepare is not None):
        prepare()
    memory = _Memory([a for x in (*(s.keep for s in steps), arrays) for a in _arrays(x)])
    image = bytearray(_PAGE)  # the ELF header and the code that calls the kernels
    places: dict[object, int] = {}
    for step in steps:
        if step.spec not in places:
            image += b"\0" * (-len(image) % _PAGE)
            places[step.spec] = _BASE + len(image)
            image += machine_code(step.spec.ir(), MACHINE)
    image += b"\0" * (-len(image) % _PAGE)
    memory.place(_BASE + len(image))
    image += memory.contents()
    rows = []
    for step in steps:
        words = np.array([memory.moved(int(w)) & (1 << 64) - 1 for w in step.words] or [0], np.uint64)
        rows.append((places[step.spec], _BASE + len(image), step.items))
        image += words.tobytes()
    table = _BASE + len(image)
    for row in rows:
        image += struct.pack("<QQQ", *row)
    image[: _PAGE] = _head(len(image), table, len(rows), memory.start, memory.nbytes).ljust(_PAGE, b"\0")
    program = folder / "kernels"
    program.write_bytes(image)
    program.chmod(0o700)
    made = subprocess.run([path, str(program)], capture_output=True, timeout=120)
    assert made.returncode == 0 and len(made.stdout) == memory.nbytes, made
    memory.take(made.stdout)


def _arrays(x: object) -> Iterator[Array]:
    if isinstance(x, np.ndarray):
        yield x
    elif isinstance(x, tuple | list):
        for one in x:
            yield from _arrays(one)


class _Memory:
    """The memory of arrays, in the program at other addresses."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.tables = [a for a in arrays if a.dtype == np.int64 and a.flags.c_contiguous]
        spans = sorted(np.lib.array_utils.byte_bounds(a) for a in arrays if a.size)
        self.spans: list[list[int]] = []
        for low, high in spans:
            if self.spans and low <= self.spans[-1][1]:
                self.spans[-1][1] = max(self.spans[-1][1], high)
            else:
                self.spans.append([low, high])

    def place(self, start: int) -> None:
        self.start, self.at, end = start, [], start
        for low, high in self.spans:
            end += -end % 64
            self.at.append(end)
            end += high - low + _BEHIND
        self.nbytes = end - start

    def moved(self, address: int) -> int:
        """The address in the program for an address in this process; any other number unchanged."""
        i = bisect_right(self.spans, [address, 1 << 64]) - 1
        if i < 0 or address > self.spans[i][1] or address < 1 << 20:
            return address
        return self.at[i] + address - self.spans[i][0]

    def contents(self) -> bytes:
        made = np.zeros(self.nbytes, np.uint8)
        for (low, high), at in zip(self.spans, self.at, strict=True):
            made[at - self.start :][: high - low] = _bytes(low, high - low)
        for table in self.tables:
            low = table.__array_interface__["data"][0]
            numbers = [self.moved(int(n)) for n in table.reshape(-1)]
            made[self.moved(low) - self.start :][: table.nbytes] = np.array(numbers, np.int64).view(np.uint8)
        return made.tobytes()

    def take(self, written: bytes) -> None:
        given = np.frombuffer(written, np.uint8)
        for (low, high), at in zip(self.spans, self.at, strict=True):
            _bytes(low, high - low)[...] = given[at - self.start :][: high - low]


def _bytes(address: int, nbytes: int) -> Array:
    import ctypes

    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


def _head(size: int, table: int, count: int, start: int, nbytes: int) -> bytes:
    """The headers, and code that calls each row's kernel with its words, writes the arrays and exits."""
    code_at = 64 + 56

    def load(register: int, base: int, offset: int) -> int:
        return 0xF9400000 | offset // 8 << 10 | base << 5 | register

    def number(register: int, value: int) -> int:
        return 0xD2800000 | value << 5 | register

    def jump(condition: int, words: int) -> int:
        return 0x54000000 | (words & 0x7FFFF) << 5 | condition

    code = [
        load(9, 19, 0), load(0, 19, 8), number(1, 0), load(2, 19, 16), 0xD63F0000 | 9 << 5,
        0x91000000 | 24 << 10 | 19 << 5 | 19, 0xF1000000 | 1 << 10 | 20 << 5 | 20, jump(1, -7),
        number(0, 1), 0xAA1503E1, 0xAA1603E2, number(8, 64), 0xD4000001,  # write(1, x21, x22)
        0x8B000000 | 0 << 16 | 21 << 5 | 21, 0xEB000000 | 0 << 16 | 22 << 5 | 22, jump(12, -7),
        number(0, 0), number(8, 93), 0xD4000001,
    ]  # fmt: skip
    constants = (table, count, start, nbytes)
    literals = 4 + len(code)  # in words behind the code's start
    literals += literals % 2
    first = [
        0x58000000 | (literals + 2 * i - i) << 5 | register for i, register in enumerate((19, 20, 21, 22))
    ]
    words = struct.pack(f"<{4 + len(code)}I", *first, *code).ljust(4 * literals, b"\0")
    head = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 183, 1, _BASE + code_at, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    segment = struct.pack("<IIQQQQQQ", 1, 7, 0, _BASE, _BASE, size, size, _PAGE)
    return head + segment + words + struct.pack("<4Q", *constants)
