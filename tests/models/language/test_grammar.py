"""JSON schemas as constraints: which texts they take, and the blanks in these."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlx.errors import DTypeError
from rlx.formats.tokenizer.language import from_folder
from rlx.models.language.grammar import Grammars
from tests.models.language import tiny

pytest.importorskip("llguidance", reason="needs rlx[serve]")

SIZE = 140
OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "array"}}, "required": ["a"]}


@pytest.fixture(scope="module")
def grammars(tmp_path_factory: pytest.TempPathFactory) -> Grammars:
    config = {**tiny.LLAMA, "vocab_size": SIZE}
    folder = tiny.write_language_model(tmp_path_factory.mktemp("grammar"), config, text=True)
    file = folder / "tokenizer.json"  # each of its tokens is a byte; two of them become a new line's and a tab's
    file.write_text(file.read_text().replace(r'"\u00c3"', r'"\u010a"').replace(r'"\u00a9"', r'"\u0109"'))
    return Grammars(from_folder(folder), SIZE)


def _taken(grammars: Grammars, schema: Any, text: str) -> int:
    """How many tokens of a text the schema's mask allows, of which each must be allowed to be taken."""
    constraint, words = grammars.json_schema(schema), np.zeros(-(-SIZE // 32), np.int32)
    tokens = grammars._texts.encode(text, special=False)
    assert len(tokens) == len(text)
    for i, token in enumerate(tokens):
        constraint.mask(words)
        assert not constraint.error
        if not words.view(np.uint32)[token // 32] >> (token % 32) & 1:
            return i
        if constraint.take(token):
            return i + 1
    return len(tokens)


@pytest.mark.parametrize(
    "text",
    ['{"a":1}', '{"a": -12, "b": []}', '{\n  "a": 1,\n  "b": [\n    {}\n  ]\n}', '{\n\t\t"a" : 1 }', "{\n" + 16 * " "],
)
def test_json_as_its_writers_lay_it_out(grammars: Grammars, text: str) -> None:
    assert _taken(grammars, OBJECT, text) == len(text)


@pytest.mark.parametrize("schema", [OBJECT, {}, True, {"$ref": "#/$defs/o", "$defs": {"o": {"type": "object"}}}])
def test_blanks_between_tokens_are_few(grammars: Grammars, schema: Any) -> None:
    for begin in ("{", '{"a"', '{"a":', '{"a":1', '{"a":1,'):
        for blanks, most in ((200 * "\n", 1), (200 * " ", 1), ("\n" + 200 * " ", 17), ("\n" + 200 * "\t", 17)):
            assert _taken(grammars, schema, begin + blanks) == len(begin) + most


def test_a_schema_does_not_change_the_limit(grammars: Grammars) -> None:
    with pytest.raises(DTypeError, match=r"x-guidance.*leave it out"):
        grammars.json_schema({**OBJECT, "x-guidance": {"whitespace_flexible": True}})
    with pytest.raises(DTypeError, match="not supported"):
        grammars.json_schema({"type": "number", "multipleOf": "x"})
    with pytest.raises(DTypeError, match="not supported: grammar size"):
        grammars.json_schema({"type": "object", "properties": {f"k{i}": {"type": "integer"} for i in range(8000)}})
    with pytest.raises(DTypeError, match=r"allows no text: NoExtensionBias$"):
        grammars.json_schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}})
