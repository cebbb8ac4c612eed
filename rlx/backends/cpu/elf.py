"""LLVM's object files made into position-independent images: sections laid out, references among them resolved."""

from __future__ import annotations

import struct

from rlx.errors import UnsupportedOp
from rlx.records import Record

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELA = struct.Struct("<QQq")
_PROGBITS, _SYMTAB, _RELATIONS, _NOBITS = 1, 2, 4, 8
_ALLOC, _EXEC = 2, 4
_X86, _ARM = 62, 183
_PC32 = (2, 4)  # R_X86_64_PC32, R_X86_64_PLT32
_ARM_PAGE, _ARM_ADD, _ARM_CALLS = 275, 277, (282, 283)
_ARM_LOADS = {278: 0, 284: 1, 285: 2, 286: 3, 299: 4}  # relocation type of low address bits → log2 of the load's size


class _Section(Record):
    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


def link(obj: bytes, symbol: str) -> bytes:
    """The image of an object file: code first, then constants; `symbol` is at its start.

    It is position-independent, but must start at the start of a page. Raises: UnsupportedOp for an object that needs
    more than references between its own code and constants."""
    head = _HEADER.unpack_from(obj)
    if head[0][:6] != b"\x7fELF\x02\x01" or head[2] not in (_X86, _ARM):
        raise UnsupportedOp("the compiler's object file is of another format than ELF for x86-64 or AArch64")
    sections = [_Section(*_SECTION.unpack_from(obj, head[6] + i * head[11])) for i in range(head[12])]
    symbols = _symbols(obj, sections)
    first = next(s for n, s in symbols if n == symbol)[0]
    wanted = [
        i for i, s in enumerate(sections) if s.type in (_PROGBITS, _NOBITS) and s.flags & _ALLOC and s.size
    ]
    names = sections[head[13]]
    wanted = [i for i in wanted if not _text(obj, names.offset + sections[i].name).startswith(".eh_frame")]
    wanted.sort(key=lambda i: (i != first, not sections[i].flags & _EXEC))
    places: dict[int, int] = {}
    image = bytearray()
    for i in wanted:
        s = sections[i]
        if s.type != _PROGBITS:
            raise UnsupportedOp("a kernel has static data that is written")
        image += b"\0" * (-len(image) % max(16, s.align))
        places[i] = len(image)
        image += obj[s.offset : s.offset + s.size]
    if next(s for n, s in symbols if n == symbol)[1] != 0:
        raise UnsupportedOp(f"the function {symbol} is not the first of its module")
    for s in sections:
        if s.type == _RELATIONS and s.info in places:
            for at, info, addend in _RELA.iter_unpack(obj[s.offset : s.offset + s.size]):
                name, (section, value) = symbols[info >> 32]
                if section not in places:
                    raise UnsupportedOp(f"a kernel refers to {name or 'a symbol'} outside of it")
                target = places[section] + value + addend
                _resolve(image, head[2], info & 0xFFFFFFFF, places[s.info] + at, target)
    return bytes(image)


def _symbols(obj: bytes, sections: list[_Section]) -> list[tuple[str, tuple[int, int]]]:
    """Name, and (section, offset), of each symbol."""
    table = next(s for s in sections if s.type == _SYMTAB)
    strings = sections[table.link].offset
    result = []
    for name, _, _, section, value, _ in _SYMBOL.iter_unpack(obj[table.offset : table.offset + table.size]):
        result.append((_text(obj, strings + name), (section, value)))
    return result


def _text(obj: bytes, at: int) -> str:
    return obj[at : obj.index(b"\0", at)].decode()


def _resolve(image: bytearray, arch: int, kind: int, at: int, target: int) -> None:
    """Writes one reference, from offset `at` to offset `target` of the image."""
    if arch == _X86:
        if kind not in _PC32:
            raise UnsupportedOp(
                f"a kernel has a reference of type {kind}, which depends on where it is placed"
            )
        struct.pack_into("<i", image, at, target - at)
        return
    (word,) = struct.unpack_from("<I", image, at)
    if kind == _ARM_PAGE:
        pages = (target >> 12) - (at >> 12)
        word = word & 0x9F00001F | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
    elif kind == _ARM_ADD:
        word = word & 0xFFC003FF | (target & 0xFFF) << 10
    elif kind in _ARM_LOADS:
        word = word & 0xFFC003FF | (target & 0xFFF) >> _ARM_LOADS[kind] << 10
    elif kind in _ARM_CALLS:
        word = word & 0xFC000000 | (target - at >> 2) & 0x3FFFFFF
    else:
        raise UnsupportedOp(f"a kernel has a reference of type {kind}, which depends on where it is placed")
    struct.pack_into("<I", image, at, word)
