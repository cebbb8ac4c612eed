"""The character map of SentencePiece in a tokenizer.json (`precompiled_charsmap`): checks of it, since the code
that reads it trusts it, and a bound on how much longer it can make a text.

It is a size, a trie of that many bytes in 32-bit units (a double array in the layout of Darts-clone), and the
replacements, each ended by a NUL. A unit holds its label, whether a key ends there, and the distance to its children.
"""

from __future__ import annotations

import unicodedata
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_MAP = 1_000_000  # bytes; SentencePiece's own are a quarter of it
_KEY = 5  # bytes of the longest key that is ever looked up
_CHUNK = 4096  # units whose children are searched at a time

Units = npt.NDArray[Any]


def growth(content: bytes, decomposed: bool) -> Fraction:
    """The largest ratio of output to input bytes of the map; `decomposed`: for text in the form NFKD, which it composes
    again.

    Raises: ValueError that says what is wrong with the map.
    """
    size = int.from_bytes(content[:4], "little")
    if not 4 <= len(content) <= MAX_MAP or size % 4 or not 0 < size <= len(content) - 4:
        raise ValueError(
            f"{len(content):,} bytes do not hold a trie of {size:,}, or are more than {MAX_MAP:,}"
        )
    units = np.frombuffer(content, "<u4", size // 4, 4).astype(np.int64)
    texts = np.frombuffer(content, np.uint8, offset=4 + size)
    try:
        texts.tobytes().decode()
    except UnicodeDecodeError as error:
        raise ValueError("its replacements are not UTF-8") from error
    most = Fraction(1)
    ends = np.append(np.flatnonzero(texts == 0), len(texts))
    for keys, values in _leaves(units):
        if (values > len(texts)).any() or (texts[values[values < len(texts)]] & 0xC0 == 0x80).any():
            raise ValueError("a key's replacement begins outside the replacements or within a character")
        sizes = ends[np.searchsorted(ends, values)] - values
        length = keys.shape[1]
        if not decomposed:
            most = max(most, Fraction(int(sizes.max()), length))
            continue
        for key, after in zip(keys, sizes.tolist(), strict=True):
            if after > length:
                whole = unicodedata.normalize("NFKD", key.tobytes().decode(errors="replace"))
                most = max(most, Fraction(after, max(length, len(whole.encode()))))
    return most


def _leaves(units: Units) -> list[tuple[npt.NDArray[np.uint8], Units]]:
    """The keys of each length, and the offsets of their replacements."""
    bases = np.array([_offset(units[:1])[0]])
    keys = np.zeros((1, 0), np.uint8)
    result, seen = [], 1
    letters = np.arange(1, 256)
    for _ in range(_KEY):
        children, grown = [], []
        for start in range(0, len(bases), _CHUNK):
            places = bases[start : start + _CHUNK, None] ^ letters
            if places.size and places.max() >= len(units):
                raise ValueError("its trie leads outside itself")
            row, letter = np.nonzero(units[places] & 0x800000FF == letters)
            children.append(places[row, letter])
            grown.append(np.c_[keys[start + row], letters[letter].astype(np.uint8)])
            seen += len(row)
            if seen > len(units):  # children shared by several parents would make keys without bound
                raise ValueError("its trie is no tree")
        at, keys = np.concatenate(children), np.concatenate(grown)
        bases = at ^ _offset(units[at])
        ended = (units[at] >> 8 & 1) == 1
        if (bases[ended] >= len(units)).any():
            raise ValueError("its trie leads outside itself")
        if ended.any():
            result.append((keys[ended], units[bases[ended]] & 0x7FFFFFFF))
        if not len(at):
            break
    return result


def _offset(units: Units) -> Units:
    return (units >> 10) << ((units & 512) >> 6)
