"""What a tokenizer.json may hold. The package `tokenizers` trusts the file: a bad one makes it grow text without
end, panic or overflow its stack. So every part must be of a known kind with the parameters of that kind, within bounds.
The time and memory a text takes are then bounded by its length times two numbers of the file: how much longer the text
may become, and how far its model looks ahead.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

from rlx.errors import ModelFormatError
from rlx.formats.files import shown
from rlx.formats.tokenizer import charsmap
from rlx.formats.tokenizer.regex import least_match
from rlx.records import Record, field

MAX_GROWTH = 128  # bytes that one byte of text may become; published tokenizers stay below 70
MAX_STEPS = 16  # steps in a normalizer or a pre-tokenizer
MAX_SPECIAL = 64  # special tokens added to a text
MAX_TEXT = 256  # bytes of a short text: a suffix, a name, an added token, the text of a replacement
MAX_ID = (1 << 31) - 1

Check = Callable[[Any], str | None]  # returns what was expected in place of a wrong value; None if the value is valid


def is_flag(value: Any) -> str | None:
    return None if type(value) is bool else "true or false"


def is_text(least: int = 0, most: int = MAX_TEXT) -> Check:
    def check(value: Any) -> str | None:
        if isinstance(value, str) and least <= len(value.encode(errors="replace")) <= most:
            return None
        return f"a text of {least} to {most} bytes"

    return check


def is_count(least: int, most: int) -> Check:
    return lambda value: (
        None if type(value) is int and least <= value <= most else f"an integer from {least} to {most}"
    )


def is_one_of(*words: str) -> Check:
    return lambda value: (
        None if isinstance(value, str) and value in words else f"one of {', '.join(map(repr, words))}"
    )


def is_letter(value: Any) -> str | None:
    return None if isinstance(value, str) and len(value) == 1 else "a single character"


def or_null(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def is_token(value: Any) -> str | None:
    if isinstance(value, list) and len(value) == 2 and is_text(1)(value[0]) is None:
        return is_count(0, MAX_ID)(value[1]) and f"a token and its number up to {MAX_ID}"
    return "a token and its number"


def anything(value: Any) -> str | None:
    return None


_NOTHING: Mapping[str, Check] = {}
_BEHAVIOR = is_one_of("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
BYTE_LEVEL = {"add_prefix_space": is_flag, "trim_offsets": is_flag, "use_regex": is_flag}
METASPACE = {
    "replacement": is_letter,
    "prepend_scheme": is_one_of("first", "never", "always"),
    "split": is_flag,
    "add_prefix_space": is_flag,
    "str_rep": is_letter,
}
NORMALIZERS: Mapping[str, Mapping[str, Check]] = {
    "BertNormalizer": {
        "clean_text": is_flag,
        "handle_chinese_chars": is_flag,
        "strip_accents": or_null(is_flag),
        "lowercase": is_flag,
    },
    "Strip": {"strip_left": is_flag, "strip_right": is_flag},
    **dict.fromkeys(
        ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel"), _NOTHING
    ),
    "Replace": {"pattern": anything, "content": is_text()},
    "Prepend": {"prepend": is_text(1)},
    "Precompiled": {"precompiled_charsmap": is_text(8, 2 * charsmap.MAX_MAP)},
    "Sequence": {"normalizers": anything},
}
PRE_TOKENIZERS: Mapping[str, Mapping[str, Check]] = {
    **dict.fromkeys(("BertPreTokenizer", "Whitespace", "WhitespaceSplit", "UnicodeScripts"), _NOTHING),
    "ByteLevel": BYTE_LEVEL,
    "Metaspace": METASPACE,
    "Split": {"pattern": anything, "behavior": _BEHAVIOR, "invert": is_flag},
    "Punctuation": {"behavior": _BEHAVIOR},
    "Digits": {"individual_digits": is_flag},
    "CharDelimiterSplit": {"delimiter": is_letter},
    "FixedLength": {"length": is_count(1, MAX_ID)},
    "Sequence": {"pretokenizers": anything},
}
PROCESSORS: Mapping[str, Mapping[str, Check]] = {
    "BertProcessing": {"sep": is_token, "cls": is_token},
    "RobertaProcessing": {
        "sep": is_token,
        "cls": is_token,
        "trim_offsets": is_flag,
        "add_prefix_space": is_flag,
    },
    "ByteLevel": BYTE_LEVEL,
    "TemplateProcessing": {"single": anything, "pair": anything, "special_tokens": anything},
    "Sequence": {"processors": anything},
}
# Unicode normalization forms: the largest growth of a byte of UTF-8 (Unicode Annex 15, "maximum expansion factors").
_FORMS = {"NFC": 3, "NFD": 3, "NFKC": 11, "NFKD": 11}


class Walk(Record, frozen=False, slots=False):
    """One pass over the parts of a tokenizer.json. `growth` is the most bytes that one byte of text may become.

    Raises: ModelFormatError that names the part, what it holds, what is allowed.
    """

    file: Path
    growth: Fraction = Fraction(1)
    steps: int = 0
    special: int = 0
    what: str = "normalizer and pre-tokenizer"
    _form: int = 1  # the part of the growth that is counted for Unicode normalization forms
    _decomposed: bool = False
    _byte_level: set[str] = field(default_factory=set)

    def refuse(self, place: str, value: Any, expected: str) -> NoReturn:
        raise ModelFormatError(f"{self.file}: {place} is {shown(value)}; expected {expected}")

    def fields(
        self, part: Any, place: str, known: Mapping[str, Mapping[str, Check]], kind: str | None = None
    ) -> str:
        """The kind of a part, after a check that its fields are those of that kind."""
        if not isinstance(part, dict):
            self.refuse(place, part, "an object with a type")
        found = part.get("type", kind)
        if not isinstance(found, str) or found not in known:
            self.refuse(
                f"{place}: the type", found, f"one that rlx knows to be safe to run: {', '.join(known)}"
            )
        checks = known[found]
        for name, value in part.items():
            if name == "type":
                continue
            if name not in checks:
                self.refuse(
                    f"{place}: a field of {found}", name, f"one of {', '.join(checks) or 'none at all'}"
                )
            wrong = checks[name](value)
            if wrong:
                self.refuse(f"{place}.{name}", value, wrong)
        return found

    def normalizer(self, part: Any, place: str = "normalizer") -> None:
        """Checks the normalizer. After: `growth` includes it."""
        kind = self.fields(part, place, NORMALIZERS)
        for i, step in enumerate(self.members(part, place, kind, "normalizers")):
            self.normalizer(step, f"{place}.normalizers[{i}]")
        before = self._decomposed
        self._decomposed = kind == "NFKD" or (before and kind in ("Lowercase", "StripAccents", "Strip"))
        if kind in _FORMS:
            # A second form grows normalized text no more than the longer form alone would have grown the original.
            self._grow(Fraction(max(self._form, _FORMS[kind]), self._form))
            self._form = max(self._form, _FORMS[kind])
            return
        if kind == "BertNormalizer":
            self._grow(Fraction(15, 2))  # two spaces beside a CJK character, NFD, lower case
        elif kind == "Lowercase":
            self._grow(Fraction(3, 2))
        elif kind == "ByteLevel":
            self._byte_levels(place)
        elif kind == "Prepend":
            self._grow(1 + len(part.get("prepend", "").encode(errors="replace")))
        elif kind == "Replace":
            least = self.least_bytes(part, place)
            put = len(part.get("content", "").encode(errors="replace"))
            self.grow_by(put, least)
        elif kind == "Precompiled":
            text = part.get("precompiled_charsmap", "")
            try:
                factor = charsmap.growth(base64.b64decode(text, validate=True), before)
            except ValueError as error:
                self.refuse(
                    f"{place}.precompiled_charsmap", text, f"a character map of SentencePiece: {error}"
                )
            self._grow(factor)
        if kind not in ("Lowercase", "StripAccents", "Strip", "Nmt", "Sequence"):
            self._form = 1  # the text that this step inserts is not normalized yet

    def pre_tokenizer(self, part: Any, place: str = "pre_tokenizer") -> None:
        """Checks the pre-tokenizer. After: `growth` includes it."""
        kind = self.fields(part, place, PRE_TOKENIZERS)
        for i, step in enumerate(self.members(part, place, kind, "pretokenizers")):
            self.pre_tokenizer(step, f"{place}.pretokenizers[{i}]")
        if kind == "Metaspace":  # the replacement may stand for a space, and before every piece
            sign = len(part.get("replacement", "▁").encode(errors="replace"))
            self._grow(1 + sign)
        elif kind == "ByteLevel":
            self._byte_levels(place)
            self._grow(2)  # a space may come before every piece
        elif kind == "Split":
            self.least_bytes(part, place)

    def post_processor(self, part: Any, place: str = "post_processor") -> None:
        """Checks that the post-processor inserts the sequence once, with few tokens around it."""
        kind = self.fields(part, place, PROCESSORS)
        for i, step in enumerate(self.members(part, place, kind, "processors")):
            self.post_processor(step, f"{place}.processors[{i}]")
        if kind == "TemplateProcessing":
            table = part.get("special_tokens", {})
            sizes = self._special_tokens(table, f"{place}.special_tokens")
            self._template(part.get("single"), f"{place}.single", {"A": 1}, sizes)
            self._template(part.get("pair"), f"{place}.pair", {"A": 1, "B": 1}, sizes)
        elif kind in ("BertProcessing", "RobertaProcessing"):
            self.special += 4
        if self.special > MAX_SPECIAL:
            self.refuse(place, self.special, f"at most {MAX_SPECIAL} special tokens added to a text")

    def _special_tokens(self, table: Any, place: str) -> dict[str, int]:
        if not isinstance(table, dict):
            self.refuse(place, table, "an object")
        sizes = {}
        for name, entry in table.items():
            ids, tokens = (entry.get("ids"), entry.get("tokens")) if isinstance(entry, dict) else (None, None)
            if not (
                isinstance(ids, list)
                and isinstance(tokens, list)
                and 1 <= len(ids) == len(tokens) <= MAX_SPECIAL
                and all(is_count(0, MAX_ID)(n) is None for n in ids)
                and all(is_text(1)(token) is None for token in tokens)
                and entry.keys() == {"id", "ids", "tokens"}
                and entry["id"] == name
            ):
                self.refuse(f"{place}[{shown(name)}]", entry, "its id, its ids and as many tokens")
            sizes[name] = len(ids)
        return sizes

    def _template(self, pieces: Any, place: str, left: dict[str, int], sizes: dict[str, int]) -> None:
        if not isinstance(pieces, list):
            self.refuse(place, pieces, "a list of pieces")
        for i, piece in enumerate(pieces):
            where = f"{place}[{i}]"
            match piece:
                case {"Sequence": {"id": str(name), "type_id": int(number), **more}, **others}:
                    left[name] = left.get(name, 0) - 1
                    if left[name] < 0:
                        self.refuse(where, piece, "each sequence once: repeating one multiplies a text")
                case {"SpecialToken": {"id": str(name), "type_id": int(number), **more}, **others}:
                    if name not in sizes:
                        self.refuse(
                            where, piece, f"a token of special_tokens, which has {shown(list(sizes))}"
                        )
                    self.special += sizes[name]
                case _:
                    self.refuse(where, piece, "a Sequence or a SpecialToken with id and type_id")
            if more or others or type(number) is not int or not 0 <= number <= MAX_ID:
                self.refuse(where, piece, "nothing but id and a type_id that is an index")
        if left.get("A"):
            self.refuse(place, pieces, "the sequence A among its pieces")

    def members(self, part: dict[str, Any], place: str, kind: str, name: str) -> list[Any]:
        """The steps of a Sequence; an empty list for other kinds."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            self.refuse(place, kind, f"at most {MAX_STEPS} steps in all")
        members = part.get(name, []) if kind == "Sequence" else []
        if not isinstance(members, list):
            self.refuse(f"{place}.{name}", members, "a list")
        return members

    def _byte_levels(self, place: str) -> None:
        """Counts a ByteLevel, which turns each byte into one or two. A second one is refused: it would double the text
        again, and no published tokenizer has one."""
        stage = place.partition(".")[0]
        if stage in self._byte_level:
            self.refuse(place, "ByteLevel", "one ByteLevel at most: each doubles the text")
        self._byte_level.add(stage)
        self._grow(2)

    def least_bytes(self, part: dict[str, Any], place: str) -> int:
        """The fewest bytes that the pattern of a Split or Replace matches."""
        pattern = part.get("pattern")
        kind, text = next(iter(pattern.items())) if isinstance(pattern, dict) and len(pattern) == 1 else ("", "")
        if kind == "String" and is_text(1)(text) is None:
            return len(text.encode(errors="replace"))
        if kind != "Regex" or not isinstance(text, str):
            self.refuse(f"{place}.pattern", pattern, f"a Regex or a String of 1 to {MAX_TEXT} bytes")
        try:
            return least_match(text)
        except ValueError as error:
            reason = f"one whose time is known to be linear in the text, but {error}"
            self.refuse(f"{place}: the regular expression", text, reason)

    def grow_by(self, put: int, least: int) -> None:
        """Counts a step that replaces at least `least` bytes by `put` bytes."""
        self._grow(max(Fraction(put, least), Fraction(1)))

    def _grow(self, factor: Fraction | int) -> None:
        self.growth *= factor
        if self.growth > MAX_GROWTH:
            raise ModelFormatError(
                f"{self.file}: its {self.what} make up to {float(self.growth):,.0f} bytes of one; "
                f"expected at most {MAX_GROWTH}, since a text would outgrow the memory"
            )
