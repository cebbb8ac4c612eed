"""A model's declarations of inputs and outputs, and checks of values against them: tensors, lists of them, None."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from rlx.errors import DTypeError, ModelFormatError, ModelWarning, ShapeError
from rlx.formats.files import shown
from rlx.onnx.reader.elements import NAMES, STRING, Array, ElementType, key_name
from rlx.onnx.reader.held import Held, held
from rlx.onnx.reader.schemas import declared_type
from rlx.onnx.reader.string_table import as_array, check_strings
from rlx.onnx.ready import DEPARTED
from rlx.records import Record

Dim = int | str | None
Around = Literal["seq", "optional"]
MAX_ITEMS = 1 << 14  # items of a sequence: each is a tensor of the graph
MAX_NESTING = 8


class TensorInfo(Record):
    """An input or output: its name, element type and dims, each an int, a symbol, or None where it is unknown.

    `shape` is None when the model declares none; `type` is the whole type as ONNX writes it. `around` lists the
    containers around the tensor, the outermost first: ("seq",) takes and gives a list of arrays, ("optional",) an array
    or None. With `keys` it is a dict instead of an array, which only outputs can be.
    """

    name: str
    dtype: ElementType | None
    shape: tuple[Dim, ...] | None
    around: tuple[Around, ...] = ()
    keys: str = ""

    @property
    def type(self) -> str:
        text = NAMES[self.dtype] if self.dtype is not None else "tensor"
        text = f"map({self.keys},{text})" if self.keys else text
        for word in reversed(self.around):
            text = f"{word}({text})"
        return text

    @property
    def typed_shape(self) -> str:
        """The type with its dims, "?" where one is unknown: f32 (N, ?, 3)."""
        dims = "" if self.shape is None else f" ({', '.join('?' if d is None else str(d) for d in self.shape)})"
        return f"{self.type}{dims}"


def info_of(info: Any, fed: bool = False) -> TensorInfo:
    """The declaration in a ValueInfoProto; `fed` means an input. Raises: ModelFormatError, UnsupportedOp."""
    proto, around = info.type, []
    while (kind := proto.WhichOneof("value")) in ("sequence_type", "optional_type"):
        around.append(kind)
        proto = getattr(proto, kind).elem_type
        if len(around) > MAX_NESTING:
            raise ModelFormatError(f"{shown(info.name)}: its type is nested more than {MAX_NESTING} deep")
    keys = ""
    if kind == "map_type" and not fed:
        keys, proto = key_name(proto.map_type.key_type), proto.map_type.value_type
    dtype, dims = declared_type(proto, shown(info.name))
    words: dict[str, Around] = {"sequence_type": "seq", "optional_type": "optional"}
    return TensorInfo(
        info.name, dtype, None if dims is None else tuple(dims), tuple(words[k] for k in around), keys
    )


def fits(shape: Sequence[int], declared: Sequence[Dim]) -> bool:
    return len(shape) == len(declared) and all(
        not isinstance(d, int) or d == n for n, d in zip(shape, declared, strict=True)
    )


def fit(info: TensorInfo, value: Any, symbols: dict[str, int], strict: bool) -> Any:
    """The value as arrays, in lists where the model takes sequences, None for an empty optional; `symbols` are
    the lengths of named dimensions so far, which another length contradicts: a warning, unless `strict`.

    Raises: DTypeError, ShapeError."""
    return _fit(info, f"input {info.name!r}", info.around, value, symbols, strict)


def _fit(
    info: TensorInfo, what: str, around: tuple[Around, ...], value: Any, symbols: dict[str, int], strict: bool
) -> Any:
    if not around:
        if value is None:
            raise DTypeError(f"{what}: is None; expected an array")
        return _tensor(info, what, value, symbols, strict)
    if around[0] == "optional":
        return None if value is None else _fit(info, what, around[1:], value, symbols, strict)
    if not isinstance(value, list | tuple):
        raise DTypeError(
            f"{what}: is a {type(value).__name__}; expected a list, for the model takes {info.type}"
        )
    if len(value) > MAX_ITEMS:
        raise ShapeError(f"{what}: has {len(value)} items; at most {MAX_ITEMS} are supported")
    # Named dimensions may differ between the items of a sequence.
    return [_fit(info, f"{what}[{k}]", around[1:], v, dict(symbols), strict) for k, v in enumerate(value)]


def _tensor(info: TensorInfo, what: str, value: Any, symbols: dict[str, int], strict: bool) -> Array:
    value = held(value)
    if isinstance(value, np.ndarray | np.generic | Held) or info.dtype is None:
        array = as_array(value)
    else:
        try:
            array = np.asarray(value, info.dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise DTypeError(
                f"{what}: a {type(value).__name__} is no array of {info.dtype}: {error}"
            ) from error
    if array.dtype == STRING:
        check_strings(array, what)
    if info.dtype is not None and array.dtype != info.dtype:
        raise DTypeError(
            f"{what}: is {array.dtype}, expected {info.dtype}; convert it with .astype if that is what you mean"
        )
    if array.dtype not in NAMES:
        raise DTypeError(f"{what}: {array.dtype} is not an element type that rlx computes with")
    if info.shape is None:
        return array
    if not fits(array.shape, info.shape):
        raise ShapeError(f"{what}: has shape {array.shape}, expected {list(info.shape)}")
    for n, d in zip(array.shape, info.shape, strict=True):
        if isinstance(d, str) and symbols.setdefault(d, n) != n:
            said = f"{what}: dimension {d!r} is {n} in shape {array.shape}, but {symbols[d]} elsewhere"
            if strict:
                raise ShapeError(said)
            DEPARTED.append(said)
            warnings.warn(
                f"{said}; rlx computes with both, and strict=True refuses it", ModelWarning, stacklevel=2
            )
    return array
