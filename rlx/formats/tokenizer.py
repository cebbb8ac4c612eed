"""Text to token numbers, through the package `tokenizers` and a folder's tokenizer.json."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.errors import DTypeError, ModelFormatError, RlxError
from rlx.formats.files import plain, read_bytes

MAX_TOKENIZER = 256_000_000  # bytes; the largest published ones are a tenth of it
MAX_GROWTH = 1000  # characters that a normalizer may make of one; published ones make two or three
_MAX_ID = np.iinfo(np.int32).max
_CHUNK = 1024  # texts encoded at a time: what the package returns for a text is far larger than its numbers

TokenIds = npt.NDArray[np.int32]


class TextTokenizer:
    """The tokenizer of a tokenizer.json; special tokens are added, long texts cut to `max_length` tokens.

    Raises: RlxError when the package `tokenizers` is not installed, ModelFormatError for a damaged file or a
    `max_length` that the special tokens alone take up.
    """

    def __init__(self, file: Path, max_length: int, lower: bool = False) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise RlxError('reading text needs the package `tokenizers`: pip install "rlx[hf]"') from error
        self.file = file
        self.max_length = max_length
        self._lower = lower
        content = read_bytes(file, MAX_TOKENIZER)
        try:
            self._made = Tokenizer.from_buffer(content)
            special = self._made.num_special_tokens_to_add(False)
            self._made.no_padding()
            self._made.enable_truncation(max_length)
            normalizer = self._made.normalizer
            growth = 1 if normalizer is None else _growth(json.loads(normalizer.__getstate__()))
        except BaseException as error:
            if _is_fault(error):
                raise self._damaged(error) from error
            raise
        if special >= max_length:  # the package would then not cut at all
            raise ModelFormatError(
                f"{file}: adds {special} special tokens, which leave no room in the model's {max_length} tokens"
            )
        if growth > MAX_GROWTH:
            raise ModelFormatError(
                f"{file}: its normalizer makes up to {plain(str(growth), 20)} characters of one; expected at most "
                f"{MAX_GROWTH:,}"
            )
        self.ids(["a", ""])  # some faults show only here

    def ids(self, texts: Sequence[str]) -> list[TokenIds]:
        """The token numbers of each text.

        Raises: DTypeError for text that has no UTF-8 form, ModelFormatError when the tokenizer fails.
        """
        made: list[TokenIds] = []
        for start in range(0, len(texts), _CHUNK):
            chunk = [t.lower() if self._lower else t for t in texts[start : start + _CHUNK]]
            for i, text in enumerate(chunk, start):
                _check_utf8(text, i)
            try:
                found = [np.asarray(e.ids, np.int64) for e in self._made.encode_batch(chunk)]
            except BaseException as error:
                if _is_fault(error):
                    raise self._damaged(error) from error
                raise
            largest = max((int(ids.max()) for ids in found if ids.size), default=0)
            if largest > _MAX_ID:
                raise ModelFormatError(f"{self.file}: numbers a token {largest}; expected at most {_MAX_ID}")
            made += [ids.astype(np.int32) for ids in found]
        return made

    def _damaged(self, error: BaseException) -> ModelFormatError:
        return ModelFormatError(f"{self.file}: is not a tokenizer that works: {plain(str(error), 300)}")


def _growth(step: Any) -> int:
    """The most characters that a normalizer, as tokenizer.json writes it, makes of one. A sequence multiplies them, and
    some hundred bytes of file could keep a machine busy for days."""
    match step:
        case {"type": "Sequence", "normalizers": [*steps]}:
            return math.prod(map(_growth, steps))
        case {"type": "Replace", "pattern": {"String": str(taken)}, "content": str(content)} if taken:
            return max(1, -(-len(content) // len(taken)))
        case {"type": "Replace", "content": str(content)} | {"type": "Prepend", "prepend": str(content)}:
            return 1 + len(content)
    return 1


def _is_fault(error: BaseException) -> bool:
    """Whether it is the file's fault: the package raises ValueError or bare Exception for a damaged one, and for some
    its Rust code panics, which reaches Python as an exception that is no Exception."""
    return type(error) in (Exception, ValueError) or type(error).__name__ == "PanicException"


def _check_utf8(text: Any, index: int) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DTypeError(
            f"sentence {index} holds a lone surrogate at character {error.start}, which no UTF-8 text can; "
            'decode the bytes it came from with errors="replace"'
        ) from None
