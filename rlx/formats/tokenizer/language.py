"""The tokenizer of a language model: text to ids with or without special tokens, and ids back to text, also as a
stream."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from rlx.errors import DTypeError, ModelFormatError, ShapeError
from rlx.formats.files import read_bytes, read_json, shown
from rlx.formats.tokenizer.decoding import Decoding, read_decoder
from rlx.formats.tokenizer.text import build, faults_of, read_parts
from rlx.host.locks import renewed
from rlx.records import Record

Letters = Literal["bytes", "spaces", "words"]
"""How tokens are written: a letter for each byte (GPT-2), ▁ for a space (SentencePiece), words and ##parts (BERT)."""

MAX_TEMPLATE = 1_000_000  # bytes; published ones have up to 20,000


class Vocabulary(Record):
    """The meaning of a tokenizer's ids: `tokens` are their texts, `control` the ids of control tokens, which are not
    text, `added` those of other tokens outside the model's vocabulary, and how all are decoded."""

    tokens: Mapping[int, str]
    letters: Letters
    decoding: Decoding
    control: frozenset[int] = frozenset()
    added: frozenset[int] = frozenset()

    def verbatim(self, id: int) -> bool:
        """Whether a token is outside the model's vocabulary, so that it is written unchanged."""
        return id in self.added or id in self.control

    def text(self, id: int) -> str:
        """The token of an id, as spelled in the vocabulary. Raises: ShapeError for an unknown id."""
        token = self.tokens.get(id)
        if token is None:
            most = max(self.tokens, default=-1)
            raise ShapeError(
                f"token id {shown(id)} is not in the vocabulary of {len(self.tokens):,}, up to {most:,}"
            )
        return token

    def contents(self, ids: Iterable[int]) -> list[bytes]:
        """The bytes of each token within a text. Raises: ShapeError for an unknown id."""
        return self.decoding.contents((self.text(id), self.verbatim(id)) for id in ids)


class SpecialTokens(Record):
    """The ids of a model's special tokens; None for one that it lacks. `ends` are all that end a generated text."""

    bos: int | None = None
    eos: int | None = None
    unk: int | None = None
    sep: int | None = None
    pad: int | None = None
    mask: int | None = None
    ends: frozenset[int] = frozenset()


# Tokens that end an answer in published chat models; their files often name only one of several as the end.
END_TEXTS = frozenset(
    "<|eot_id|> <|im_end|> <|end|> <end_of_turn> <|endoftext|> <|return|> <|call|> <|eom_id|> <EOT> _<EOT> "
    "<|end_of_text|> <｜end▁of▁sentence｜> <|EOT|>".split()
)


class LanguageTokenizer:
    """Text to ids and back, through the package `tokenizers`; `rlx.formats.gguf.tokenizer` makes one of a GGUF file,
    `from_folder` of a Hugging Face folder. Threads may use it at once."""

    def __init__(
        self,
        file: Path,
        made: Any,
        vocabulary: Vocabulary,
        special: SpecialTokens,
        chat_template: str | None = None,
    ) -> None:
        self.file, self.vocabulary, self.special = file, vocabulary, special
        self.chat_template = chat_template
        self._made, self._lock = made, renewed(self, "_lock", threading.Lock)
        self.encode("a")  # some faults appear only when a text is encoded
        self.encode("")

    def __len__(self) -> int:
        return len(self.vocabulary.tokens)

    def encode(self, text: str, *, special: bool = True, parse_special: bool = False) -> list[int]:
        """The ids of a text. `special`: with the special tokens that the model wants at its beginning and end;
        `parse_special`: special tokens written in the text become their ids, as a chat template needs; else they are
        plain characters, as in untrusted text they must be.

        Raises: DTypeError for anything but a text with a UTF-8 form; ModelFormatError."""
        if not isinstance(text, str):
            raise DTypeError(f"encode: {shown(text, 40)} is no text")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DTypeError(
                f"encode: the text holds a lone surrogate at character {error.start}, which no UTF-8 text can; decode "
                'the bytes it came from with errors="replace"'
            ) from None
        with self._lock, faults_of(self.file):
            self._made.encode_special_tokens = not parse_special
            ids: list[int] = self._made.encode(text, add_special_tokens=special).ids
        return ids

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of ids; `special`: with special tokens written out. Bytes that are no UTF-8 become U+FFFD."""
        stream = self.stream(special=special, begins=True)
        return "".join([*map(stream.push, ids), stream.end()])

    def stream(self, *, special: bool = False, begins: bool = False) -> TokenStream:
        """A stream that turns ids into text as they come; `begins`: the ids begin a text, so the space that the
        tokenizer put before it is dropped."""
        return TokenStream(self.vocabulary, special, begins)

    def token(self, id: int) -> str:
        """The token of an id, as spelled in the vocabulary. Raises: ShapeError for an unknown id."""
        return self.vocabulary.text(id)

    def id(self, token: str) -> int | None:
        """The id of a token as spelled in the vocabulary; None if there is none."""
        result: int | None = self._made.token_to_id(token)
        return result


class TokenStream:
    """Turns ids into pieces of text: a character whose bytes are in several tokens is given with the last of them, and
    text that the next token may change is given with that token."""

    def __init__(self, vocabulary: Vocabulary, special: bool, begins: bool) -> None:
        self.vocabulary, self.special = vocabulary, special
        self._writer = vocabulary.decoding.begin(begins)

    def push(self, id: int) -> str:
        """The text that this id completes, which may be empty. Raises: ShapeError for an unknown id."""
        token = self.vocabulary.text(id)
        if id in self.vocabulary.control and not self.special:
            return ""
        return self._writer.push(token, self.vocabulary.verbatim(id))

    def end(self) -> str:
        """The remaining text, with U+FFFD for an incomplete character."""
        return self._writer.end()


def from_folder(folder: Path) -> LanguageTokenizer:
    """The tokenizer of a Hugging Face folder: tokenizer.json, and what tokenizer_config.json, generation_config.json
    and config.json say of its special tokens.

    Raises: RlxError when the package `tokenizers` is not installed, ModelFormatError."""
    file = folder / "tokenizer.json"
    parts, size = read_parts(file)
    made = build(parts, file, size)
    added: dict[int, Any] = made.get_added_tokens_decoder()
    tokens: dict[int, str] = {id: token for token, id in made.get_vocab(with_added_tokens=True).items()}
    # An added token that is matched in normalized text is written in normalized form, perhaps with a space.
    normalized = frozenset(i for i, token in added.items() if token.normalized and made.normalizer)
    vocabulary = Vocabulary(
        tokens | {i: made.normalizer.normalize_str(added[i].content) for i in normalized},
        _letters(parts),
        read_decoder(parts.get("decoder"), file),
        frozenset(i for i, token in added.items() if token.special),
        frozenset(i for i, token in added.items() if not token.special),
    )
    config, generation, model = (
        read_json(folder / name) if (folder / name).is_file() else {}
        for name in ("tokenizer_config.json", "generation_config.json", "config.json")
    )
    ids = {token: id for id, token in tokens.items()}

    def named(key: str) -> int | None:
        value = config.get(key)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str) and text in ids:
            return ids[text]
        found = model.get(f"{key}_id")
        return found if type(found) is int and found in tokens else None

    stops = [named("eos_token")]
    for source in (generation, model):
        found = source.get("eos_token_id")
        stops += found if isinstance(found, list) else [found]
    marks = {key: named(f"{key}_token") for key in ("bos", "eos", "unk", "sep", "pad", "mask")}
    ends = frozenset(i for i in stops if type(i) is int and i in tokens)
    special = SpecialTokens(**marks, ends=ends | named_ends(vocabulary))
    return LanguageTokenizer(file, made, vocabulary, special, folder_template(folder, config))


def named_ends(vocabulary: Vocabulary) -> frozenset[int]:
    """The special tokens whose text says that they end an answer."""
    return frozenset(i for i in vocabulary.control if vocabulary.tokens[i] in END_TEXTS)


def folder_template(folder: Path, config: dict[str, Any]) -> str | None:
    """The chat template of a folder, or the one named default of several. A processor's comes first, where the folder
    has one: in processor_config.json or chat_template.json. Then come chat_template.jinja, tokenizer_config.json (whose
    content is `config`), and chat_template.json in a folder without a processor. Raises: ModelFormatError."""
    own, apart = folder / "processor_config.json", folder / "chat_template.json"
    processor = read_json(own) if own.is_file() else {}
    if processor.get("chat_template") is not None:
        return _default(processor, own)
    if apart.is_file() and (own.is_file() or (folder / "preprocessor_config.json").is_file()):
        return _default(read_json(apart), apart)
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return read_bytes(file, MAX_TEMPLATE).decode()
        except UnicodeDecodeError as error:
            raise ModelFormatError(f"{file}: is not UTF-8 at byte {error.start:,}") from error
    if config.get("chat_template") is None:
        return _default(read_json(apart), apart) if apart.is_file() else None
    return _default(config, folder / "tokenizer_config.json")


def _default(settings: dict[str, Any], file: Path) -> str | None:
    """The chat template of a file's settings; of several, given by name, the one named default, or None."""
    template = settings.get("chat_template")
    if isinstance(template, list):
        template = {
            entry["name"]: entry.get("template")
            for entry in template
            if isinstance(entry, dict) and isinstance(entry.get("name"), str)
        }
    if isinstance(template, dict) and "default" not in template:
        return None
    template = template["default"] if isinstance(template, dict) else template
    if not isinstance(template, str):
        raise ModelFormatError(f"{file}: chat_template is {shown(template)}, expected a text")
    return template


def _letters(parts: dict[str, Any]) -> Letters:
    """How the tokens of a tokenizer.json spell their bytes."""
    named = (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers"), ("decoder", "decoders"))
    steps = [step for name, members in named for step in _steps(parts.get(name), members)]
    if any(step.get("type") == "ByteLevel" for step in steps):
        return "bytes"
    return "words" if parts["model"].get("type") == "WordPiece" else "spaces"


def _steps(part: Any, members: str) -> list[dict[str, Any]]:
    if not isinstance(part, dict):
        return []
    inner = part.get(members) if part.get("type") == "Sequence" else [part]
    return [step for step in inner if isinstance(step, dict)] if isinstance(inner, list) else []
