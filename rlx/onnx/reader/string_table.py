"""The string table: equal strings have equal numbers, so that ops that move, select or compare strings run on devices.

Operators that read characters (StringConcat, Cast, RegexFullMatch …) are computed at build time, as shapes are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np

from rlx.errors import DTypeError, UnsupportedOp
from rlx.formats.files import shown
from rlx.onnx.reader.elements import STRING, Array, ElementType, from_carrier, to_carrier
from rlx.onnx.reader.held import Held, held
from rlx.ops.control.steps import spend

MAX_CHARACTERS = 1 << 24  # characters of all the strings that a model makes
STRINGS_A_STEP = 4  # strings that are read for one step of building
MAX_STRINGS = 1 << 20  # strings of a tensor whose characters are read


class StringTable:
    """A table of strings. Number 0 is the empty string, so that ops which fill with zeros fill with it.

    `base` is a table that is only read. A run puts the strings of its inputs into a table of its own, based on the
    program's.
    """

    def __init__(self, base: StringTable | None = None) -> None:
        self._base = base
        self._start = len(base) if base is not None else 0
        self._codes: dict[str, int] = {}
        self._words: list[str] = []
        self._made = 0
        if base is None:
            self.code("")

    def __len__(self) -> int:
        return self._start + len(self._words)

    def code(self, word: str) -> int:
        """The number of a string."""
        result = self._codes.get(word)
        if result is None and self._base is not None:
            result = self._base._codes.get(word)
        if result is None:
            result = self._codes[word] = len(self)
            self._words.append(word)
        return result

    def word(self, code: int) -> str:
        if code < self._start:
            assert self._base is not None
            return self._base.word(code)
        return self._words[code - self._start]

    def made(self, word: str, where: str) -> int:
        """The number of a string that a model makes. Raises: UnsupportedOp when it makes too many."""
        self._made += len(word) + 1
        if self._made > MAX_CHARACTERS:
            raise UnsupportedOp(
                f"{where}: the model makes strings of more than {MAX_CHARACTERS:,} characters"
            )
        return self.code(word)

    def encode(self, array: Array) -> Array:
        """The numbers of an array of strings. Raises: DTypeError for an element that is no string."""
        check_strings(array)
        return np.fromiter(map(self.code, array.reshape(-1)), np.int64, array.size).reshape(array.shape)

    def decode(self, codes: Array) -> Array:
        """The strings, as NumPy's objects."""
        words = np.empty(codes.size, object)
        words[:] = [self.word(int(k)) for k in codes.reshape(-1)]
        return words.reshape(codes.shape)

    def to_carrier(self, array: Array | Held) -> Any:
        """An array of any element type in the rlx dtype that carries it, one of a device as it is."""
        if isinstance(array, Held):
            return array.array
        return self.encode(array) if array.dtype == STRING else to_carrier(array)

    def from_carrier(self, array: Array, dtype: ElementType) -> Array:
        """The array of an element type from the rlx dtype that carries it."""
        return self.decode(array) if dtype == STRING else from_carrier(array, dtype)

    def mapped(self, codes: Array, function: Callable[[str], Any]) -> list[Any]:
        """The results of a function on each string; it is called once for each distinct one."""
        different, places = np.unique(codes, return_inverse=True)
        spend("strings", len(different) // STRINGS_A_STEP)
        results = [function(self.word(int(k))) for k in different]
        return [results[k] for k in places.reshape(-1)]


def check_strings(array: Array, what: str = "an array of strings") -> None:
    """Raises: DTypeError when an array of objects holds anything but strings."""
    for w in array.reshape(-1):
        if not isinstance(w, str):
            raise DTypeError(f"{what}: holds {shown(w)}, a {type(w).__name__}; expected strings")


def as_array(value: Any, dtype: ElementType | None = None) -> Array:
    """The value as a NumPy array; strings become an array of objects, and arrays of a device stay there."""
    value = held(value)
    if isinstance(value, Held):
        return cast(Array, value)
    array = np.asarray(value, dtype)
    return array.astype(object) if array.dtype.kind in "UT" else array


def strings(values: Iterable[str]) -> Array:
    """Strings as an array of NumPy's objects."""
    held = list(values)
    result = np.empty(len(held), object)
    result[:] = held
    return result
