"""Text to token ids, through the package `tokenizers` and a folder's tokenizer.json."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from rlx.errors import DTypeError, ModelFormatError, ModelWarning, RlxError
from rlx.formats.files import OBJECT_BYTES, check_object, parse_json, plain, read_bytes, shown
from rlx.formats.tokenizer.decoding import read_decoder
from rlx.formats.tokenizer.models import check_added, check_model
from rlx.formats.tokenizer.parts import Walk
from rlx.records import Record

MAX_TOKENIZER = 64_000_000  # bytes; the largest published ones are half of it
# Bytes of memory per byte of the file, besides OBJECT_BYTES: as parsed JSON, and as the package's objects.
JSON_PER_BYTE, PER_BYTE = 40, 64
_MAX_ID = np.iinfo(np.int32).max
# How many texts, and characters, are encoded at a time: the package's results are far larger than the ids.
_CHUNK, _CHUNK_CHARACTERS = 1024, 1 << 20
_PARTS = (
    "version",
    "truncation",
    "padding",
    "added_tokens",
    "normalizer",
    "pre_tokenizer",
    "post_processor",
    "decoder",
    "model",
)

TokenIds = npt.NDArray[np.int32]
T = TypeVar("T")


class Pieces(Record):
    """A text's tokens: their ids, their spellings in the vocabulary, where each begins and ends in the text, and which
    are special tokens added around it."""

    ids: TokenIds
    tokens: list[str]
    places: list[tuple[int, int]]
    marks: npt.NDArray[np.bool_]


class TextTokenizer:
    """The tokenizer of a tokenizer.json; special tokens are added, long texts cut to `max_length` tokens at `side`, by
    default the one that the file says. The file's padding, decoder and number of tokens are not used. A `normalizer`
    replaces the file's; a ModelWarning says if they differ.

    Raises: RlxError when the package `tokenizers` is not installed, ModelFormatError for a damaged file, for one whose
    parts are not known to be safe to run, or for a `max_length` that the special tokens alone fill.
    """

    def __init__(
        self, file: Path, max_length: int, lower: bool = False, normalizer: dict[str, Any] | None = None,
        side: str | None = None,
    ) -> None:  # fmt: skip
        self.file = file
        self.max_length = max_length
        parts, size = read_parts(file)
        self._decoder = parts.get("decoder")
        held = parts.get("normalizer")
        if normalizer is not None:
            parts["normalizer"] = normalizer
        truncation = parts.get("truncation")
        if side is None:
            side = str(truncation.get("direction", "right")).lower() if isinstance(truncation, dict) else "right"
        if lower:  # a normalizer does not change special tokens
            steps = [{"type": "Lowercase"}, parts.get("normalizer")]
            parts["normalizer"] = {"type": "Sequence", "normalizers": [s for s in steps if s is not None]}
        self._made = build(parts, file, size)
        model = parts["model"]
        self.unknown: str | None = model.get("unk_token")  # the unknown token
        if model.get("unk_id") is not None:
            self.unknown = self._made.id_to_token(model["unk_id"])
        special = self._made.num_special_tokens_to_add(False)
        with faults_of(file):
            self._made.enable_truncation(max_length, direction=side)
        if special >= max_length:  # the package would then not truncate at all
            raise ModelFormatError(
                f"{file}: adds {special} special tokens, which leave no room in the model's {max_length} tokens"
            )
        self.ids(["a", ""])  # some faults show only here
        if normalizer is not None:
            _warn_of(normalizer, held, file)

    def ids(self, texts: Sequence[str]) -> list[TokenIds]:
        """The token ids of each text.

        Raises: DTypeError for text that has no UTF-8 form, ModelFormatError when the tokenizer fails.
        """
        return self._each(texts, lambda encoding: self._checked_ids(encoding.ids))

    def pairs(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[TokenIds, TokenIds]]:
        """For each pair of texts: the ids, with special tokens, and for each id 0 (first text) or 1 (second). In a pair
        that is too long the longer text is cut first. Raises: as `ids`."""

        def read(encoding: Any) -> tuple[TokenIds, TokenIds]:
            return self._checked_ids(encoding.ids), np.asarray(encoding.type_ids, np.int32)

        return self._each(pairs, read)

    def pieces(self, texts: Sequence[str]) -> list[Pieces]:
        """The tokens of each text with their places in it. Raises: as `ids`."""

        def read(encoding: Any) -> Pieces:
            marks = np.asarray(encoding.special_tokens_mask, np.bool_)
            return Pieces(self._checked_ids(encoding.ids), list(encoding.tokens), list(encoding.offsets), marks)

        return self._each(texts, read)

    def is_cut(self, text: str | tuple[str, str]) -> bool:
        """Whether a text, or a pair of texts, has more than `max_length` tokens. Raises: as `ids`."""
        return self._each([text], lambda encoding: bool(encoding.overflowing))[0]

    def _each(self, texts: Sequence[Any], read: Callable[[Any], T]) -> list[T]:
        """`read` applied to the package's result for each text, or pair of texts."""
        result: list[T] = []
        while len(result) < len(texts):
            chunk: list[Any] = []
            room = _CHUNK_CHARACTERS
            for i in range(len(result), min(len(result) + _CHUNK, len(texts))):
                for text in texts[i] if isinstance(texts[i], tuple) else (texts[i],):
                    _check_utf8(text, i)
                    room -= len(text)
                if room < 0 and chunk:
                    break
                chunk.append(texts[i])
            with faults_of(self.file):
                encodings = self._made.encode_batch(chunk)
            result += [read(encoding) for encoding in encodings]
        return result

    def _checked_ids(self, ids: list[int]) -> TokenIds:
        found = np.asarray(ids, np.int64)
        if found.size and int(found.max()) > _MAX_ID:
            raise ModelFormatError(f"{self.file}: numbers a token {found.max()}; expected at most {_MAX_ID}")
        return found.astype(np.int32)

    def id_of(self, token: str) -> int | None:
        """The id of the token with this text, or None."""
        id = self._made.token_to_id(token)
        return None if id is None else int(id)

    def token(self, id: int) -> str | None:
        """The token of an id, as spelled in the vocabulary; None for an unknown id."""
        found = self._made.id_to_token(id)
        return None if found is None else str(found)

    @property
    def word_pieces(self) -> bool:
        """Whether tokens that continue a word have a prefix, as in WordPiece."""
        return bool(getattr(self._made.model, "continuing_subword_prefix", None))

    def take_whole(self, mark: str) -> None:
        """From now on `mark`, or its first word if only that is a token, is read as one token wherever it occurs, like
        a special token."""
        for text in (mark, *mark.split(None, 1)[:1]):
            if text and self.id_of(text) is not None:
                with faults_of(self.file):
                    if self._made.encode(text, add_special_tokens=False).tokens != [text]:
                        from tokenizers import AddedToken

                        self._made.add_special_tokens([AddedToken(text, normalized=False, special=True)])
                return

    def marks_behind(self) -> int:
        """How many special tokens follow a text."""
        with faults_of(self.file):
            marks = self._made.encode("a").special_tokens_mask
        return next((i for i, mark in enumerate(reversed(marks)) if not mark), 0)

    def decoded(self, tokens: Sequence[str]) -> str:
        """The text of tokens, given as spelled in the vocabulary. Raises: ModelFormatError for an unknown decoder."""
        writer = read_decoder(self._decoder, self.file).begin(True)
        return "".join([*(writer.push(token) for token in tokens), writer.end()])

    def prompt_length(self, prompt: str) -> int:
        """The number of a prompt's tokens, including the special tokens before it but not the one after it. Raises: as
        `ids`."""
        _check_utf8(prompt, 0)
        with faults_of(self.file):
            added: list[int] = self._made.encode(prompt).special_tokens_mask
        return len(added) - sum(added[-1:])


def bert_normalizer(settings: dict[str, Any], file: Path) -> dict[str, Any]:
    """The normalizer that BERT's class in transformers makes from the settings in `file`, ignoring tokenizer.json.
    Raises: ModelFormatError."""
    usual = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
    for name, value in usual.items():
        usual[name] = settings.get(name, value)
        if type(usual[name]) is not bool and (usual[name], name) != (None, "strip_accents"):
            raise ModelFormatError(f"{file}: {name} is {shown(usual[name])}, expected true or false")
    lower, strip, chinese = usual.values()
    return {
        "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": chinese, "strip_accents": strip,
        "lowercase": lower,
    }  # fmt: skip


def _warn_of(taken: dict[str, Any], held: Any, file: Path) -> None:
    """Warns: ModelWarning if BERT's class and tokenizer.json normalize differently."""
    own = held if isinstance(held, dict) else {"type": held}
    if own.get("type") != taken["type"]:
        own = {"type": own.get("type")}
    odd = [f"{n} = {shown(own[n])} (taken: {taken[n]})" for n in taken if n in own and own[n] != taken[n]]
    if odd:
        warnings.warn(
            f"{file}: its normalizer has {', '.join(odd)}; what tokenizer_config.json says, or leaves at BERT's usual "
            "settings, is taken, as in transformers", ModelWarning, stacklevel=2,
        )  # fmt: skip


def read_parts(file: Path) -> tuple[dict[str, Any], int]:
    """The parts of a tokenizer.json, and its size. Raises: ModelFormatError."""
    content = read_bytes(file, MAX_TOKENIZER)
    granted = OBJECT_BYTES + JSON_PER_BYTE * len(content)
    return check_object(parse_json(content, file, granted), file), len(content)


def build(parts: dict[str, Any], file: Path, size: int) -> Any:
    """The package's Tokenizer of these parts, which `file` holds in `size` bytes, after they were checked to be safe to
    run; truncation, padding and decoder are left out.

    Raises: RlxError when the package `tokenizers` is not installed, ModelFormatError.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise RlxError('reading text needs the package `tokenizers`: pip install "rlx[hf]"') from error
    content = _checked(parts, file, size)
    with faults_of(file):
        result = Tokenizer.from_buffer(content)
        _check_added(result, file)
    return result


@contextmanager
def faults_of(file: Path) -> Iterator[None]:
    """A context that turns the package's errors for a damaged file into ModelFormatError."""
    try:
        yield
    except BaseException as error:
        if _is_fault(error):
            raise ModelFormatError(
                f"{file}: is not a tokenizer that works: {plain(str(error), 300)}"
            ) from error
        raise


def _check_added(made: Any, file: Path) -> None:
    """Raises: ModelFormatError for an added token that normalization makes empty, which would match everywhere, and for
    one of white space that strips the white space beside it: each match would read all of that again."""
    normalizer = made.normalizer
    for token in made.get_added_tokens_decoder().values():
        text = token.content
        if token.normalized and normalizer is not None:
            text = normalizer.normalize_str(text)
        if not text or (text.isspace() and (token.lstrip or token.rstrip)):
            raise ModelFormatError(
                f"{file}: the added token {shown(token.content)} is {shown(text)} to a search; expected a text, and "
                "one that is not white space where it has lstrip or rstrip"
            )


def _checked(parts: dict[str, Any], file: Path, size: int) -> bytes:
    """A tokenizer.json with only the parts that are used, after they were checked to be safe to run.

    Raises: ModelFormatError.
    """
    odd = parts.keys() - set(_PARTS)
    if odd or parts.get("version", "1.0") != "1.0" or not isinstance(parts.get("model"), dict):
        raise ModelFormatError(
            f"{file}: is not a tokenizer of version 1.0: its parts are {shown(sorted(parts))}, expected a model and of "
            f"{', '.join(_PARTS)}"
        )
    used = {**parts, "truncation": None, "padding": None, "decoder": None}
    walk = Walk(file)
    if parts.get("normalizer") is not None:
        walk.normalizer(parts["normalizer"])
    walk.steps = 0
    if parts.get("pre_tokenizer") is not None:
        walk.pre_tokenizer(parts["pre_tokenizer"])
    walk.steps = 0
    if parts.get("post_processor") is not None:
        walk.post_processor(parts["post_processor"])
    check_added(walk, parts.get("added_tokens", []))
    check_model(walk, parts["model"], OBJECT_BYTES + PER_BYTE * size)
    try:
        return json.dumps(used, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ModelFormatError(f"{file}: a text in it holds a lone surrogate, which no UTF-8 can") from error


def _is_fault(error: BaseException) -> bool:
    """Whether the error is the file's fault. The package raises ValueError or bare Exception for a damaged file, and
    for some files its Rust code panics, which reaches Python as a BaseException that is no Exception."""
    return type(error) in (Exception, ValueError) or type(error).__name__ == "PanicException"


def _check_utf8(text: Any, index: int) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DTypeError(
            f"sentence {index} holds a lone surrogate at character {error.start}, which no UTF-8 text can; "
            'decode the bytes it came from with errors="replace"'
        ) from None
