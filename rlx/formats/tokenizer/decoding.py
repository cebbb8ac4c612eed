"""Tokens to text: the decoder of a tokenizer.json with the behaviour of the package `tokenizers` 0.23, as streaming
steps, so that text is produced while tokens arrive, and its pieces together equal the text of all tokens."""

from __future__ import annotations

import codecs
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rlx.formats.tokenizer.parts import (
    BYTE_LEVEL,
    METASPACE,
    Check,
    Walk,
    anything,
    is_count,
    is_flag,
    is_letter,
    is_text,
)  # fmt: skip
from rlx.records import Record

# As in the package: any 8-bit number between <0x and >, also with a plus sign.
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>")
_DECODERS: Mapping[str, Mapping[str, Check]] = {
    "ByteLevel": BYTE_LEVEL,
    "Metaspace": METASPACE,
    "WordPiece": {"prefix": is_text(), "cleanup": is_flag},
    "ByteFallback": {},
    "Replace": {"pattern": anything, "content": is_text()},
    "Fuse": {},
    "Strip": {"content": is_letter, "start": is_count(0, 256), "stop": is_count(0, 256)},
    "BPEDecoder": {"suffix": is_text(1)},
    "CTC": {"pad_token": is_text(1), "word_delimiter_token": is_text(1), "cleanup": is_flag},
    "Sequence": {"decoders": anything},
}
_OPTIONAL = {"ByteLevel": {"use_regex"}, "Metaspace": {"prepend_scheme", "split", "add_prefix_space", "str_rep"}}
# The replacements of WordPiece's cleanup, in this order.
_CLEANED = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"),
    (" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip


def byte_letters() -> list[str]:
    """The letter of each byte in GPT-2's vocabularies: printable ones stand for themselves, others from U+0100 on."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


_BYTES = {letter: byte for byte, letter in enumerate(byte_letters())}


class Place(Record):
    """The context of a stream's tokens: whether they begin a text, and whether each is decoded `alone`: to its bytes
    within any text, where bytes that are not whole characters become lone surrogates."""

    begins: bool
    alone: bool = False


class Step(Protocol):
    """A step of a decoder. `push` takes a token, or a piece of text if an earlier step has joined the tokens, and gives
    the output that later input cannot change; `end` gives the rest, after which another text may begin. `verbatim`: the
    token is not from the model's vocabulary (an added token) and is written unchanged."""

    def push(self, token: str, verbatim: bool = False) -> list[str]: ...

    def end(self) -> list[str]: ...


Make = Callable[[Place], Step]


class Decoding(Record):
    """The steps of a decoder."""

    steps: tuple[Make, ...]

    def begin(self, begins: bool) -> Writer:
        return Writer([step(Place(begins)) for step in self.steps])

    def contents(self, tokens: Iterable[tuple[str, bool]]) -> list[bytes]:
        """The bytes of each token within a text; `tokens` are pairs of a token and whether it is verbatim."""
        writer = Writer([step(Place(False, True)) for step in self.steps])
        texts = [writer.push(*token) + writer.end() for token in tokens]
        return [text.encode(errors="surrogateescape") for text in texts]


class Writer:
    """Turns tokens into pieces of text by running them through the steps."""

    def __init__(self, steps: list[Step]) -> None:
        self._steps = steps

    def push(self, token: str, verbatim: bool = False) -> str:
        first, *others = self._steps or [_Each(lambda token, _: token)]
        pieces = first.push(token, verbatim)
        for step in others:
            pieces = [part for piece in pieces for part in step.push(piece)]
        return "".join(pieces)

    def end(self) -> str:
        pieces: list[str] = []
        for step in self._steps:
            pieces = [part for piece in pieces for part in step.push(piece)] + step.end()
        return "".join(pieces)


class _Each:
    """Writes each token by itself; `write` gets whether it is the first."""

    def __init__(self, write: Callable[[str, bool], str], first: bool = False) -> None:
        self._write, self._first = write, first

    def push(self, token: str, verbatim: bool = False) -> list[str]:
        token, self._first = self._write(token, self._first), False
        return [token]

    def end(self) -> list[str]:
        return []


class _Characters(ABC):
    """Bytes to text: a character is given with the last of its bytes."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape" if place.alone else "replace")

    def push(self, token: str, verbatim: bool = False) -> list[str]:
        return [self._decoder.decode(self.content(token, verbatim))]

    def end(self) -> list[str]:
        return [self._decoder.decode(b"", True)]

    @abstractmethod
    def content(self, token: str, verbatim: bool) -> bytes:
        """The bytes of a token."""


class ByteLetters(_Characters):
    """Tokens with a letter for each byte. A token with other letters is plain text, and so is a verbatim token, which
    the package would turn into bytes too."""

    def content(self, token: str, verbatim: bool) -> bytes:
        if verbatim or not all(letter in _BYTES for letter in token):
            return token.encode()
        return bytes(_BYTES[letter] for letter in token)


class Pieces(_Characters):
    """SentencePiece's tokens as in GGUF files: ▁ for a space, <0x41> for a byte; `prefix`: drops the space that the
    tokenizer put before a text."""

    def __init__(self, prefix: bool, place: Place) -> None:
        super().__init__(place)
        self._prefix = prefix and place.begins

    def content(self, token: str, verbatim: bool) -> bytes:
        drops, self._prefix = self._prefix, self._prefix and not token
        if verbatim:
            return token.encode()
        if byte := _BYTE.fullmatch(token):
            return bytes([int(byte[1], 16)])
        token = token.replace("▁", " ")
        return (token.removeprefix(" ") if drops else token).encode()


class _ByteFallback:
    """Decodes byte tokens such as <0x41>. A run of them is one text, or a U+FFFD for each byte if the run is not UTF-8:
    so they are held back until another token comes."""

    def __init__(self, place: Place) -> None:
        self._alone, self._kept = place.alone, bytearray()

    def push(self, token: str, verbatim: bool = False) -> list[str]:
        if byte := _BYTE.fullmatch(token):
            self._kept.append(int(byte[1], 16))
            return []
        return [*self.end(), token]

    def end(self) -> list[str]:
        kept, self._kept = self._kept, bytearray()
        try:
            return [kept.decode(errors="surrogateescape" if self._alone else "strict")] if kept else []
        except UnicodeDecodeError:
            return ["\ufffd"] * len(kept)


class _Suffix:
    """Writes tokens' suffix as a space, except in the last token: so each is held back until another comes."""

    def __init__(self, suffix: str, place: Place) -> None:
        self._suffix, self._alone = suffix, place.alone
        self._kept: list[str] = []

    def push(self, token: str, verbatim: bool = False) -> list[str]:
        if self._alone:
            return [token.replace(self._suffix, " ")]
        sure, self._kept = self._kept, [token]
        return [piece.replace(self._suffix, " ") for piece in sure]

    def end(self) -> list[str]:
        last, self._kept = self._kept, []
        return [piece.replace(self._suffix, "") for piece in last]


class _Once:
    """Drops a token that equals the one before it, and tokens whose text is empty (CTC)."""

    def __init__(self, write: Callable[[str], str]) -> None:
        self._write, self._last = write, ""

    def push(self, token: str, verbatim: bool = False) -> list[str]:
        repeated, self._last = token == self._last, token
        return [] if repeated else [text for text in (self._write(token),) if text]

    def end(self) -> list[str]:
        self._last = ""
        return []


class _Replaced:
    """Replaces each `old` by `new` in a text that comes in pieces."""

    def __init__(self, old: str, new: str) -> None:
        self._old, self._new, self._kept = old, new, ""

    def push(self, token: str, verbatim: bool = False) -> list[str]:
        *parts, rest = (self._kept + token).split(self._old)
        kept = next(n for n in range(min(len(rest), len(self._old) - 1), -1, -1) if rest.endswith(self._old[:n]))
        self._kept = rest[len(rest) - kept :]
        return [self._new.join([*parts, rest[: len(rest) - kept]])]

    def end(self) -> list[str]:
        kept, self._kept = self._kept, ""
        return [kept]


class _Stripped:
    """Strips up to `start` of a character from the beginning and `stop` from the end of a text that comes in pieces."""

    def __init__(self, letter: str, start: int, stop: int) -> None:
        self._letter, self._start, self._stop, self._kept = letter, start, stop, 0

    def push(self, token: str, verbatim: bool = False) -> list[str]:
        dropped = min(self._start, len(token) - len(token.lstrip(self._letter)))
        token = token[dropped:]
        self._start = 0 if token else self._start - dropped
        token = self._letter * self._kept + token
        self._kept = min(self._stop, len(token) - len(token.rstrip(self._letter)))
        return [token[: len(token) - self._kept]]

    def end(self) -> list[str]:
        return []


def word_pieces(prefix: str, cleanup: bool) -> Make:
    """Decodes WordPiece's tokens: a space before each but the first, unless it has the prefix."""

    def write(token: str, first: bool) -> str:
        if not first:
            token = token.removeprefix(prefix) if token.startswith(prefix) else f" {token}"
        return _cleaned(token) if cleanup else token

    return lambda place: _Each(write, place.begins)


def _cleaned(text: str) -> str:
    for old, new in _CLEANED:
        text = text.replace(old, new)
    return text


def read_decoder(part: Any, file: Path) -> Decoding:
    """The decoder of a tokenizer.json; without one, tokens are joined with spaces.

    Raises: ModelFormatError that names a decoder that rlx does not support: one of an unknown kind, or one for single
    tokens after one that joins them."""
    if part is None:
        return Decoding((lambda place: _Each(lambda t, first: t if first else f" {t}", place.begins),))
    walk = Walk(file, what="decoder's steps")
    return Decoding(tuple(_read(walk, part, "decoder", [False])))


def _read(walk: Walk, part: Any, where: str, fused: list[bool]) -> list[Make]:
    """The steps of a part; `fused` says whether earlier steps have joined the tokens to one text."""
    kind = walk.fields(part, where, _DECODERS)
    if missing := [name for name in _DECODERS[kind] if name not in part and name not in _OPTIONAL.get(kind, ())]:
        walk.refuse(f"{where}: the fields", sorted(part), f"{', '.join(missing)} too")
    members = walk.members(part, where, kind, "decoders")
    if kind == "Sequence":
        read = (_read(walk, step, f"{where}.decoders[{i}]", fused) for i, step in enumerate(members))
        return [step for steps in read for step in steps]
    makes = _of_text(walk, part, where) if fused[0] else _of_tokens(walk, part, where)
    fused[0] = fused[0] or kind in ("Fuse", "ByteLevel")
    return makes


def _of_tokens(walk: Walk, part: dict[str, Any], where: str) -> list[Make]:
    """The steps of a decoder that takes single tokens."""
    match part:
        case {"type": "ByteLevel"}:
            return [ByteLetters]
        case {"type": "ByteFallback"}:
            return [_ByteFallback]
        case {"type": "Metaspace", "replacement": sign}:
            drops = drops_signs(part)
            return [lambda at: _Each(lambda t, first: t.replace(sign, "" if first and drops else " "), at.begins)]
        case {"type": "WordPiece", "prefix": prefix, "cleanup": cleanup}:
            return [word_pieces(prefix, cleanup)]
        case {"type": "Replace", "content": new}:
            _grow(walk, part, where)
            replace = _pattern(part["pattern"], new)
            return [lambda _: _Each(lambda t, _: replace(t))]
        case {"type": "Strip", "content": letter, "start": start, "stop": stop}:
            return [lambda _: _Each(lambda t, _: "".join(_Stripped(letter, start, stop).push(t)))]
        case {"type": "BPEDecoder", "suffix": suffix}:
            return [partial(_Suffix, suffix)]
        case {"type": "CTC", "pad_token": pad, "word_delimiter_token": delimiter, "cleanup": cleanup}:

            def write(token: str) -> str:
                token = token.replace(pad, "")
                return _cleaned(token).replace(delimiter, " ") if cleanup else token

            return [lambda _: _Once(write)]
    return []  # Fuse


def _of_text(walk: Walk, part: dict[str, Any], where: str) -> list[Make]:
    """The steps of a decoder after the tokens were joined: the whole text is its first and last token."""
    pairs: list[tuple[str, str]] = []
    match part:
        case {"type": "Metaspace", "replacement": sign}:
            drops = drops_signs(part)
            return [lambda at: _Each(lambda t, _: t.replace(sign, "" if at.begins and drops else " "))]
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": new}:
            _grow(walk, part, where)
            pairs = [(old, new)]
        case {"type": "Strip", "content": letter, "start": start, "stop": stop}:
            return [
                lambda at: _Stripped(letter, start if at.begins else 0, 0 if at.alone else stop)
            ]
        case {"type": "WordPiece", "cleanup": cleanup}:
            pairs = [*_CLEANED] if cleanup else []
        case {"type": "BPEDecoder", "suffix": suffix}:
            pairs = [(suffix, "")]
        case {"type": "CTC", "pad_token": pad, "word_delimiter_token": delimiter, "cleanup": cleanup}:
            pairs = [(pad, ""), *((*_CLEANED, (delimiter, " ")) if cleanup else ())]
        case {"type": "Fuse"}:
            return []
        case _:
            walk.refuse(where, part, "no step for single tokens behind Fuse or ByteLevel")
    return [lambda _, old=old, new=new: _Replaced(old, new) for old, new in pairs]  # type: ignore[misc]


def drops_signs(part: Mapping[str, Any]) -> bool:
    """Whether a Metaspace puts its sign before a text, and so drops it from the first token when decoding."""
    return part.get("prepend_scheme", "always") != "never" and bool(part.get("add_prefix_space", True))


def _grow(walk: Walk, part: dict[str, Any], where: str) -> None:
    least = walk.least_bytes(part, where)
    walk.grow_by(len(part["content"].encode()), least)


def _pattern(pattern: Mapping[str, str], new: str) -> Callable[[str], str]:
    """A function that replaces the String or Regex in a token by `new`."""
    if "String" in pattern:
        return lambda token: token.replace(pattern["String"], new)
    from tokenizers import Regex, decoders

    replace = decoders.Replace(Regex(pattern["Regex"]), new)
    return lambda token: str(replace.decode([token]))
