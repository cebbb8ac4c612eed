"""Tokenizer of com.microsoft, by which skl2onnx writes text classifiers: strings to their words, at build time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from rlx.onnx.ops.regex import Regex
from rlx.onnx.reader.call import Call, Result, Value
from rlx.onnx.reader.declared import declared
from rlx.onnx.reader.elements import STRING
from rlx.onnx.reader.string_table import MAX_STRINGS

_BEGIN, _END = "\x02", "\x03"


@declared(
    "Tokenizer", inputs="X:T", outputs="Y:T", types={"T": "string"},
    attributes={"mark": int, "mincharnum": int, "pad_value": str, "separators": list[str], "tokenexp": str},
    required="mark mincharnum pad_value",
)  # fmt: skip
def tokenizer(c: Call) -> Result:
    """The words of each string, (n, words) or (n, m, words): those between matches of `separators`, else the matches of
    `tokenexp`, of `mincharnum` characters or more, shorter rows filled with `pad_value`."""
    value = c.value(0)
    shape = value.tensor.shape
    if len(shape) not in (1, 2):
        raise c.bad(f"X is {shape}; expected (n,) or (n, m)")
    if value.tensor.size > MAX_STRINGS:
        raise c.unsupported(f"X has {value.tensor.size} elements; at most {MAX_STRINGS} strings are looked into")
    least, cut = c.int("mincharnum"), _cut(c)
    total = 0

    def words(text: str) -> list[str]:
        nonlocal total
        found = [word for word in cut(text) if len(word) >= least]
        total += len(found)
        if total > MAX_STRINGS:
            raise c.unsupported(f"makes more than {MAX_STRINGS} strings")
        return found

    codes = c.known_tensor(value.tensor)
    rows = np.empty(codes.size, object)
    rows[:] = c.words.mapped(codes, words)
    most = max(map(len, rows), default=0)
    marks = bool(c.int("mark")) and most > 0
    width = most + 2 * marks
    if codes.size * width > MAX_STRINGS:
        raise c.unsupported(f"makes {codes.size} times {width} strings; at most {MAX_STRINGS} are supported")
    table = np.full((codes.size, width), c.words.made(c.str("pad_value"), c.where), np.int64)
    for row, found in zip(table, rows, strict=True):
        whole = [_BEGIN, *found, _END] if marks else found
        row[: len(whole)] = [c.words.made(word, c.where) for word in whole]
    # Without any string there is no axis of words either, as in ONNX Runtime.
    return Value(c.tensor(table.reshape(*shape, width) if codes.size else table.reshape(shape)), STRING)


def _cut(c: Call) -> Callable[[str], Iterator[str]]:
    """What cuts a text into words. Raises: ModelFormatError for attributes that contradict themselves."""
    separators, expression = list(c.ints("separators", [])), c.str("tokenexp", "")
    if c.int("mincharnum") < 1:
        raise c.bad(f"mincharnum is {c.int('mincharnum')}; expected 1 or more")
    if not separators and not expression:
        raise c.bad("neither separators nor tokenexp says what words are")
    if separators == [""]:
        if c.int("mincharnum") > 1:
            raise c.bad(f"mincharnum is {c.int('mincharnum')}, and words are single characters; expected 1")
        return lambda text: iter(text)
    if separators:
        between = [Regex(pattern, c.where) for pattern in separators]

        def split(text: str) -> Iterator[str]:
            least, parts = c.int("mincharnum"), [text]
            for regex in between:
                parts = [word for part in parts for word in _between(regex, part) if len(word) >= least]
            yield from parts

        return split
    words = Regex(expression, c.where)

    def found(text: str) -> Iterator[str]:
        at = 0
        while (match := words.found(text, at)) is not None:
            yield text[match[0] : match[1]]
            at = max(match[1], match[0] + 1)

    return found


def _between(regex: Regex, text: str) -> Iterator[str]:
    """What stands between matches; after one of nothing the next character is passed over, as in ONNX Runtime."""
    at = 0
    while at <= len(text) and (match := regex.found(text, at)) is not None:
        yield text[at : match[0]]
        at = match[1] if match[1] > match[0] else match[0] + 1
    yield text[at:]
