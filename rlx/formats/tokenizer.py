"""Text to token numbers, through the package `tokenizers` and a folder's tokenizer.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.errors import DTypeError, ModelFormatError, RlxError
from rlx.formats.files import read_bytes

MAX_TOKENIZER = 256_000_000  # bytes; the largest published ones are a tenth of it
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
        except BaseException as error:
            if _is_fault(error):
                raise self._damaged(error) from error
            raise
        if special >= max_length:  # the package would then not cut at all
            raise ModelFormatError(
                f"{file}: adds {special} special tokens, which leave no room in the model's {max_length} tokens"
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
                made += [np.asarray(e.ids, np.int32) for e in self._made.encode_batch(chunk)]
            except BaseException as error:
                if _is_fault(error):
                    raise self._damaged(error) from error
                raise
        return made

    def _damaged(self, error: BaseException) -> ModelFormatError:
        return ModelFormatError(f"{self.file}: is not a tokenizer that works: {error}")


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
