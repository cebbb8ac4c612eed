"""The SPIR-V modules that come with rlx: loose files in a source tree, one archive in a wheel.

`tools/build_hook.py` packs the archive when a wheel is built, and loads this file without the package: it imports the
standard library alone. The archive is `_MAGIC`, the length of its table as u32, the table as JSON (name: [first byte,
bytes], counted from behind the table), then the modules, each compressed by zlib on its own after the four bytes of its
words were put into separate planes, which makes it an eighth smaller.
"""

from __future__ import annotations

import json
import zlib
from functools import cache
from pathlib import Path

VULKAN = Path(__file__).parents[1] / "vulkan"
ARCHIVE = "spirv.pack"
_MAGIC = b"rlx SPIR-V 1\n"


def pack(folder: Path) -> bytes:
    """The archive of a folder's modules, `<name>.spv`; equal modules are stored once."""
    table: dict[str, list[int]] = {}
    parts: dict[bytes, list[int]] = {}
    at = 0
    for file in sorted(folder.glob("*.spv")):
        code = file.read_bytes()
        part = zlib.compress(b"".join(code[byte::4] for byte in range(4)), 9)
        if part not in parts:
            parts[part] = [at, len(part)]
            at += len(part)
        table[file.stem] = parts[part]
    text = json.dumps(table, separators=(",", ":")).encode()
    return b"".join((_MAGIC, len(text).to_bytes(4, "little"), text, *parts))


class Modules:
    """The modules of `folder`: from its archive if there is one, else from the files in its subfolder `spirv`."""

    def __init__(self, folder: Path) -> None:
        self._loose, self._archive = folder / "spirv", folder / ARCHIVE
        self._packed, self._start, self._table = self._archive.is_file(), 0, dict[str, list[int]]()
        if self._packed:
            with self._archive.open("rb") as file:
                head = file.read(len(_MAGIC) + 4)
                size = int.from_bytes(head[len(_MAGIC) :], "little")
                text = file.read(size)
            if not head.startswith(_MAGIC) or len(text) != size:
                raise self._damaged("its table ends early or is none")
            self._start, self._table = len(head) + size, json.loads(text)

    def __contains__(self, name: str) -> bool:
        return name in self._table if self._packed else (self._loose / f"{name}.spv").is_file()

    def read(self, name: str) -> bytes:
        """The module's bytes. Raises: UnsupportedOp where there is none, or where the archive is damaged."""
        if name not in self:
            raise _unsupported(
                f"kernel {name!r} has no SPIR-V in this installation; from a source tree, `make shaders` compiles it"
            )
        if not self._packed:
            return (self._loose / f"{name}.spv").read_bytes()
        first, size = self._table[name]
        with self._archive.open("rb", buffering=0) as file:
            file.seek(self._start + first)
            part = file.read(size)
        try:
            apart = zlib.decompress(part)
        except zlib.error as error:
            raise self._damaged(f"module {name!r}: {error}") from None
        code, words = bytearray(len(apart)), len(apart) // 4
        for byte in range(4):
            code[byte::4] = apart[byte * words : (byte + 1) * words]
        return bytes(code)

    def _damaged(self, what: str) -> Exception:
        return _unsupported(f"{self._archive} is damaged, {what}; install rlx anew")


def _unsupported(message: str) -> Exception:
    from rlx.errors import UnsupportedOp  # here, since the hook loads this file without the package

    return UnsupportedOp(message)


@cache
def modules() -> Modules:
    """The SPIR-V modules of this installation."""
    return Modules(VULKAN)
