"""Writing GGUF files of version 3, whole or not at all."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rlx.dtypes import DType, as_dtype
from rlx.errors import DTypeError, ModelFormatError
from rlx.formats.files import shown, written_whole
from rlx.formats.gguf.reader import (
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_ALIGNMENT,
    MAX_KEY_BYTES,
    MAX_NAME_BYTES,
    MAX_RANK,
)
from rlx.formats.gguf.types import ARRAY, BOOL, NUMBERS, STRING, TYPE_NUMBERS, type_name
from rlx.host.progress import report
from rlx.packed import PackedArray

_VERSION = 3
_KINDS = {np.dtype(code): number for number, code in NUMBERS.items()}
_RANGES = {kind: np.iinfo(np.dtype(NUMBERS[kind])) for kind in (4, 5, 10, 11)}


class Readable(Protocol):
    """A tensor whose values are read or computed when it is written, such as a GgufTensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> DType: ...
    def read(self) -> npt.NDArray[Any] | PackedArray: ...


def write(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    tensors: Mapping[str, npt.NDArray[Any] | PackedArray | Readable],
    check: Callable[[Path], None] | None = None,
) -> None:
    """Writes a GGUF file: to a temporary file beside it that then takes its place, unless `check` of the temporary file
    raises an error.

    Metadata: bools, texts, numbers, lists of one of these. An int becomes an unsigned 32-bit integer if it fits (in a
    list a signed one), as llama.cpp's keys are, else a 64-bit one; a float becomes a 32-bit float. NumPy scalars and
    arrays keep their type. Tensors: arrays, packed arrays, or objects with `shape`, `dtype` and `read()`, which is
    called when the tensor is written.
    Raises: ModelFormatError for a name or a value that the format cannot hold, DTypeError for a dtype it lacks,
    OSError.
    """
    path = Path(path)
    entry = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if isinstance(entry, bool) or not isinstance(entry, int | np.integer) or not 0 < entry <= MAX_ALIGNMENT:
        raise ModelFormatError(f"{path}: general.alignment is {shown(entry)}; expected a power of two")
    alignment = int(entry)
    if alignment & (alignment - 1):
        raise ModelFormatError(f"{path}: general.alignment is {alignment}; expected a power of two")
    head = [MAGIC, struct.pack("<IQQ", _VERSION, len(tensors), len(metadata))]
    for key, value in metadata.items():
        if not isinstance(key, str) or not 0 < len(key.encode(errors="replace")) <= MAX_KEY_BYTES:
            raise ModelFormatError(f"{path}: a key cannot be {shown(key)}")
        kind, content = _value(value, f"{path}: {shown(key)}")
        head += [_text(key, path), struct.pack("<I", kind), content]
    sizes, offset = [], 0
    for name, tensor in tensors.items():
        if not isinstance(name, str) or len(name.encode(errors="replace")) > MAX_NAME_BYTES:
            raise ModelFormatError(f"{path}: a tensor cannot be named {shown(name)}")
        dtype = tensor.dtype if isinstance(tensor.dtype, DType) else as_dtype(tensor.dtype)
        if dtype not in TYPE_NUMBERS:
            known = ", ".join(map(type_name, TYPE_NUMBERS))
            raise DTypeError(f"{path}: tensor {shown(name)} is {dtype}; GGUF's types are {known}")
        shape = tuple(tensor.shape)
        if len(shape) > MAX_RANK:
            raise ModelFormatError(f"{path}: tensor {shown(name)} has {len(shape)} axes; GGUF has {MAX_RANK}")
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        head += [_text(name, path), dims, struct.pack("<IQ", TYPE_NUMBERS[dtype], offset)]
        sizes.append(dtype.nbytes(shape))
        offset += -(-sizes[-1] // alignment) * alignment
    start = b"".join(head)
    with written_whole(path) as file:
        file.write(start + bytes(-len(start) % alignment))
        for i, (name, tensor) in enumerate(tensors.items()):
            report("writing", i, len(sizes))
            values = _content(tensor)
            if values.nbytes != sizes[i]:
                raise ModelFormatError(
                    f"{path}: tensor {shown(name)} gave {values.nbytes:,} bytes, not {sizes[i]:,}"
                )
            file.write(values.data)
            file.write(bytes(-sizes[i] % alignment))
        if check is not None:
            file.flush()
            check(Path(file.name))


def _content(tensor: npt.NDArray[Any] | PackedArray | Readable) -> npt.NDArray[np.uint8]:
    values = tensor if isinstance(tensor, np.ndarray | PackedArray) else tensor.read()
    if isinstance(values, PackedArray):
        return values.to_gguf().reshape(-1)
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)


def _text(text: str, where: object) -> bytes:
    try:
        content = text.encode()
    except UnicodeEncodeError:
        raise ModelFormatError(f"{where}: {shown(text)} holds a lone surrogate, which no UTF-8 can") from None
    return len(content).to_bytes(8, "little") + content


def _value(value: Any, where: str) -> tuple[int, bytes]:
    """The type of a value and its bytes."""
    if isinstance(value, bool | np.bool_):
        return BOOL, bytes([bool(value)])
    if isinstance(value, str):
        return STRING, _text(value, where)
    if isinstance(value, list | tuple | np.ndarray):
        kind, content = _elements(value, where)
        return ARRAY, struct.pack("<IQ", kind, len(value)) + content
    if isinstance(value, np.generic) and value.dtype in _KINDS:
        return _KINDS[value.dtype], value.tobytes()
    if isinstance(value, int):
        kind = _integer_kind(value, value, (4, 5, 10, 11), where)
        return kind, struct.pack("<" + NUMBERS[kind], value)
    if isinstance(value, float):
        return 6, np.float32(value).tobytes()
    raise ModelFormatError(f"{where} is {shown(value)}; expected a bool, a number, a text or a list of these")


def _elements(value: Any, where: str) -> tuple[int, bytes]:
    """The type of a list's elements and their bytes."""
    if isinstance(value, np.ndarray):
        if value.ndim == 1 and value.dtype in _KINDS:
            return _KINDS[value.dtype], value.tobytes()
        value = value.tolist()
    kinds = {type(v) for v in value}
    if kinds <= {bool} and value:
        return BOOL, bytes(value)
    if kinds <= {int}:
        kind = _integer_kind(min(value, default=0), max(value, default=0), (5, 11, 10), where)
        return kind, struct.pack(f"<{len(value)}{NUMBERS[kind]}", *value)
    if kinds <= {int, float}:
        return 6, np.asarray(value, np.float32).tobytes()
    if kinds == {str}:
        return STRING, b"".join(_text(v, where) for v in value)
    if kinds <= {list, tuple}:
        parts = [_value(v, where)[1] for v in value]
        return ARRAY, b"".join(parts)
    names = ", ".join(sorted(k.__name__ for k in kinds))
    raise ModelFormatError(
        f"{where} is a list of {names}; expected bools, numbers, texts or lists, of one kind"
    )


def _integer_kind(low: int, high: int, kinds: tuple[int, ...], where: str) -> int:
    for kind in kinds:
        if _RANGES[kind].min <= low and high <= _RANGES[kind].max:
            return kind
    raise ModelFormatError(f"{where} holds {shown(low if low < 0 else high)}; GGUF's integers have 64 bits")
